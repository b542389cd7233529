"""A run at one moment, for ``ccbed top``: nodes with their ranks, steps and speed, faults, and recoveries."""

from __future__ import annotations

from collections.abc import Iterator

from ... import views
from ...app.places import duration, short_list
from ...model import events
from ...model.event import History
from ...model.trial import Trial

#: Seconds over which the steps of a rank are counted.
WINDOW_S = 10.0
_HEAD = ("NODE", "RANKS", "STATE", "STEP", "STEPS/S")
_LAST = {"injected": "injected", "verified": "proved", "healed": "undone", "heal_verified": "undone, proved"}


def lines(name: str, trial: Trial, history: History) -> Iterator[str]:
    """Yield the whole screen."""
    view = views.view(trial, history)
    ranks, epoch = range(trial.world.size), view.epochs - 1
    speed = max((_speed(history, rank, epoch) for rank in ranks), default=0.0)
    made = max((step for rank in ranks for _, step in _steps(history, rank, epoch)), default=0)
    step = f" · step {made}" + (f" of {view.steps}" if view.steps else "") if made else ""
    start = f" · {views.start_name(epoch)}" if epoch > 0 else ""
    yield f"{name} · {view.outcome} {duration(view.duration_s)}{step}{f' · {speed:.3g} steps/s' if speed else ''}{start}"
    rows = [_HEAD, *rows_of(trial, history)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    yield from ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    for fault in view.faults:
        reached = [text for stage, text in _LAST.items() if fault.stages.get(stage) is not None]
        yield f"fault     {fault.fault} on {fault.node}: {fault.unreached or (reached or ['planned'])[-1]}"
    for failover in view.failovers:
        lost = short_list(failover.lost) or f"rank {short_list(map(str, failover.failed_ranks))}"
        back = "not back yet" if failover.ttr_s is None else f"back in {duration(failover.ttr_s)}"
        yield f"recovery  restart {failover.epoch}: {lost} lost, {back}"


def rows_of(trial: Trial, history: History) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each node, spares last."""
    view, begin = views.view(trial, history), history.first(events.RunBegin)
    gangs, planned = views.gangs(history), (begin.data.nodes or {} if begin else {})
    ranks: dict[str, list[int]] = {}
    for rank, node in sorted((gangs[-1].ranks if gangs else {}).items()):
        ranks.setdefault(node, []).append(rank)
    for node in dict.fromkeys((*ranks, *planned)):
        own, epoch = ranks.get(node, []), view.epochs - 1
        idle = "lost" if node in view.lost else str(planned[node].role) if node in planned else "idle"
        state = ("running" if view.outcome == "running" else view.outcome) if own and node not in view.lost else idle
        steps = [known[-1][1] for rank in own if len(known := _steps(history, rank, epoch)) > 1]
        speeds = [speed for rank in own if (speed := _speed(history, rank, epoch))]
        shown = (str(min(steps)) if steps else "", f"{min(speeds):.3g}" if speeds else "")
        yield (str(node), short_list(map(str, own)), state, *shown)


def _steps(history: History, rank: int, epoch: int) -> list[tuple[float, int]]:
    """Return (time, number of steps by then) for each report of a rank in an attempt."""
    notes = (event for event in history.of(events.RankStep, events.Progress) if event.epoch == epoch)
    own = (event for event in notes if event.data.rank == rank)
    return [(event.t, (event.data.step or 0) + (getattr(event.data, "offset", None) or 0)) for event in own]


def _speed(history: History, rank: int, epoch: int) -> float:
    """Steps per second, lately; 0 where it is not known."""
    steps = _steps(history, rank, epoch)
    lately = [entry for entry in steps if entry[0] >= steps[-1][0] - WINDOW_S]
    took_s = lately[-1][0] - lately[0][0] if lately else 0.0
    return (lately[-1][1] - lately[0][1]) / took_s if took_s else 0.0
