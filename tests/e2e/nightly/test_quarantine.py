"""On a real bed: a spare is probed, then takes the slot of a node in quarantine; its run names the bundle of the probe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.app.hosts import quarantine
from orchestrator.model import codec
from orchestrator.store import bundle, paths, seal

from ..conftest import Bed

pytestmark = pytest.mark.e2e


@pytest.fixture
def accused(bed: Bed) -> Iterator[str]:
    """A node that two nights accused; it is released at the end."""
    offences = tuple(
        quarantine.Offence(node="n1", host="localhost", night=f"night-{number}", number=number, reason="too slow") for number in (1, 2)
    )  # fmt: skip
    file = Path(bed.spec.workdir) / quarantine.FILE
    paths.write_json(file, codec.plain(quarantine.Quarantine(offences=offences)))
    yield "n1"
    file.unlink()


def test_a_probed_spare_takes_the_slot_of_a_node_in_quarantine(bed: Bed, accused: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    code, output = bed.ccbed("run", "dp-ring", "--no-reference", "--probe-spares", "1s", "--runs-dir", str(runs))
    assert code == 0, output
    assert f"note   {accused} is set aside since night-2: too slow; n4 takes its place" in output
    assert "spare  n4 joins, but whether it is as fast as it should be is not known" in output
    directory = (runs / "latest").resolve()
    plan = bundle.load_plan(directory)
    assert (plan.slots, plan.spares, plan.substitutes) == (("n0", "n4", "n2", "n3"), (), {"n1": "n4"})
    probe = directory / plan.placement.spare_probe
    assert bundle.load_plan(probe).slots == ("n4",)
    assert (probe / seal.MANIFEST).is_file()
    page = (directory / "report" / "index.html").read_text()
    assert f'href="../{plan.placement.spare_probe}/report/index.html"' in page
    assert "without n1" in page
    verdicts = {
        verdict["check"]: verdict["outcome"] for verdict in json.loads((directory / bundle.VERDICTS).read_text())
    }
    assert {"fail", "unknown"}.isdisjoint(verdicts.values())
    assert bed.unchanged()
