"""The end of a run on the terminal: failovers, what was lost, verdicts, one sentence, what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import views
from ...core.verdict import judge, sentence
from ...model import codec
from ...model.event import History
from ...model.events import FaultActDone, FaultHealDone, RankError, RankExit, RunBegin
from ...model.launch import Result
from ...model.run import Run
from ...model.verdict import Verdict
from ...store import bundle
from ..inputs.session import Session
from .terminal import Terminal, run_path

_MARKS = {"pass": "good", "fail": "bad", "unknown": "warn", "skipped": "warn"}
_WORDS = {0: "PASS", 1: "FAIL", 2: "UNKNOWN", 4: "BROKEN", 130: "INTERRUPTED"}
_WIDTH = 100
#: Lines of a log that are shown of the rank to blame.
_TAIL = 8
#: How the traceback of a report that broke is named.
_FAILED = "-failed.txt"


def show(session: Session, result: Result, *, as_json: bool = False) -> int:
    """Print how the run ended; returns its exit code."""
    if as_json:
        session.terminal.json(document(result))
        return result.code
    directory, code, terminal = Path(result.directory), result.code, session.terminal
    run = _judged(result)
    seen = views.view(run.trial, run.history, run.files.steps())
    terminal.lines(_failovers(run, seen))
    terminal.lines(_collectives(run, directory))
    for line in verdicts(terminal, run.verdicts):
        terminal.line(line)
    if run.format < 2:
        terminal.line(f"note      {views.NOT_COMPARED}")
    terminal.lines(_judging(result, run))
    if result.obstacle:
        terminal.line(f"not saved verdicts and report: {result.obstacle}")
    terminal.lines(_unloaded(session, directory))
    if code and code != 130:
        terminal.lines(_blame(run))
    word = _WORDS.get(code, "FAIL")
    terminal.line(
        f"{terminal.style(f'{word:<9}', word)} {sentence.sentence(run.trial, seen, run.verdicts)}     exit {code}"
    )
    terminal.lines(_broken(directory))
    terminal.lines(_next(result))
    return code


def saved(directory: Path) -> Result:
    """The result of a run that was judged before."""
    run = bundle.load(directory)
    outcome, _, kind = views.ending(run.history)
    code = judge.exit_code(run.verdicts, outcome, kind)
    return Result(run=directory.name, directory=str(directory), code=code, verdicts=run.verdicts)


def document(result: Result) -> dict[str, Any]:
    """The same for programs."""
    run = _judged(result)
    seen = views.view(run.trial, run.history, run.files.steps())
    measured = _measured(run)
    return {
        "run": Path(run.directory).name,
        "directory": run.directory,
        "exit": result.code,
        "format": run.format,
        **({"note": views.NOT_COMPARED} if run.format < 2 else {}),
        "sentence": sentence.sentence(run.trial, seen, run.verdicts),
        "view": codec.plain(seen),
        "verdicts": codec.plain(run.verdicts),
        **({"changes": codec.plain(result.changes)} if result.changes else {}),
        **({"unsaved": list(result.unsaved)} if result.unsaved else {}),
        **({"not_saved": result.obstacle} if result.obstacle else {}),
        **({"collectives": measured} if measured else {}),
        **({"reports_failed": failed} if (failed := _failed(Path(run.directory))) else {}),
    }


def _judged(result: Result) -> Run:
    return replace(bundle.load(Path(result.directory), judged=False), verdicts=result.verdicts)


def _judging(result: Result, run: Run) -> Iterator[str]:
    """What a reader must know of how the run was judged, this time and before."""
    begin = run.history.first(RunBegin)
    if begin and begin.data.code not in (None, run.code):
        yield "note      judged by another version of ccbed than the one that drove the run"
    another = [one.check for one in result.verdicts if judge.JUDGED_BY in one.evidence]
    if another:
        yield f"note      judged by {judge.ANOTHER_VERSION}: {', '.join(another)}"
    for check, (before, now) in result.changes.items():
        yield f"changed   {check}: the saved verdict is {before}, this one is {now}"
    if result.unsaved:
        yield f"unsaved   verdicts.json and report/ are left as they are: not judged now: {', '.join(result.unsaved)}"


def _unloaded(session: Session, directory: Path) -> Iterator[str]:
    """Plugins of the run that this invocation did not load: what they would check, draw or run is missing."""
    from ... import plugins

    if missing := plugins.unloaded(directory / bundle.PLUGINS, session.catalogue):
        where = f"--plugins {run_path(directory)}/{bundle.PLUGINS}"
        yield f"note      plugins of this run that are not loaded: {', '.join(missing)} ({where})"


def _collectives(run: Run, directory: Path) -> Iterator[str]:
    if views.is_collective(run.history):
        from . import collective

        yield from collective.lines(run, directory)


def _measured(run: Run) -> dict[str, Any] | None:
    if not views.is_collective(run.history):
        return None
    from . import collective

    return collective.document(run)


def verdicts(terminal: Terminal, found: tuple[Verdict, ...]) -> Iterator[str]:
    """Those that pass share lines; each other one has its own, with its reason and the numbers of its events."""
    label = "verdicts "
    good = terminal.style(f"{'pass':<7}", "good")
    for outcome in ("fail", "unknown", "skipped"):
        for names, text in _alike([one for one in found if one.outcome == outcome]):
            word = terminal.style(f"{outcome:<7}", _MARKS[outcome])
            yield f"{label} {word} {names}: {text}"
            label = " " * len(label)
    for row in _rows([f"{one.check} ({one.text})" for one in found if one.outcome == "pass"]):
        yield f"{label} {good} {row}"
        label = " " * len(label)


def _alike(found: list[Verdict]) -> Iterator[tuple[str, str]]:
    """Checks that say the same share a line."""
    grouped: dict[str, list[str]] = {}
    for verdict in found:
        grouped.setdefault(f"{verdict.text}{_events(verdict)}", []).append(verdict.check)
    return ((", ".join(checks), text) for text, checks in grouped.items())


def _events(verdict: Verdict) -> str:
    numbers = verdict.evidence.get("events") or verdict.evidence.get("seq")
    listed = ", ".join(map(str, numbers)) if isinstance(numbers, list | tuple) else str(numbers or "")
    return f" (events {listed})" if listed else ""


def _rows(items: list[str]) -> Iterator[str]:
    row = ""
    for item in items:
        if row and len(row) + len(item) > _WIDTH:
            yield row
            row = ""
        row = f"{row} · {item}" if row else item
    if row:
        yield row


def _failovers(run: Run, seen: views.RunView) -> Iterator[str]:
    for one in seen.failovers:
        parts = " | ".join(f"{name} {seconds * 1000:.0f}" for name, seconds in one.phases)
        total = f" = TTR {one.ttr_s * 1000:.0f} ms" if one.ttr_s is not None else f"; {sentence.returned(seen, one)}"
        later = f"      caught up +{one.caught_up_s * 1000:.0f} ms" if one.caught_up_s is not None else ""
        yield f"failover  {parts}{total}{later}"
    redone = sorted({step for one in seen.failovers for step in one.lost_steps})
    if seen.failovers and seen.steps:
        span = f" ({_span(redone)})" if redone else ""
        good = f" · goodput {seen.goodput:.0%} of {seen.duration_s:.2f} s" if seen.goodput is not None else ""
        times = sum(len(one.lost_steps) for one in seen.failovers)  # a step may be lost in several failovers
        yield f"lost      {sentence.count(times, 'step')}{span} redone{good}"
    if healed := _healed(run.history):
        yield f"healed    {healed}"


def _healed(history: History) -> str:
    acted = {event.node for event in history.of(FaultActDone)}
    healed = {event.node for event in history.of(FaultHealDone)}
    if not acted:
        return ""
    left = sorted(str(node) for node in acted - healed)
    if left:
        return f"not proved for {', '.join(left)}: ccbed status"
    return f"{', '.join(sorted(map(str, healed)))} back and warm; the bed is as `up` left it"


def _span(steps: list[int]) -> str:
    whole = steps[-1] - steps[0] + 1 == len(steps)
    return f"{steps[0]}-{steps[-1]}" if whole and len(steps) > 1 else ", ".join(map(str, steps))


def _blame(run: Run) -> Iterator[str]:
    """The last lines of the log of the first rank that failed by itself, or of the one that it blames."""
    failed = next((e for e in run.history.of(RankError, RankExit) if _is_failure(e.data)), None)
    if failed is None or failed.node is None:
        return
    rank, node = failed.data.rank, failed.node
    gang = next((one for one in views.gangs(run.history) if one.epoch == (failed.epoch or 0)), None)
    if gang and rank in gang.ranks:
        rank, _ = views.blamed(gang, rank)
        node = gang.ranks[rank]
    tail = run.files.log(node, rank, failed.epoch or 0).splitlines()[-_TAIL:]
    if tail:
        yield f"log       rank {rank} on {node}, epoch {failed.epoch or 0}, last lines:"
        yield from (f"          {line}" for line in tail)


def _is_failure(payload: RankError | RankExit) -> bool:
    return (payload.code or 0) > 0 if isinstance(payload, RankExit) else payload.kind is not None


def _failed(directory: Path) -> list[str]:
    """The reports that broke, by name."""
    return sorted(path.name.removesuffix(_FAILED) for path in (directory / bundle.REPORT).glob(f"*{_FAILED}"))


def _broken(directory: Path) -> Iterator[str]:
    """The verdicts stand without them; that they are missing is said."""
    for name in _failed(directory):
        where = run_path(directory)
        yield f"report    {name} could not be written (a defect); why: {where}/{bundle.REPORT}/{name}{_FAILED}"


def _next(result: Result) -> Iterator[str]:
    directory = Path(result.directory)
    where = run_path(directory)
    ccbed = f"ccbed --plugins {where}/{bundle.PLUGINS}" if (directory / bundle.PLUGINS).is_dir() else "ccbed"
    if result.code == 130 and not bundle.is_sealed(directory):
        yield f"next      {ccbed} resume {where}"
        return
    page = directory / bundle.REPORT / "index.html"
    report = f"report    {where}/{bundle.REPORT}/index.html      " if page.exists() else ""
    yield f"{report}again: {ccbed} run {where}/{bundle.TRIAL}      recheck: {ccbed} check {where}"
