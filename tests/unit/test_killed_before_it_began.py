"""An orchestrator that is killed after every step of a run's preparation leaves a whole run, or one that the next command removes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.core.spec import parse_trial
from orchestrator.model.errors import UsageError
from orchestrator.model.launch import Request
from orchestrator.model.plugin import Catalogue
from orchestrator.providers import preflight
from orchestrator.run import abandon, lifecycle, preparation
from orchestrator.store import bed_files as marks
from orchestrator.store import bundle, durable, index, paths

from . import beds
from .fake_bed import FakeProvider

TRIAL = "trial: t\nworkload: train-dp\nworld: {nodes: 4}\nchecks: []\n"
INPUTS = {"t.yml": TRIAL.encode(), "more/notes.txt": b"n"}
CALLS = ("observe", "open", "put")


@dataclass(kw_only=True)
class Killed:
    """Ends this process, as a kill does, once it has taken ``steps`` steps; ``taken`` counts them."""

    steps: int
    taken: int = 0

    def after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            result = call(*args, **named)
            self.taken += 1
            if self.taken == self.steps:
                os._exit(9)
            return result

        return counted


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return plugins.discover()


@pytest.fixture(autouse=True)
def _fit_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "examine", lambda bed, status, prober: preflight.UNCHECKED)


def _request(root: Path, catalogue: Catalogue) -> Request:
    bed = replace(beds.local(state=str(root)), workdir=str(root / "bed"))
    Path(bed.workdir).mkdir(parents=True, exist_ok=True)
    return Request(
        trial=parse_trial.build(parse_trial.open_document(TRIAL, "t.yml"), catalogue, [], None), bed=bed,
        provider=FakeProvider(nodes={node.name: beds.node_status(node) for node in bed.nodes}), catalogue=catalogue,
        runs=str(root / "runs"), state=str(root), command="ccbed run t.yml", twin=False, inputs=INPUTS,
    )  # fmt: skip


def _begun_and_killed(request: Request, steps: int) -> tuple[Path, bool]:
    """Prepare a run in a process that is killed after so many steps: its directory, and whether it was killed."""
    directory = bundle.new(Path(request.runs), request.trial.name)
    pid = os.fork()
    if pid == 0:
        try:
            _begin(request, Killed(steps=steps), directory)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return directory, code == 9


def _begin(request: Request, killed: Killed, directory: Path) -> None:
    durable.perform_step = killed.after(durable.perform_step)
    bundle.link_latest = killed.after(bundle.link_latest)
    for name in CALLS:
        setattr(request.provider, name, killed.after(getattr(request.provider, name)))
    preparation.begin(preparation.Draft(request=request), directory)


def _is_whole(directory: Path) -> bool:
    listed = bundle.load_plan(directory).inputs
    return bool(listed == bundle.sums(INPUTS) and bundle.read_inputs(directory) == INPUTS)


def test_every_prefix_of_the_preparation_is_a_whole_run_or_is_removed(tmp_path: Path, catalogue: Catalogue) -> None:
    outcomes: list[str] = []
    while not outcomes or outcomes[-1] != "begun":
        root = tmp_path / str(len(outcomes))
        request = _request(root, catalogue)
        directory, killed = _begun_and_killed(request, len(outcomes) + 1)
        notes: list[str] = []
        abandon.settle(request.bed, request.provider, catalogue, notes.append)
        left = marks.open_run(Path(request.bed.workdir))
        if left is None:
            assert list(Path(request.runs).glob("[!.l]*")) == []
            assert ["before the run began" in note for note in notes] == [True]
            assert f"forget {directory.name}" in request.provider.commands  # type: ignore[attr-defined]
        else:
            assert (left.run, bundle.stage(directory), notes) == (directory.name, "open", [])
            assert _is_whole(directory)
        outcomes.append("removed" if left is None else "whole" if killed else "begun")
    assert outcomes.index("whole") == outcomes.count("removed"), "what makes it a run is written last"
    assert len(outcomes) > 20
    assert "removed" in outcomes


def test_latest_means_no_other_run_after_one_that_never_began(tmp_path: Path, catalogue: Catalogue) -> None:
    request = _request(tmp_path, catalogue)
    directory, _ = _begun_and_killed(request, 8)
    for _ in ("before it is removed", "after"):
        with pytest.raises(UsageError, match=f"{directory.name}: the latest run has not begun"):
            index.resolve("latest", Path(request.runs))
        abandon.settle(request.bed, request.provider, catalogue, lambda note: None)


def test_a_run_whose_directory_was_removed_by_hand_is_not_taken_for_one_that_never_began(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    request = _request(tmp_path, catalogue)
    directory, _ = _begun_and_killed(request, 10_000)
    paths.discard(directory)
    abandon.settle(request.bed, request.provider, catalogue, lambda note: None)
    assert marks.open_run(Path(request.bed.workdir)) is not None
    with pytest.raises(UsageError, match="has an open run"):
        lifecycle.launch(request)


def test_a_refused_run_leaves_latest_as_it_was(tmp_path: Path, catalogue: Catalogue) -> None:
    request = _request(tmp_path, catalogue)
    runs = Path(request.runs)
    runs.mkdir()
    bundle.link_latest(runs, "before")
    request.provider.nodes.clear()  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="not ready"):
        lifecycle.launch(request)
    assert bundle.latest(runs) == "before"
    assert [path.name for path in runs.iterdir()] == ["latest"]
    assert marks.open_run(Path(request.bed.workdir)) is None
