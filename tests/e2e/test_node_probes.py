"""Probes on a real bed: every node has figures, and a sweep says how many peers it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.model.trial import Recovery, Trial, World

from .conftest import Bed

pytestmark = pytest.mark.e2e

QUICK = {
    "repeats": 2,
    "repeat_s": 0.01,
    "disk_mib": 1,
    "memory_mib": 1,
    "nic_mib": 1,
    "dtypes": ["float32"],
    "disk_tool": "ccbed",
}
NODES = {"n0", "n1", "n2", "n3"}


def test_every_probe_ends_on_every_node_and_each_repeat_is_a_metric(bed: Bed) -> None:
    trial = Trial(
        name="node-probe", workload="node-probe", params=QUICK, world=World(nodes=4),
        recovery=Recovery(policy=("none",)),
    )  # fmt: skip
    done = bed.run(trial)
    assert (done.code, done.bad()) == (0, [])
    assert done.outcome("same-bits") == "skipped"
    assert done.outcome("hardware-probed") == "pass"
    lines = [json.loads(line) for line in (done.directory / "metrics.jsonl").read_text().splitlines()]
    for metric in ("gemm float32", "memory host copy", "disk node write", "cpu loop", "nic ring"):
        own = {(line["node"], line["rep"]) for line in lines if line["metric"] == metric and line["value"] > 0}
        assert own == {(node, rep) for node in NODES for rep in (0, 1)}, metric
    assert (done.directory / "report/probes.csv").read_text().count("gemm float32") == 4
    assert not any(line["metric"].startswith("copy to") for line in lines), "no GPU, no figure"


def test_a_sweep_of_four_nodes_compares_them(bed: Bed, tmp_path: Path) -> None:
    trial = {
        "trial": "gemm",
        "workload": "node-probe",
        "params": {"probes": ["gemm"], **QUICK},
        "recovery": {"policy": "none"},
    }
    file = tmp_path / "gemm.json"
    file.write_text(json.dumps(trial))
    code, text = bed.ccbed("sweep", str(file), "--each-node", "--bed", "local", "--runs-dir", str(tmp_path / "runs"))
    assert code in (0, 2), text  # on a busy machine one of them may be odd
    odd = (
        "worse than the median of 3 peers",
        "better than the median of 3 peers",
        "the nodes differ too much to see an odd one",
    )
    assert any(words in text for words in (("no node of 4 is odd",) if code == 0 else odd)), text
    code, text = bed.ccbed("sweep", str(file), "--each-pair", "--bed", "local")
    assert (code, "--each-pair needs a trial of workload collective" in text) == (3, True)
