"""The tables of the reports as values: verdicts with evidence, failovers, faults, and the events that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ... import views
from ...core.verdict import rungs, sentence
from ...model.event import Event
from ...model.events import RankError, RankExit
from ...model.frozen import dataclass
from ...model.run import Run
from ...model.trial import Trial
from ...model.verdict import Verdict
from ...views import Failover, FaultView, RunView, mapping, probes
from ...views.training import RecoveryFigures
from . import bundle_links, event_sentences, page_facts
from .node_timeline import milliseconds

#: Events that the page leaves out, unless a verdict names them.
QUIET = (
    "progress",
    "timer",
    "gather",
    "rank.inside",
    "rank.start",
    "rank.joining",
    "rank.joined",
    "note",
    "agent.ready",
    "store.open",
)
STAGES = {name: name for name in ("planned", "armed", "injected", "verified")} | {
    "healed": "undone", "heal verified": "undoing verified",
}  # fmt: skip
EVENTS = 300
#: Keys of evidence, and what people call them.
_NAMES = {"twin": "reference run", "control": "restarted reference"}
#: A start of the ranks, as a key of evidence.
_START = re.compile(r"^attempt (\d+)")
#: Events that a text names as evidence of one finding.
LISTED = 20
#: Of a script that reports no steps.
UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A piece of evidence: its name (empty: a finding), what it says, and the events that it rests on."""

    name: str
    text: str
    events: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """An event. ``line``: of history.jsonl; ``log``: address of the log of the rank that ended."""

    seq: int
    line: int
    t: str
    type: str
    f: str
    node: str
    attempt: str
    text: str
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A verdict. ``parts``: (attempt, part, state, reason) of the state of a job that was resumed."""

    outcome: str
    check: str
    text: str
    evidence: tuple[Evidence, ...]
    parts: tuple[tuple[str, str, str, str], ...] = ()


def ranked(run: Run) -> list[Verdict]:
    """The verdicts, worst first, else in the order of the checkers; skipped ones last."""
    order = (*rungs.PRECEDENCE, "skipped")
    return sorted(run.verdicts, key=lambda verdict: order.index(verdict.outcome))


def verdicts(run: Run) -> list[Row]:
    return [
        Row(
            outcome=verdict.outcome,
            check=verdict.check,
            text=verdict.text,
            evidence=_evidence(verdict),
            parts=_parts(verdict),
        )
        for verdict in ranked(run)
    ]


def cited(judged: Iterable[Verdict]) -> frozenset[int]:
    """The numbers of all events that verdicts name."""
    return frozenset(n for verdict in judged for piece in _evidence(verdict) for n in piece.events)


def numbers(key: str, value: Any) -> tuple[int, ...]:
    """The event numbers in a piece of evidence; none where the name does not speak of events."""
    if key not in ("seq", "seqs", "event", "events") and not key.endswith(("_seq", "_seqs")):
        return ()
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    return tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool))


def events(run: Run) -> list[EventRow]:
    """The shown events, at most ``EVENTS`` rows besides those that verdicts name."""
    history, named = run.history, cited(run.verdicts)
    shown_events = [event for event in history.events if event.f not in QUIET or event.seq in named]
    shown = {event.seq for event in shown_events[:EVENTS]} | named
    lines = {id(event): number for number, event in enumerate(history.events, start=1)}
    logs = views.log_paths(run)
    return [_event(event, lines[id(event)], logs) for event in shown_events if event.seq in shown]


def proofs(run: Run, verdict: Verdict) -> Iterator[str]:
    """The evidence of a verdict as sentences, each event with its line in history.jsonl."""
    lines = {event.seq: (number, event) for number, event in enumerate(run.history.events, start=1)}
    for piece in _evidence(verdict):
        if piece.text != verdict.text and not (piece.name and piece.events):
            yield f"{piece.name}: {piece.text}" if piece.name else piece.text
        for seq in piece.events[:LISTED]:
            if seq in lines:
                number, event = lines[seq]
                yield f"history.jsonl:{number}: {event.t:.3f} s, {event_sentences.sentence(event)}"
            else:
                yield f"event {seq}: not in this history"


def failovers(trial: Trial, view: RunView) -> list[dict[str, str]]:
    """One mapping per failover, in the words of the page."""
    rows = []
    counted = view.step is not None
    for failover in view.failovers:
        step = sentence.lost_step(trial, view, failover)
        rows.append(
            {
                "number": str(failover.index + 1),
                "title": _title(view, failover, step),
                "detected": detected(failover.detect_s, failover.detector),
                "policy": ", ".join(f"{node} by {how}" for node, how in failover.policies.items()) or "none",
                "resumed": resumed(failover.resume_step, failover.resume_name) if counted else UNKNOWN,
                "redone": steps(failover.lost_steps) if counted else UNKNOWN,
                "ttr": moment(failover.ttr_s) if counted else UNKNOWN,
                "caught_up": moment(failover.caught_up_s) if counted else UNKNOWN,
            }
        )
    return rows


def recoveries(known: Sequence[RecoveryFigures]) -> list[list[tuple[str, str]]]:
    """Return for each failover what is known beside its phases, as (name, text)."""
    return [[(name, text) for name, text in _recovery(item) if text] for item in known]


def _recovery(known: RecoveryFigures) -> Iterator[tuple[str, str]]:
    times = {
        "first step at reduced strength": known.reduced_s, "first step of every rank at full strength": known.full_s,
        "lost work regained": known.regained_s, "longest stall of committed progress": known.stall_s,
    }  # fmt: skip
    yield from ((name, "" if value is None else moment(value)) for name, value in times.items())
    yield "state that was read", "" if known.state_bytes is None else f"{known.state_bytes / 1e6:,.1f} MB"
    yield "checkpoint on", known.tier or ""
    yield "torch.compile", "" if known.is_compiled is None else "on" if known.is_compiled else "off"


def faults(fault_views: Sequence[FaultView]) -> list[dict[str, Any]]:
    return [
        {
            "id": fault.id,
            "fault": fault.fault,
            "target": fault.node or (f"rank {fault.rank}" if fault.rank is not None else "not resolved"),
            "exact": "exact" if fault.exact else "observed",
            "stages": [(word, fault.stages.get(stage)) for stage, word in STAGES.items()],
            "unreached": fault.unreached,
        }
        for fault in fault_views
    ]


def probed(run: Run) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the figures of probed nodes: a column for each node; no row where no node was probed."""
    rows = probes.rows(run.history)
    names = list(dict.fromkeys(figure.node for row in rows for figure in row.nodes))
    return ["figure", "unit", *names, "spread of nodes"], [_figures(row, names) for row in rows]


