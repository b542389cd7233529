"""Old steps become ranges in the record: no step is lost, none counts twice, verdicts are those by the full record."""

# mypy: disable-error-code="no-untyped-call,unused-ignore"
from __future__ import annotations

import base64
import dataclasses
import json
import os
import signal
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.checkers import bit_exact, no_step_lost, replay_equal, resume_complete, resumed_from
from orchestrator.model import watch
from orchestrator.model.plugin import NoParams
from orchestrator.model.run import Run
from orchestrator.model.trial import Trial
from orchestrator.rank.watcher import record, thinned_steps
from orchestrator.store import paths, recorded_files
from orchestrator.views import training
from orchestrator.views.step_ranges import Steps
from orchestrator.views.training import job_steps

from .. import watched_jobs
from . import jobs

KINDS = {kind: name for name, kind in watch.KINDS.items()}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges begin after tens of steps instead of thousands."""
    for name, value in (("RECENT", 24), ("MOST", 96), ("AT_ONCE", 32), ("SAMPLES", 4)):
        monkeypatch.setattr(thinned_steps, name, value)


class Recorded:
    """A record that is written line by line, with ranges and without."""

    def __init__(self, folder: Path, *, with_ranges: bool = True) -> None:
        self.folder, self.with_ranges = folder, with_ranges
        folder.mkdir(parents=True)
        self.recorder = record.Recorder(str(folder))
        self.recorder.line("begin", format=1, rank=0, pid=os.getpid(), world=1, attempt=0)

    def step(self, n: int, **fields: Any) -> None:
        timed = {"start": float(n), "end": n + 0.75, "loss": (1 / n).hex(), **fields}
        self.recorder.line("step", n=n, **timed)
        if self.with_ranges:
            self.recorder.replace_old(n, 0)

    def read(self) -> watch.WatchFile:
        assert recorded_files.WatchDirectory(self.folder).incomplete() == ()
        (file,) = recorded_files.WatchDirectory(self.folder).watch()
        return file


def test_every_step_is_read_from_a_range_as_it_was(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "a")
    for n in range(1, 501):
        loss: dict[str, Any] = {"loss": None} if n % 7 == 0 else {"loss": float("nan").hex()} if n == 100 else {}
        recorded.step(n, passes=1 + n % 2, batches=[None] * (n % 3), data_s=0.25, **loss)
    file = recorded.read()
    steps = Steps(file.lines)
    assert file.begin is not None and file.begin.format == 2
    assert len(file.of(watch.Range)) > 3 and len(file.of(watch.Step)) < 200
    assert steps.intervals() == [(1, 500)] and len(steps) == 500 and list(steps) == list(range(1, 501))
    for n, step in steps.items():
        assert step.loss == (None if n % 7 == 0 else "nan" if n == 100 else (1 / n).hex())
        assert (step.n, step.passes, len(step.batches or ())) == (n, 1 + n % 2, n % 3)
        assert step.end == pytest.approx(n + 0.75, abs=1e-4)
    assert sum(steps.parts("data_s")) == pytest.approx(125)
    assert steps.ended_by(77.8) == 77 and steps.ended_by(77.7) == 76 and steps.ended_by(0) == 0
    assert len(steps.seconds(after=1)) == 499
    assert dict(steps.losses()) == {n: step.loss for n, step in steps.items() if step.loss}


def test_ranges_grow_by_few_bytes_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinned_steps, "AT_ONCE", 512)
    monkeypatch.setattr(thinned_steps, "SAMPLES", 64)
    recorded, sizes = Recorded(tmp_path / "a"), []
    for n in range(1, 6001):
        recorded.step(n, loss=float(torch.tensor(1 / n)).hex())
        if n in (3000, 6000):
            sizes.append(sum(path.stat().st_size for path in recorded.folder.iterdir()))
    assert sizes[1] - sizes[0] < 3000 * 20
    assert len(os.listdir(recorded.folder)) == 1


def test_states_of_saves_windows_and_samples_stay(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "a")
    for n in range(1, 401):
        recorded.recorder.line("state", n=n - 1, weights=f"{n - 1:016x}", **({"gradients": None} if n == 101 else {}))
        if n == 103:  # a copy of step 97
            recorded.recorder.line("save", id=1, n=102, api="torch.save", path="x")
            recorded.recorder.line("saved", id=1, weights=f"{97:016x}", contents={})
        recorded.step(n)
    states = [state.n for state in recorded.read().of(watch.State)]
    assert set(range(18)) <= set(states) and {97, 100, 102, 256, 320} <= set(states) and 350 in states
    assert not {90, 110, 257} & set(states)


def test_moments_that_stay_state_what_changed_in_those_that_do_not(tmp_path: Path) -> None:
    def moments(with_ranges: bool) -> training.Process:
        recorded = Recorded(tmp_path / str(with_ranges), with_ranges=with_ranges)
        for n in range(1, 301):
            rng = {"torch": f"t{n}", **({"python": f"p{n}"} if n % 50 == 0 else {})}
            recorded.step(n, rng=rng, **({"lr": [(1 / n).hex()]} if n % 40 == 0 else {}))
        run = Run(
            directory="",
            trial=Trial(name="x", workload="script"),
            history=watched_jobs._empty(),
            files=recorded_files.WatchDirectory(recorded.folder),
        )
        (attempt,) = training.attempts(run)
        return attempt.ranks[0]

    full, summed = moments(False), moments(True)
    assert len(summed.rngs) < len(full.rngs)
    assert all(full.rngs[n] == prints for n, prints in summed.rngs.items())
    assert all(full.rates[n] == rates for n, rates in summed.rates.items())


@pytest.mark.parametrize("at", ["before the new file has the name", "while it is written"])
def test_a_process_that_is_killed_while_it_writes_its_record_anew_loses_nothing(tmp_path: Path, at: str) -> None:
    folder = tmp_path / "a"
    pid = os.fork()
    if not pid:
        recorded = Recorded(folder)

        def die(*args: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        for n in range(1, 150):
            recorded.step(n)
        name = "replace" if at.startswith("before") else "write"
        recorded.with_ranges = False
        for n in range(150, 221):
            recorded.step(n)
        setattr(os, name, die)
        recorded.with_ranges = True
        recorded.recorder._tail._due = 0  # type: ignore[union-attr]
        recorded.recorder.replace_old(220, 0)
        os._exit(3)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    (file,) = recorded_files.WatchDirectory(folder).watch()
    assert Steps(file.lines).intervals() == [(1, 220)]
    assert recorded_files.WatchDirectory(folder).incomplete() == ()


def test_a_record_that_cannot_be_written_anew_goes_on_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path / "a")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(thinned_steps, "_copy", full)
    for n in range(1, 301):
        recorded.step(n)
    file = recorded.read()
    assert len(file.of(watch.Step)) == 300 and not file.of(watch.Range)
    assert len(os.listdir(recorded.folder)) == 1


def test_a_watched_process_that_is_killed_has_all_of_its_steps(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        for _ in range(300):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        (tmp_path / "done").write_text("")
        os.kill(os.getpid(), signal.SIGKILL)

    folder = tmp_path / "records"
    with pytest.raises(AssertionError):
        jobs.fork(folder, body)
    assert (tmp_path / "done").exists()
    (file,) = recorded_files.WatchDirectory(folder).watch()
    assert Steps(file.lines).intervals() == [(1, 299)] and file.of(watch.Range)
    assert {0, 1, 16} <= {state.n for state in file.of(watch.State)}


def _lines(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    (path,) = folder.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["sum"]
    return path, lines


def _forge(lines: list[dict[str, Any]], how: str) -> None:
    at = next(index for index, line in enumerate(lines) if line["k"] == "range")
    line = lines[at]
    if how == "twice":
        lines.insert(at, dict(line))
    elif how == "one step more":
        line["last"] += 1
    elif how == "one step more, counted":
        line["last"], line["count"] = line["last"] + 1, line["count"] + 1
    elif how == "another end":
        line["end"] += 5
    elif how == "no text":
        line["steps"] = "!" + line["steps"][1:]
    elif how == "a bomb":
        line["steps"] = base64.b64encode(zlib.compress(bytes(1 << 24))).decode()
    elif how == "another loss":
        next(line for line in lines if line["k"] == "step" and line["n"] == 3)["loss"] = (9.0).hex()
    elif how == "backwards":
        others = [index for index, line in enumerate(lines) if line["k"] == "range"]
        lines[at], lines[others[1]] = lines[others[1]], lines[at]


@pytest.mark.parametrize(
    "how",
    ["", "twice", "one step more", "one step more, counted", "another end", "no text", "a bomb", "another loss", "backwards"],
)  # fmt: skip
def test_a_range_that_contradicts_itself_or_its_neighbours_is_no_evidence(tmp_path: Path, how: str) -> None:
    recorded = Recorded(tmp_path / "a")
    for n in range(1, 301):
        recorded.step(n)
    path, lines = _lines(recorded.folder)
    _forge(lines, how)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if not how:
        assert len([*recorded_files.WatchDirectory(recorded.folder).watch()]) == 1
        return
    with pytest.raises(paths.TornBundleError, match="not a record of the watcher"):
        [*recorded_files.WatchDirectory(recorded.folder).watch()]


def test_a_range_that_was_left_out_is_a_gap(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "a")
    for n in range(1, 301):
        recorded.step(n)
    path, lines = _lines(recorded.folder)
    lines.remove(next(line for line in lines if line["k"] == "range" and line["first"] > 50))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (file,) = recorded_files.WatchDirectory(recorded.folder).watch()
    assert len(Steps(file.lines).intervals()) > 1


def _with_ranges(job: watched_jobs.Job, folder: Path) -> Run:
    """The records of a job as the watcher writes them, with ranges."""
    for file in job.files:
        where = folder / Path(file.path).parent
        where.mkdir(parents=True, exist_ok=True)
        recorder = record.Recorder(str(where))
        recorder.path = folder / file.path
        recorder._fd = os.open(recorder.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for line in file.lines:
            fields = {key: value for key, value in dataclasses.asdict(line).items() if value is not None}
            if isinstance(line, watch.State) and line.full:
                fields["gradients"] = None
            text = record.text_of({"k": KINDS[type(line)], **fields})
            recorder.append(KINDS[type(line)], text, fields)
            if isinstance(line, watch.Step):
                recorder.replace_old(line.n, 0)
    for extra in folder.rglob(f"watch-r0-{os.getpid()}.jsonl"):
        extra.unlink()
    read = recorded_files.BundleFiles(folder, {})
    assert any(file.of(watch.Range) for file in read.watch())
    return dataclasses.replace(job.run(), files=read)


@pytest.mark.parametrize("wrong", [(), ("weights",), ("optimizer",), ("lr",), ("data",)], ids=str)
def test_verdicts_are_those_by_the_full_record(tmp_path: Path, wrong: tuple[str, ...]) -> None:
    job = watched_jobs.Job(world=2, every=50, dropout=False).attempt(0, 0, 540)
    job.attempt(1, 500, 900, forgets=wrong, ends=True)
    full, summed = job.run(), _with_ranges(job, tmp_path)
    checks = (no_step_lost, resumed_from, resume_complete, replay_equal, bit_exact)
    outcomes = [[check.check(run, NoParams()) for check in checks] for run in (full, summed)]
    assert [(v.outcome, v.text) for v in outcomes[0]] == [(v.outcome, v.text) for v in outcomes[1]]
    assert bool(wrong) == any(verdict.outcome == "fail" for verdict in outcomes[1])
    facts = [training.kept_facts(training.lineage_of(run)) for run in (full, summed)]
    assert {rank: dict(own) for rank, own in facts[0].losses.items()} == {
        rank: dict(own) for rank, own in facts[1].losses.items()
    }
    assert facts[0].steps == facts[1].steps == 900


def test_a_step_that_is_missing_beside_ranges_fails(tmp_path: Path) -> None:
    job = watched_jobs.Job(world=2, every=50, dropout=False).attempt(0, 0, 540).attempt(1, 500, 900, ends=True)
    run = _with_ranges(job, tmp_path)
    assert no_step_lost.check(run, NoParams()).outcome == "pass"
    path = next(path for path in tmp_path.rglob("watch-r1-*.jsonl") if "e1" in str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines.remove(next(line for line in lines if line["k"] == "range" and line["first"] > 50))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cut = dataclasses.replace(run, files=recorded_files.BundleFiles(tmp_path, {}))
    assert no_step_lost.check(cut, NoParams()).outcome == "fail"


def test_a_view_of_long_records_is_that_of_full_ones(tmp_path: Path) -> None:
    job = watched_jobs.Job(world=2, every=50, dropout=False).attempt(0, 0, 740).attempt(1, 700, 1200, ends=True)
    full, summed = job.run(), _with_ranges(job, tmp_path)
    lines = [training.lineage_of(run) for run in (full, summed)]
    both = [[*job_steps._records(known, is_summed=True)] for known in lines]
    assert len(both[1]) < len(both[0]) / 2
    totals = [sum(record.end - record.start for record in records) for records in both]
    assert totals[1] == pytest.approx(totals[0], rel=1e-3)
    spans = [{(r.epoch, r.rank, r.step) for r in records if 700 <= r.step <= 741} for records in both]
    assert spans[0] == spans[1]
    assert [*job_steps._records(lines[1])] and len([*job_steps._records(lines[1])]) == len(both[0])
    assert training.redone(lines[0]) == training.redone(lines[1]) == tuple(range(701, 741))
    costs = [training.checkpoint_cost.step_time(known) for known in lines]
    assert costs[0] and costs[1] and costs[1].step_s == pytest.approx(costs[0].step_s, rel=0.05)


def test_lines_of_signal_handlers_follow_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path / "a")
    original = thinned_steps._copy

    def interrupted(*args: Any) -> None:
        original(*args)
        for number in (1, 2, 3):
            recorded.recorder.line("claim", what="point", id=number)

    monkeypatch.setattr(thinned_steps, "_copy", interrupted)
    for n in range(1, 200):
        recorded.step(n)
        if recorded.recorder._tail and recorded.recorder._tail._last:
            break
    assert [claim.id for claim in recorded.read().of(watch.Claim)] == [1, 2, 3]
