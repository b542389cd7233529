"""Another data set is another fingerprint, and so another twin."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.store import rank_payload


def taken(data: Path | None) -> object:
    return rank_payload.node_fingerprint(
        {"n0": NODE}, ("n0",), code="c", threads=1, backend="gloo", data=str(data) if data else None
    )["data"]


def test_the_data_directory_is_part_of_what_a_result_depends_on(tmp_path: Path) -> None:
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(b"1")
    first = taken(tmp_path)
    assert first == taken(tmp_path)
    assert first != taken(None)
    file.write_bytes(b"12")
    assert first != taken(tmp_path)


def test_a_file_that_was_replaced_by_one_of_the_same_size_is_other_data(tmp_path: Path) -> None:
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(b"1")
    before = taken(tmp_path)
    os.utime(file, ns=(1, 1))
    assert before != taken(tmp_path)


NODE = {"torch": "2.13.0", "cpu": "EPYC 9654", "kernel": "6.1", "gpus": ["H100"], "image": "sha256:1"}


def of(*systems: Mapping[str, Any], spare: Mapping[str, Any] = NODE) -> dict[str, Any]:
    """The fingerprint of a bed of containers: one slot for each of ``systems``, and a spare."""
    expected = {f"n{number}": system for number, system in enumerate((*systems, spare))}
    slots = tuple(expected)[: len(systems)]
    return rank_payload.node_fingerprint(expected, slots, code="c", threads=1, backend="nccl")


def test_nodes_that_are_alike_have_one_fingerprint_which_is_not_this_machines() -> None:
    result = of(NODE, NODE)
    assert {name: result[name] for name in NODE} == NODE
    assert not {"mixed", "untold", "python"} & result.keys()
    assert result["backend"] == "nccl"


def test_another_cpu_gpu_or_torch_is_another_twin() -> None:
    changes: list[dict[str, Any]] = [{"cpu": "Xeon"}, {"gpus": ["A100"]}, {"torch": "2.12.0"}, {"image": "sha256:2"}]
    result = [of(NODE, NODE), of(NODE, {**NODE, "cpu": "Xeon"}), of({**NODE, "cpu": "Xeon"}, NODE)]
    result += [of({**NODE, **change}, {**NODE, **change}) for change in changes]
    assert len({json.dumps(item, sort_keys=True) for item in result}) == len(result)


def test_nodes_that_are_not_alike_are_named_where_it_decides_about_bits() -> None:
    result = of(NODE, {**NODE, "cpu": "Xeon", "kernel": "6.2"})
    assert result["cpu"] == ["EPYC 9654", "Xeon"]
    assert result["mixed"] == {"cpu": {"n0": "EPYC 9654", "n1": "Xeon", "n2": "EPYC 9654"}}


def test_a_spare_of_another_kind_is_told_though_no_rank_is_on_it_yet() -> None:
    result = of(NODE, NODE, spare={**NODE, "gpus": ["A100"]})
    assert result["gpus"] == ["H100"]
    assert result["mixed"] == {"gpus": {"n0": ["H100"], "n1": ["H100"], "n2": ["A100"]}}


def test_a_node_that_says_nothing_is_named() -> None:
    result = of(NODE, {})
    assert result["untold"] == ["n1"] and "mixed" not in result
