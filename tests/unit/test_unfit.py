"""A run that preflight refuses has begun nowhere: no directory here, nothing on its hosts. A reference that cannot serve says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import plugins, views
from orchestrator.core.spec import parse_trial
from orchestrator.core.verdict import twin as twins
from orchestrator.model.bed import BedSpec, BedStatus
from orchestrator.model.errors import InfrastructureError
from orchestrator.model.launch import Request
from orchestrator.model.requirements import Requirement
from orchestrator.providers import preflight
from orchestrator.run import lifecycle

from . import beds, run_builder
from .fake_bed import FakeProvider

TRIAL = "trial: t\nworkload: train-dp\nworld: {nodes: 4}\nchecks: []\n"


def test_what_was_opened_for_it_is_removed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = replace(beds.local(state=str(tmp_path)), workdir=str(tmp_path / "bed"))
    provider = FakeProvider(nodes={node.name: beds.node_status(node) for node in bed.nodes})

    def unfit(bed: BedSpec, status: BedStatus, prober: object) -> preflight.Checked:
        assert not provider.commands
        lacking = Requirement(name="shm", outcome="fail", text="64 MB free, 512 MB needed", fix="set ccbed_shm_size")
        return preflight.Checked(requirements=(lacking,))

    monkeypatch.setattr(preflight, "examine", unfit)
    catalogue = plugins.discover()
    trial = parse_trial.build(parse_trial.open_document(TRIAL, "t.yml"), catalogue, [], None)
    request = Request(
        trial=trial, bed=bed, provider=provider, catalogue=catalogue, runs=str(tmp_path / "runs"), state=str(tmp_path),
        command="ccbed run t.yml", twin=False,
    )  # fmt: skip
    with pytest.raises(InfrastructureError, match="preflight: shm: 64 MB free"):
        lifecycle.launch(request)
    (command,) = provider.commands
    assert command.startswith("forget ")
    assert [file.name for file in (tmp_path / "runs").iterdir()] == [".gitignore"]
    assert not (tmp_path / "bed" / "open-run.json").exists()


def test_a_reference_that_may_not_write_outside_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails where the job writes outside of its project and no view can be made, as in containers."""
    reason = "rank 3: Permission denied: '/ckpt'"
    monkeypatch.setattr(views, "ending", lambda history: ("failed", reason, ""))
    monkeypatch.setattr(views, "gangs", lambda history: ())
    isolated = run_builder.run(extras={"plan.json": {"isolation": {}}})
    assert f"failed: {reason}; it may write only in its copy" in twins.unfit(isolated)
    assert "give other paths as {out}, or --map" in twins.unfit(isolated)
    assert twins.unfit(replace(isolated, extras={"plan.json": {}})).endswith(reason)