def _figures(row: probes.FigureRow, names: Sequence[str]) -> list[str]:
    known = {figure.node: figure for figure in row.nodes}
    cells = [_median(known[name]) if name in known else "-" for name in names]
    return [row.name, row.unit, *cells, "-" if row.spread is None else f"{row.spread:.1%}"]


def _median(figure: probes.NodeFigure) -> str:
    value, spread = figure.median, figure.spread
    return (f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}") + ("" if spread is None else f" ±{spread:.0%}")


def not_probed(run: Run) -> list[str]:
    """Return what could not be measured, with the reason and the nodes."""
    return [f"{what}: {why} ({', '.join(nodes)})" for (what, why), nodes in probes.missing(run.history).items()]


def moment(value: float | None) -> str:
    return "not reached" if value is None else milliseconds(value) if value < 1 else sentence.seconds(value)


def detected(seconds: float | None, detector: str) -> str:
    """``4 ms, by node.exit``; of an unplanned loss only the detector is known."""
    by = f"by {detector}" if detector else "by an unknown detector"
    return f"{by}; the moment of the loss is not known" if seconds is None else f"{moment(seconds)}, {by}"


def resumed(step: int | None, name: str | None) -> str:
    if step is None:
        return "not reached"
    return f"step {step:,}" + (f" ({name})" if name else "") if step else "the start"


def steps(lost: Sequence[int]) -> str:
    """``4 (26 to 29)``; gaps are not hidden."""
    if not lost:
        return "0"
    whole = len(lost) > 1 and lost[-1] - lost[0] + 1 == len(lost)
    return f"{len(lost)} ({lost[0]} to {lost[-1]})" if whole else f"{len(lost)} ({page_facts.show(list(lost)[:12])})"


def _title(view: RunView, failover: Failover, step: int | None) -> str:
    lost = ", ".join(failover.lost) or ", ".join(f"rank {rank}" for rank in failover.failed_ranks) or "the worker group"
    where = "" if step is None else f" at step {step:,}"
    return f"{lost} lost{where}, " + (
        sentence.returned(view, failover) if failover.ttr_s is None else f"back in {moment(failover.ttr_s)}"
    )


def _parts(verdict: Verdict) -> tuple[tuple[str, str, str, str], ...]:
    """The rows of ``resume-complete``."""
    if verdict.check != "resume-complete":
        return ()
    return tuple(
        (_START.sub(_started, attempt), part, str(mapping(row).get("result", "")), str(mapping(row).get("text", "")))
        for attempt, rows in mapping(verdict.evidence.get("rows")).items()
        for part, row in mapping(rows).items()
    )


def _started(key: re.Match[str]) -> str:
    return views.start_name(int(key[1]))


def _evidence(verdict: Verdict) -> tuple[Evidence, ...]:
    return tuple(piece for key, value in verdict.evidence.items() for piece in _pieces(key, value))


def _pieces(key: str, value: Any) -> Iterator[Evidence]:
    """A piece for each finding; one for anything else that says something."""
    if key == "findings" and isinstance(value, list | tuple) and all(isinstance(item, Mapping) for item in value):
        for item in value:
            rest = {name: part for name, part in item.items() if name not in ("text", "seq")}
            text = ", ".join(filter(None, (page_facts.show(item.get("text", "")), page_facts.show(rest))))
            yield Evidence(name="", text=text, events=numbers("seq", item.get("seq", ())))
    elif value not in ("", None, [], {}, ()):
        pairs = value.items() if isinstance(value, Mapping) else ()
        text = ", ".join(
            f"{_START.sub(_started, str(name))}: {page_facts.show(item)}" for name, item in pairs
        ) or page_facts.show(value)
        yield Evidence(name=_NAMES.get(key, key), text=text, events=numbers(key, value))


def _event(event: Event, line: int, logs: Mapping[tuple[str, int, int], str]) -> EventRow:
    log = ""
    if isinstance(event.data, RankError | RankExit) and event.node:
        log = logs.get((event.node, event.data.rank, event.epoch or 0), "")
    return EventRow(
        seq=event.seq, line=line, t=f"{event.t:.3f}", type=event.type, f=event.f, node=event.node or "",
        attempt="" if event.epoch is None else views.start_name(event.epoch), text=event_sentences.sentence(event),
        log=bundle_links.address(log) if log else "",
    )  # fmt: skip
