"""A run without a reference run: Ctrl-C in the one that follows, or none that can be made; the run is complete, and says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.core.verdict import twin as twins
from orchestrator.model.errors import Interrupted
from orchestrator.model.event import Clock, Event, History, Source, event
from orchestrator.model.events import FaultInjected, Progress, RunEnd, RunResumed
from orchestrator.model.trial import Trial, World
from orchestrator.model.verdict import Verdict
from orchestrator.run import twin_runs
from orchestrator.store import bed_files, bundle, paths
from orchestrator.views import training

from . import run_builder
from .test_rungs import shown, verdict
from .verdicts import ask
from .watched_jobs import right


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_an_interrupted_twin_leaves_the_run_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    def make(*_: Any) -> None:
        if is_interrupted:
            raise Interrupted("interrupted in the reference run, t-twin")

    ended: list[Path] = []
    monkeypatch.setattr(bundle, "stage", lambda directory: "ended")
    monkeypatch.setattr(twin_runs, "_is_open", lambda request, directory: True)
    monkeypatch.setattr(twin_runs, "_is_comparable", lambda request, directory: True)
    monkeypatch.setattr(twin_runs, "_outside_files", lambda request, directory: ())
    monkeypatch.setattr(twin_runs, "_make", make)
    monkeypatch.setattr(bed_files, "end_twin", ended.append)
    notes: list[str] = []
    request: Any = SimpleNamespace(
        twin_after=True, stop=False, bed=SimpleNamespace(workdir="/bed"), on_note=notes.append
    )
    (tmp_path / "work").mkdir()
    assert twin_runs.provide_after(request, tmp_path) == is_interrupted
    note = "interrupted in the reference run, t-twin; the run itself is complete and is judged without a reference run"
    assert notes == [note] * is_interrupted
    assert ended == [Path("/bed")] and not (tmp_path / "work").exists()
    reasons = paths.document(tmp_path, bundle.NO_TWIN) if is_interrupted else {}
    assert reasons == ({"why": "interrupted in the reference run, t-twin"} if is_interrupted else {})


def test_a_run_keeps_why_its_reference_run_cannot_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin_runs, "_run", lambda *_: tmp_path / "twin")
    monkeypatch.setattr(twin_runs, "_judge_and_cache", lambda *_: None)
    monkeypatch.setattr(bundle, "load", lambda directory: directory.name)
    monkeypatch.setattr(twins, "unfit", lambda run: f"{run} failed: rank 1 exited with 1")
    request: Any = None
    assert twin_runs._run_twin(request, tmp_path, ()) is None
    assert paths.document(tmp_path, bundle.NO_TWIN) == {"why": "twin failed: rank 1 exited with 1"}


@pytest.mark.parametrize(
    "why_not", ["it has one", "it is sealed", "it is closed", "it is stopped", "another run is open"]
)
def test_no_reference_run_follows_a_resumed_run_twice_or_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why_not: str
) -> None:
    monkeypatch.setattr(bundle, "stage", lambda directory: "closed" if why_not == "it is closed" else "ended")
    monkeypatch.setattr(bundle, "is_sealed", lambda directory: why_not == "it is sealed")
    monkeypatch.setattr(twin_runs, "_is_open", lambda request, directory: why_not != "another run is open")
    monkeypatch.setattr(twin_runs, "_is_comparable", lambda request, directory: True)
    monkeypatch.setattr(twin_runs, "_make", lambda *_: pytest.fail("made"))
    request: Any = SimpleNamespace(twin_after=True, stop=why_not == "it is stopped", on_note=pytest.fail)
    (tmp_path / "work").mkdir()
    if why_not == "it has one":
        (tmp_path / bundle.TWIN).write_text("{}")
    assert not twin_runs.provide_after(request, tmp_path)


def test_the_time_without_an_orchestrator_counts_as_far_as_ranks_show_that_they_worked() -> None:
    """Killed at 5 s, resumed at 100 s; the ranks worked until 30 s: 70 s are no time of the run."""

    def note(payload: Any, seconds: float, writer: str) -> Event:
        at, source = Clock(boot="b", mono=seconds, wall=seconds), Source(writer=writer, n=1)
        return replace(event(payload, at=at, source=source), t=seconds)

    progress = [
        note(Progress(step=step, steps=60, rank=0), seconds, "rank-0.e0") for step, seconds in ((1, 5.0), (2, 30.0))
    ]
    resumed = note(RunResumed(pid=1), 100.0, "ctl")
    assert twin_runs._pause_s(History((progress[0], resumed, progress[1]))) == 70.0
    assert twin_runs._pause_s(History((progress[0], progress[1]))) == 0.0


@pytest.mark.parametrize("follows", [True, False])
def test_exact_gives_the_reason_why_no_reference_run_could_be_made(follows: bool) -> None:
    why, job = "/data/project cannot be copied: Permission denied", right().run()
    at, source = Clock(boot="b", mono=9.0, wall=9.0), Source(writer="ctl", n=0)
    history = History(
        tuple(
            event(payload, at=at, source=source)
            for payload in (FaultInjected(id="f0", evidence=None), RunEnd(outcome="finished"))
        )
    )
    extras = {"no-twin.json": {"why": why}, "bundle.json": {"twin_after": follows}}
    verdict = ask(replace(job, extras=extras, history=history if follows else job.history), "bit-exact")
    assert verdict.outcome == ("skipped" if follows else "unknown") and why in verdict.text


def test_a_rung_for_which_nothing_was_compared_does_not_hold() -> None:
    nothing = Verdict(check="replay-equal", outcome="pass", text=training.NONE_TWICE)
    why = "no reference run to compare with (the run took 80 s; one follows by itself within 60 s): --reference"
    skipped = Verdict(check="bit-exact", outcome="skipped", text=f"not checked: {why}")
    for verdicts, reason in (((nothing, skipped), why), ((nothing,), "no reference run: --reference")):
        exact = shown(run_builder.run(verdicts=verdicts))["exact"]
        assert (exact.state, exact.text) == ("not asked", f"no step was done twice, and {reason}")
    assert shown(run_builder.run(verdicts=(nothing, verdict("bit-exact", "pass"))))["exact"].state == "holds"


def test_only_runs_that_compute_the_same_share_a_reference_run() -> None:
    trial = Trial(name="t", workload="script")

    def key(other: Trial, torch: str = "2.13") -> str:
        return twins.twin_key(other, {"torch": torch})

    assert key(replace(trial, name="u", require="whole", accept=("rng",))) == key(trial)
    others = [
        replace(trial, seed=8),
        replace(trial, params={"lr": 1}),
        replace(trial, workload="train-dp"),
        replace(trial, world=World(nodes=2)),
    ]
    assert key(trial) not in {key(trial, torch="2.12"), *map(key, others)}
