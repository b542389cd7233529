"""The summary of a run: failovers, lost steps, verdicts, one sentence, and the next commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ... import views
from ...app import ended
from ...app.ended import judged
from ...core.verdict import judge, ladder, sentence
from ...model import codec
from ...model.event import History
from ...model.events import FaultActDone, FaultHealDone, ProbeDone, RunBegin, RunEnd
from ...model.launch import Result
from ...model.run import Run
from ...model.verdict import Rung, Verdict
from ...views import training
from . import ladder_lines, probe_table
from .terminal import Invocation as Session
from .terminal import Terminal

_MARKS = {"pass": "good", "fail": "bad", "unknown": "warn", "skipped": "warn"}
#: Exit code -> the outcome of a run.
WORDS = {0: "PASS", 1: "FAIL", 2: "UNKNOWN", 4: "BROKEN", 130: "INTERRUPTED"}
#: The size of the cluster for which the cost of checkpoints is forecast.
NODES = 1000
#: Lines that are shown of the log of the rank that failed.
_TAIL = 8
_NOT_VERIFIED = "not verified"
#: A line of a traceback that names a place, and one of a stack that the stop of a start wrote.
_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,|$)')
_DUMPED = re.compile(r'  File ".+", line \d+ in ')


def show(session: Session, result: Result, *, as_json: bool = False) -> int:
    """Print how the run ended, and return its exit code."""
    if as_json:
        session.terminal.json(document(result))
        return result.code
    directory, code, terminal = Path(result.directory), result.code, session.terminal
    run = judged(result)
    view = training.view(run)
    rungs = ladder.ladder(run, view)
    if rungs and not terminal.verbose:
        _show_training(session, result, run, view, rungs)
        return code
    if not terminal.quiet:
        terminal.lines(_failovers(run, view))
        collectives = views.part_of_collectives(run.history, "sections")
        terminal.lines(collectives.lines(run, directory, width=terminal.width) if collectives else ())
    if run.history.first(ProbeDone) is not None and not terminal.quiet:
        probe_table.show(terminal, run.history)
    shown = tuple(verdict for verdict in run.verdicts if verdict.outcome != "pass" or not terminal.quiet)
    terminal.lines(verdicts(terminal, shown))
    terminal.lines(row for rung in rungs for row in ladder_lines.rung(terminal, rung, rows=0, fix_rows=0))
    terminal.lines(_notes(session, result, run))
    if code and code != 130:
        terminal.lines(_failed_log(run))
    terminal.line(_headline(terminal, code, ladder.headline(run, view, rungs)))
    terminal.lines(_failed_reports(directory))
    if not terminal.quiet:
        terminal.lines(_next(session, result))
    return code


def _show_training(session: Session, result: Result, run: Run, view: views.RunView, rungs: tuple[Rung, ...]) -> None:
    """Print the ladder of a training: at most ``ladder_lines.LINES`` lines of ``ladder_lines.WIDTH`` columns."""
    directory, code, terminal = Path(result.directory), result.code, session.terminal
    head = [] if terminal.quiet else [*ladder_lines.failovers(run, view), *_unhealed(run), *_left_out(run)]
    text = ladder_lines.clipped(ladder.headline(run, view, rungs), indent=25, rows=2)
    end = [_headline(terminal, code, text), *([] if terminal.quiet else _next(session, result))]
    is_logged = bool(code) and code != 130 and view.outcome != "finished"
    log = [""] * 2 * is_logged  # two lines at least
    body = ladder_lines.body(terminal, run, rungs, [*head, *end, *log])
    terminal.lines([*head, *body, *_notes(session, result, run)])
    free = ladder_lines.LINES - ladder_lines.height([*head, *body, *end]) - 1
    if is_logged and free > 0:
        terminal.lines(ladder_lines.clipped(line, indent=0, rows=1) for line in _failed_log(run, free))
    terminal.lines([*end[:1], *_failed_reports(directory), *end[1:]])


def _headline(terminal: Terminal, code: int, text: str) -> str:
    word = WORDS.get(code, "FAIL")
    return f"{terminal.style(f'{word:<9}', word)} {text}     exit {code}"


def _notes(session: Session, result: Result, run: Run) -> Iterator[str]:
    """Yield what to know of this judgement beside the verdicts."""
    if run.format < 2:
        yield f"note      {views.NOT_COMPARED}"
    yield from _judging(result, run)
    if result.obstacle:
        yield f"not saved verdicts and report: {result.obstacle}"
    yield from _unloaded(session, Path(result.directory))


def _left_out(run: Run) -> Iterator[str]:
    """Yield which reference runs did not fit into the budget of a drill."""
    budget_s = views.mapping(run.extras.get("bundle.json")).get("budget_s")
    if budget_s and not (run.twin and run.twin.control):
        what = "restarted reference" if run.twin else "reference run"
        yield f"left out  no {what}: --budget {sentence.seconds(budget_s)}"


def _unhealed(run: Run) -> Iterator[str]:
    if (healed := _healed(run.history)).startswith(_NOT_VERIFIED):
        yield f"undone    {healed}"


def document(result: Result) -> dict[str, Any]:
    run = judged(result)
    view = training.view(run)
    rungs = ladder.ladder(run, view)
    collectives = views.part_of_collectives(run.history, "sections")
    measured = collectives.document(run) if collectives else None
    return {
        "run": Path(run.directory).name,
        "directory": run.directory,
        "exit": result.code,
        "format": run.format,
        **({"note": views.NOT_COMPARED} if run.format < 2 else {}),
        "sentence": ladder.headline(run, view, rungs),
        **(
            {"require": run.trial.require, "accept": list(run.trial.accept), "rungs": codec.plain(rungs)}
            if rungs
            else {}
        ),
        "view": codec.plain(view),
        "verdicts": codec.plain(run.verdicts),
        **({"changes": codec.plain(result.changes)} if result.changes else {}),
        **({"unsaved": list(result.unsaved)} if result.unsaved else {}),
        **({"not_saved": result.obstacle} if result.obstacle else {}),
        **({"collectives": measured} if measured else {}),
        **({"probes": probed} if (probed := probe_table.document(run.history)) else {}),
        **({"reports_failed": failed} if (failed := [*ended.failed_reports(Path(run.directory))]) else {}),
    }


def _judging(result: Result, run: Run) -> Iterator[str]:
    """Yield notes on how this verdict was made, and how it differs from the saved one."""
    begin = run.history.first(RunBegin)
    if begin and begin.data.code not in (None, run.code):
        yield "note      judged by another version of ccbed than the one that drove the run"
    changed = [verdict.check for verdict in result.verdicts if judge.JUDGED_BY in verdict.evidence]
    if changed:
        yield f"note      judged by {judge.ANOTHER_VERSION}: {', '.join(changed)}"
    for check, (before, now) in result.changes.items():
        yield f"changed   {check}: the saved verdict is {before}, this one is {now}"
    if result.unsaved:
        yield f"unsaved   verdicts.json and report/ stay as they are; checks that cannot be judged here: {', '.join(result.unsaved)}"


def _unloaded(session: Session, directory: Path) -> Iterator[str]:
    return (f"note      {text}" for text in ended.unloaded(session.catalogue, directory))


def verdicts(terminal: Terminal, verdicts: tuple[Verdict, ...]) -> Iterator[str]:
    """Yield the verdicts: those that pass share lines, the others have a reason and the numbers of their events."""
    label = "verdicts "
    good = terminal.style(f"{'pass':<7}", "good")
    for outcome in ("fail", "unknown", "skipped"):
        for names, text in _grouped([verdict for verdict in verdicts if verdict.outcome == outcome]):
            word = terminal.style(f"{outcome:<7}", _MARKS[outcome])
            yield f"{label} {word} {names}: {text}"
            label = " " * len(label)
    passed = [f"{verdict.check} ({verdict.text})" for verdict in verdicts if verdict.outcome == "pass"]
    for row in _rows(passed):
        yield f"{label} {good} {row}"
        label = " " * len(label)


def _grouped(verdicts: list[Verdict]) -> Iterator[tuple[str, str]]:
    """Group the checks with the same text."""
    grouped: dict[str, list[str]] = {}
    for verdict in verdicts:
        grouped.setdefault(f"{verdict.text}{_events(verdict)}", []).append(verdict.check)
    return ((", ".join(checks), text) for text, checks in grouped.items())


def _events(verdict: Verdict) -> str:
    numbers = verdict.evidence.get("events") or verdict.evidence.get("seq")
    listed = ", ".join(map(str, numbers)) if isinstance(numbers, list | tuple) else str(numbers or "")
    return f" (events {listed})" if listed else ""


def _rows(items: list[str]) -> Iterator[str]:
    row = ""
    for item in items:
        if row and len(row) + len(item) > ladder_lines.WIDTH:
            yield row
            row = ""
        row = f"{row} · {item}" if row else item
    if row:
        yield row


def _failovers(run: Run, view: views.RunView) -> Iterator[str]:
    for failover in view.failovers:
        redone_s = failover.caught_up_s
        later = f"      lost steps redone after {redone_s * 1000:.0f} ms" if redone_s is not None else ""
        yield f"recovery  {ladder_lines.stages(view, failover)}{later}"
    yield from _cost(run, view)
    if healed := _healed(run.history):
        yield f"undone    {healed}"


def _cost(run: Run, view: views.RunView) -> Iterator[str]:
    """Yield what checkpoints cost a watched script, and what that means on many nodes, where the time to recover is known."""
    lines = training.watched(run)
    if lines is None:
        return
    if time := training.checkpoint_cost.step_time(lines):
        yield f"step      {sentence.seconds(time.step_s)}: {_parts(time)}"
    cost = training.checkpoint_cost.checkpoint_cost(lines)
    if cost is None:
        return
    stall, interval = sentence.seconds(cost.stall_s), sentence.seconds(cost.interval_s)
    yield f"cost      a save stalls training for {stall}, every {interval}: {cost.share:.1%} of the time of the steps"
    recoveries = [failover.ttr_s for failover in view.failovers if failover.ttr_s is not None]
    if recoveries:
        far = training.checkpoint_cost.forecast(cost, max(recoveries), NODES)
        best = f"best interval {sentence.seconds(far.young_s)} (Young), {sentence.seconds(far.daly_s)} (Daly)"
        yield f"          on {NODES:,} nodes, {far.rate * 1000:g} failures per 1,000 node-days: {best}; ETTR {far.ettr:.1%} at {interval}"


def _parts(time: training.checkpoint_cost.StepTime) -> str:
    """Return where the time of a step goes; what was not measured is named."""
    parts = {
        "data": time.data, "forward and backward": time.compute, "collectives": time.communication,
        "checkpoints": time.checkpoint,
    }  # fmt: skip
    measured = [f"{name} {value:.0%}" for name, value in parts.items() if value is not None]
    missing = [name for name, value in parts.items() if value is None and name != "checkpoints"]
    ddp = f"DDP's buckets {sentence.seconds(time.ddp_s)}" if time.ddp_s is not None else ""
    if ddp and "collectives" in missing:
        missing.remove("collectives")
    return "; ".join(filter(None, (", ".join(measured), ddp, f"not measured: {', '.join(missing)}" if missing else "")))


def _healed(history: History) -> str:
    acted = {event.node for event in history.of(FaultActDone)}
    healed = {event.node for event in history.of(FaultHealDone)}
    if not acted:
        return ""
    left = sorted(str(node) for node in acted - healed)
    if left:
        return f"{_NOT_VERIFIED} for {', '.join(left)}: ccbed status"
    begun = views.begin_nodes(history)  # a replacement ends with the run
    back = sorted(str(node) for node in healed if str(node) not in begun or begun[str(node)].incarnation)
    end = history.last(RunEnd)
    is_broken = end is not None and end.data.kind == "infrastructure"
    parts = (f"{', '.join(back)} back and ready" if back else "", "" if is_broken else "the bed is as `up` left it")
    return "; ".join(filter(None, parts))


def _failed_log(run: Run, most: int = _TAIL) -> Iterator[str]:
    """Yield the end of the log of the first rank that failed, or of the rank that it names as the cause."""
    failed = views.failed_rank(run, _TAIL)
    if failed is not None and failed.tail:
        tail = (failed.traceback if all(_DUMPED.match(line) for line in failed.tail) else ()) or failed.tail
        places = [match for line in failed.traceback or tail if (match := _PLACE.search(line))]
        places = [match for match in places if views.standing.is_in_script((match["file"],))] or places
        where = f" at {Path(places[-1]['file']).name}:{places[-1]['line']}" if places else ""
        yield f"log       rank {failed.rank} on {failed.node}, {failed.start}{where}, last lines:"
        yield from (f"          {line}" for line in tail[-most:])


def _failed_reports(directory: Path) -> Iterator[str]:
    for name, file in ended.failed_reports(directory).items():
        yield f"report    {name} could not be written (internal error); traceback: {file}"


def _next(session: Session, result: Result) -> Iterator[str]:
    commands, page = ended.next_commands(result, session.releases), ended.page(Path(result.directory))
    if "released" in commands:
        yield f"next      the bed is released; again: {commands['released']}"
    elif "next" in commands:
        yield f"next      {commands['next']}"
    else:
        report = f"report    {page}      " if page else ""
        recheck = f"      recheck: {commands['recheck']}" if session.terminal.verbose else ""
        yield f"{report}again: {commands['again']}{recheck}"
