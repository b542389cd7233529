"""What the index and the gates read of a bundle: figures by node and key, versions, and what is left out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly import bundle_records, hardware_key
from orchestrator.nightly.run_record import Measurement, RunRecord
from orchestrator.store import paths

from .night_bundles import FACTS, figure, write_bundle, write_night

RUN = "2026-01-02T03-04-05Z-probe-00ff"


def read(tmp_path: Path, *figures: dict[str, object], **options: object) -> RunRecord:
    return bundle_records.read(write_bundle(tmp_path / RUN, figures, **options))  # type: ignore[arg-type]


def measured(record: RunRecord) -> dict[tuple[str, str], Measurement]:
    return {(item.node, item.metric.name): item for item in record.measurements}


def test_a_record_says_which_run_it_is(tmp_path: Path) -> None:
    record = read(tmp_path, figure("duration", 4.5), figure("ttr", 0.25))
    facts = (record.run, record.bed, record.trial, record.workload, record.started)
    assert facts == (RUN, "lab", "probe", "node-probe", "2026-01-02T03:04:05Z")
    assert (record.outcome, record.exit, record.is_sealed) == ("pass", 0, True)
    assert (record.duration_s, record.ttr_s, record.night, record.cell) == (4.5, 0.25, "", "")
    assert record.suspects["n1"] == {
        "driver": "580.159",
        "kernel": "6.1",
        "torch": "2.13",
        "code": "c0dec0dec0de",
        "host": "host-n1",
    }


def test_repeats_of_a_metric_are_one_measurement_by_node(tmp_path: Path) -> None:
    lines = [figure("gemm", value, "TFLOP/s", "higher", node=node) for node in ("n0", "n1") for value in (10.0, 11.0)]
    by_name = measured(read(tmp_path, *lines))
    assert by_name["n0", "gemm"].values == by_name["n1", "gemm"].values == (10.0, 11.0)
    assert (by_name["n0", "gemm"].metric.unit, by_name["n0", "gemm"].metric.better) == ("TFLOP/s", "higher")


def test_each_rank_of_a_node_is_a_series_of_its_own(tmp_path: Path) -> None:
    lines = [figure("gemm", float(rank), "TFLOP/s", "higher", node=f"n{rank // 2}", rank=rank) for rank in range(4)]
    assert [node for node, _ in measured(read(tmp_path, *lines, ranks_per_node=2))] == ["n0:0", "n0:1", "n1:0", "n1:1"]


def test_iterations_are_left_out_only_where_percentiles_sum_them_up(tmp_path: Path) -> None:
    lines = [
        figure("all-reduce time p50", 2.0, size=4096),
        *(figure("all-reduce time", 1.0, size=size) for size in (4096, 4096, 5000)),
    ]
    by_name = measured(read(tmp_path, *lines))
    assert {name: item.values for (_, name), item in by_name.items()} == {
        "all-reduce 4 KiB time p50": (2.0,),
        "all-reduce 5000 B time": (1.0,),
    }


def test_a_link_is_named_by_its_nodes_and_belongs_to_the_gang(tmp_path: Path) -> None:
    by_name = measured(read(tmp_path, figure("link 1-0 beta", 1e-9, "s/byte", node="b", rank=1), nodes=("a", "b")))
    assert list(by_name) == [("b->a", "link beta")]


def test_links_that_an_earlier_run_probed_are_no_measurement_of_this_run(tmp_path: Path) -> None:
    links = figure("link 1-0 beta", 1e-9, "s/byte", node="b", rank=1)
    directory = write_bundle(tmp_path / "r", [links, figure("all-reduce busbw", 2.0)], nodes=("a", "b"))
    assert ("b->a", "link beta") in measured(bundle_records.read(directory))
    (directory / "history.jsonl").write_text(
        '{"f":"link.fit","value":{"rank":0,"reused_from":"2026-11-21T02-00-07Z-links-3f9c"}}\n'
    )
    record = bundle_records.read(directory)
    assert [name for _, name in measured(record)] == ["all-reduce busbw"]
    assert "reused" in record.notes[0]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_value_that_is_not_finite_is_a_note_and_no_number(tmp_path: Path, value: str) -> None:
    record = read(tmp_path, figure("gemm", value, node="n0"), figure("gemm", 3.0, node="n1"))
    assert [(item.node, item.values) for item in record.measurements] == [("n0", ()), ("n1", (3.0,))]
    assert record.notes == (f"n0: gemm is {value}: not a number that can be compared",)


def test_metrics_without_a_direction_and_of_unknown_hardware_are_left_out(tmp_path: Path) -> None:
    lines = figure("score", 1.0, better=""), figure("gemm", 1.0, node="n0"), figure("gemm", 2.0, node="n1")
    record = read(tmp_path, *lines, facts={"n1": {"cpu": ""}})
    assert [item.node for item in record.measurements] == ["n0"]
    assert record.notes == ("n1: gemm: the hardware of its nodes is not known: not comparable",)


def test_a_run_of_a_night_names_night_cell_and_repeat(tmp_path: Path) -> None:
    night = write_night(tmp_path, 3, {"gemm[dtype=float32]": [[], []]})
    last = max((night / "runs").iterdir())
    record = bundle_records.read(last)
    assert (record.night, record.cell, record.repeat) == (night.name, "gemm[dtype=float32]", 1)


@pytest.mark.parametrize("name", ["trial.json", "plan.json", "metrics.jsonl", "nodes/n0/system.json", "bundle.json"])
def test_a_damaged_bundle_is_refused_with_path_and_reason(tmp_path: Path, name: str) -> None:
    directory = write_bundle(tmp_path / RUN, [figure("gemm", 1.0, node="n0")])
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(paths.TornBundleError, match=name):
        bundle_records.read(directory)


def test_a_directory_without_a_trial_is_half_written(tmp_path: Path) -> None:
    (tmp_path / RUN).mkdir()
    with pytest.raises(paths.TornBundleError, match=r"half-written: it has no trial\.json"):
        bundle_records.read(tmp_path / RUN)


def test_versions_are_no_part_of_the_key_and_hardware_is(tmp_path: Path) -> None:
    def key(name: str, **facts: object) -> object:
        directory = write_bundle(tmp_path / name, [figure("gemm", 1.0, node="n0")], facts={"n0": facts})
        return bundle_records.read(directory).measurements[0].key

    usual = key("a")
    assert key("b", driver="580.170", kernel="6.2", torch="2.14", memory_mib=513_000) == usual
    assert key("c", gpus=["H200"] * 8) != usual
    assert key("d", cores=32) != usual
    assert key("e", memory_mib=1_030_000) != usual


def test_a_node_probe_has_the_same_key_with_a_node_missing_and_a_gang_has_not(tmp_path: Path) -> None:
    lines = figure("gemm", 1.0, node="n0"), figure("busbw", 1.0, better="higher")
    three = measured(bundle_records.read(write_bundle(tmp_path / "a", lines, nodes=("n0", "n1", "n2"))))
    two = measured(bundle_records.read(write_bundle(tmp_path / "b", lines)))
    assert three["n0", "gemm"].key == two["n0", "gemm"].key
    assert three["", "busbw"].key != two["", "busbw"].key


def test_nodes_that_share_a_host_are_other_hardware(tmp_path: Path) -> None:
    shared = read(tmp_path, figure("gemm", 1.0, node="n0"), hosts={"n0": "h", "n1": "h"})
    assert shared.measurements[0].key.hardware == "8x H100, 64x Xeon, 512 GiB, 2 nodes on a host"


def test_parameters_that_are_empty_do_not_change_the_key(tmp_path: Path) -> None:
    def parameters(name: str, params: dict[str, object]) -> str:
        directory = write_bundle(tmp_path / name, [figure("gemm", 1.0, node="n0")], params=params)
        return bundle_records.read(directory).measurements[0].key.parameters

    usual = parameters("a", {"size": 64})
    assert parameters("b", {"size": 64, "later_option": "", "other": None}) == usual
    assert parameters("c", {"size": 128}) != usual


@pytest.mark.parametrize(("mib", "gib"), [(24_105, 24), (515_000, 512), (1_030_000, 1024), (15_800, 16), (0, 0)])
def test_memory_is_a_class_that_a_kernels_share_does_not_change(mib: int, gib: float) -> None:
    assert hardware_key.memory_class({**FACTS, "memory_mib": mib}) == gib


def test_a_record_of_a_real_run_has_plain_json_values(tmp_path: Path) -> None:
    record = read(tmp_path, figure("gemm", 1.0, node="n0"))
    assert json.dumps(dataclasses.asdict(record))


def test_a_parameter_with_its_default_does_not_change_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parameters(name: str, params: dict[str, object]) -> str:
        options: dict[str, Any] = {"params": params, "workload": "collective"}
        directory = write_bundle(tmp_path / name, [figure("busbw", 1.0)], **options)
        return bundle_records.read(directory).measurements[0].key.parameters

    usual = parameters("a", {"sizes": [64], "warmup": 5, "probe_s": 3.0, "verify": True})
    assert usual == "backend=gloo nodes=2 ranks_per_node=1 threads=1"
    assert parameters("more", {"sizes": [64, 128], "iterations": 7}) == usual, "names and numbers of values say these"
    defaults = {**hardware_key._defaults("collective"), "added_later": 3}
    monkeypatch.setattr(hardware_key, "_defaults", lambda workload: defaults)
    assert parameters("later", {"sizes": [64], "warmup": 5, "probe_s": 3.0, "verify": True, "added_later": 3}) == usual
    changed = {
        parameters("b", {"sizes": [64], "verify": False}),
        parameters("c", {"sizes": [64], "added_later": 0}),
        parameters("d", {"sizes": [64], "warmup": 0}),
    }
    assert len({usual, *changed}) == 4, "a value that differs from its default is in the key, also an empty one"
