"""Every planned fault was armed, injected and verified on the right node, and undone, in that order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import views
from ..model import events
from ..model.event import Event
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.trial import INSIDE
from ..model.verdict import Verdict
from ..views import training

ALWAYS = True

#: A fault that is not proved makes the verdict unknown, never a pass.
UNPROVED = "fault not proved"


def check(run: Run, params: Params) -> Verdict:
    """Judge by the events of each fault, from its plan to its healing."""
    traces = views.traces(run.trial, run.history)
    failures = [*_unplanned(run), *(finding for trace in traces for finding in _wrong_acts(run, trace))]
    times = views.clocks(run.history)
    held = run.history.of(events.RankHeld)
    failures += [finding for trace in traces for finding in _held_too_early(run, trace)]
    doubts = [
        *(finding for trace in traces for finding in _gaps(run, trace, times, held)),
        *views.not_ended(run.history),
    ]
    doubts += [finding for trace in traces for finding in _survived(run, trace, times)]
    doubts += [finding for trace in traces for finding in _undone(run, trace, times)]
    if not any(views.not_ended(run.history)):
        failures += [finding for trace in traces for finding in _unhealed(trace) if trace.is_proved]
    return views.conclude("fault-verified", _text(traces), failures=failures, doubts=doubts)


def _text(traces: tuple[views.FaultTrace, ...]) -> str:
    if not traces:
        return "no fault was planned"
    named = ", ".join(f"{trace.plan.fault} {trace.node}" for trace in traces)
    return f"{named}: injected, verified and undone"


def _unplanned(run: Run) -> Iterator[views.Finding]:
    """Injections without a planned fault, or before their command."""
    planned = {fault.id for fault in run.trial.faults}
    acts = {event.data.id: event for event in reversed(run.history.of(events.FaultAct))}
    for event in run.history.of(events.FaultInjected):
        id = event.data.id
        if id not in planned:
            yield views.finding(f"{id} was injected but not planned", event)
        elif id not in acts or acts[id].seq > event.seq:
            yield views.finding(f"{id} was injected before its command", event)


def _wrong_acts(run: Run, trace: views.FaultTrace) -> Iterator[views.Finding]:
    """Acts that repeat, or that hit another node than the target."""
    id, injected = trace.plan.id, trace.of(events.FaultInjected)
    if len(injected) > 1:
        yield views.finding(f"{id} was injected {len(injected)} times", *injected)
    resumes = len(run.history.of(events.RunResumed))
    outcomes = [event for act in trace.acts for event in act.outcomes if event.type == "ok"]
    if len(outcomes) > 1 + resumes:
        yield views.finding(f"{id} was acknowledged {len(outcomes)} times", *outcomes)
    for event in (
        *trace.of(events.LeaseArmed),
        *trace.of(events.FaultBefore),
        *injected,
        *trace.of(events.FaultVerified),
        *trace.of(events.FaultLasted),
        *trace.of(events.FaultHealed),
    ):
        if trace.node is not None and event.node != trace.node:
            yield views.finding(f"the target of {id} is {trace.node}, but {event.f} is of {event.node}", event)
    yield from _wrong_target(run, trace)


def _wrong_target(run: Run, trace: views.FaultTrace) -> Iterator[views.Finding]:
    """The resolution must be the named node, or the holder of the named group rank at that time."""
    target, planned = trace.first(events.FaultTarget), trace.plan.node
    if target is None:
        return
    holder: str | None = planned if isinstance(planned, str) else None
    if isinstance(planned, int):
        slots = views.slots_at(run.history, target.seq)
        holder = slots[planned] if planned < len(slots) else None
    if holder not in (None, trace.node):
        yield views.finding(
            f"the target of {trace.plan.id} is {planned}, which was {holder}, but it resolved to {trace.node}", target
        )


def _gaps(run: Run, trace: views.FaultTrace, times: views.Clocks, held: Sequence[Event]) -> Iterator[views.Finding]:
    """Gaps in the proof of a fault."""
    id = trace.plan.id
    unreached, expired = trace.first(events.FaultUnreached), trace.first(events.HoldExpired)
    if unreached is not None:
        reasons = filter(None, (unreached.data.reason, training.why_unreached(run, trace.plan)))
        yield views.finding(f"{UNPROVED}: {id} was not reached: {'; '.join(reasons)}", unreached)
        return
    if expired is not None and not trace.acts:
        yield views.finding(f"{UNPROVED}: the rank that {id} held was not released", expired)
        return
    before = trace.of(events.FaultBefore)
    if before and trace.unproved_reason:
        yield views.finding(f"{UNPROVED}: {trace.unproved_reason} ({id})", *before)
    else:
        yield from _chain(trace)
    over = trace.first(events.LeaseOver)
    if over is not None:
        yield views.finding(f"the time limit of {id} was over: the host agent undid the fault before its time", over)
    if trace.plan.at.exact:
        yield from _hold(trace, times, held)


def _chain(trace: views.FaultTrace) -> Iterator[views.Finding]:
    """planned -> (held) -> target -> command -> armed -> (before) -> injected -> verified -> acknowledged."""
    invoke = trace.acts[0].invoke if trace.acts else None
    outcome = trace.acts[0].ok if trace.acts else None
    exact, inspected = trace.plan.at.exact, trace.inspects or trace.of(events.FaultBefore)
    held = (events.RankHeld,) if exact else ()
    before = (events.FaultBefore,) if inspected else ()
    chain = [
        *((kind.NAME, trace.first(kind)) for kind in (events.FaultPlanned, *held, events.FaultTarget)),
        ("fault.act", invoke),
        *((kind.NAME, trace.first(kind)) for kind in (events.LeaseArmed, *before, events.FaultInjected, events.FaultVerified)),
        ("the outcome of fault.act", outcome),
    ]  # fmt: skip
    last: Event | None = None
    for name, event in chain:
        if event is None:
            failed = next((item.data.reason for act in trace.acts for item in act.outcomes if item.type == "fail"), "")
            yield views.finding(f"{UNPROVED}: {trace.plan.id} has no {name}{failed and f' ({failed})'}", last)
            return
        if last is not None and event.seq < last.seq:
            yield views.finding(f"{UNPROVED}: {name} of {trace.plan.id} comes before {last.f}", event, last)
            return
        last = event


def _hold(trace: views.FaultTrace, times: views.Clocks, all_held: Sequence[Event]) -> Iterator[views.Finding]:
    """The rank was held until the fault had acted; in a collective, another rank was inside the same one.

    ``all_held``: ranks that were held for any fault. A rank that another fault holds at the same point is inside as well.
    """
    id, at, injected = trace.plan.id, trace.plan.at, trace.first(events.FaultInjected)
    held = next((e for e in reversed(trace.of(events.RankHeld)) if injected is None or e.seq < injected.seq), None)
    if held is None or injected is None:
        return
    if held.node != trace.node:
        yield views.finding(f"{id} held a rank of {held.node} but acted on {trace.node}", held, injected)
    if held.data.phase != at.phase or (at.step is not None and held.data.step != at.step):
        yield views.finding(f"{id} did not wait in {at.phase} of step {at.step}", held)
    ended = [
        event for event in (*trace.of(events.RankReleased), *trace.of(events.HoldExpired)) if event.epoch == held.epoch
    ]
    began = trace.began or injected
    early = [event for event in ended if times.before(event, began)]
    unsure = [event for event in ended if times.before(event, began) is None]
    if unsure:
        yield views.finding(
            f"{UNPROVED}: no clock shows whether the rank that {id} held continued before the fault acted", *unsure
        )
    if early:
        yield views.finding(f"{UNPROVED}: the rank that {id} held had continued before the fault acted", *early)
    beside = [e for e in all_held if (e.data.step, e.data.phase) == (held.data.step, held.data.phase)]
    inside = [
        e for e in (*trace.of(events.RankInside), *beside)
        if e.epoch == held.epoch and e.data.rank != held.data.rank
    ]  # fmt: skip
    invoke = trace.acts[0].invoke if trace.acts else injected
    shown = [event for event in inside if times.before(event, injected) or times.before(event, invoke)]
    if at.phase in INSIDE and not shown:
        yield views.finding(f"mid-collective not shown: no other rank was inside when {id} acted", held, injected)


def _held_too_early(run: Run, trace: views.FaultTrace) -> Iterator[views.Finding]:
    """A fault that waits for a checkpoint of a script held its rank before that checkpoint, or too few steps after it."""
    at = trace.plan.at
    for held in trace.of(events.RankHeld) if at.after_save else ():
        ordered = [o for o in run.history.of(events.RankHold) if o.data.hold == trace.plan.id and o.seq < held.seq]
        before = [event for event in run.history.of(events.SaveCommitted) if event.seq < held.seq and event.data.n]
        steps = {(event.epoch, event.data.n) for event in before}
        if not ordered or len(steps) < (at.after_save or 0):
            yield views.finding(
                f"{trace.plan.id} waits for checkpoint {at.after_save}; {len(steps)} were committed", held
            )
        elif (held.data.step or 0) < min(order.data.step or 0 for order in ordered):
            due = min(order.data.step or 0 for order in ordered)
            yield views.finding(f"{trace.plan.id} was held before step {due}, to which it was ordered", held)


def _survived(run: Run, trace: views.FaultTrace, times: views.Clocks) -> Iterator[views.Finding]:
    """Events of the same incarnation after its power was cut: a host that does not respond is no proof alone."""
    verified = trace.first(events.FaultVerified)
    if verified is None or not trace.cuts_power:
        return
    own = [e for e in run.history.events if e.node == trace.node and _shows_life(e, of_host=trace.cuts_host)]
    before = {event.source.incarnation for event in own if event.seq < verified.seq}
    after = [event for event in own if event.source.incarnation in before and times.before(verified, event)]
    if after:
        yield views.finding(
            f"{UNPROVED}: {trace.node} still lived after {trace.plan.id} had cut its power", verified, after[0]
        )


def _undone(run: Run, trace: views.FaultTrace, times: views.Clocks) -> Iterator[views.Finding]:
    """Signs that the state of a verified fault did not last until its healing, or never was."""
    id, verified, lasted = trace.plan.id, trace.first(events.FaultVerified), trace.first(events.FaultLasted)
    for text, event in views.contradictions(trace):
        yield views.finding(f"{UNPROVED}: the evidence of {event.f} of {id} says {text}", event)
    if verified is not None and verified.data.lasts and lasted is None and trace.of(events.FaultHealed):
        yield views.finding(f"{UNPROVED}: {id} was not observed until it was undone", verified)
    if lasted is not None and lasted.data.held is False:
        yield views.finding(
            f"{UNPROVED}: {id} was undone from outside before ccbed undid it ({lasted.data.evidence})", lasted
        )
    if sign := next(views.signs_of_life(run, trace, times), None):
        yield views.finding(f"{UNPROVED}: {sign[0]} on {trace.node} while {id} had stopped it", verified, sign[1])


def _shows_life(event: Event, *, of_host: bool) -> bool:
    """Events of agents and ranks; with ``of_host`` also an exit code that the keeper saw, because the keeper had to end too."""
    if event.source.writer == "keeper":
        return of_host and event.kind is events.NodeExit and event.data.code is not None
    return event.source.writer.startswith(("agent", "rank"))


def _unhealed(trace: views.FaultTrace) -> Iterator[views.Finding]:
    """Injected faults that were not healed, or whose healing was not verified, when the run ended."""
    injected = trace.first(events.FaultInjected)
    if injected is None:
        return
    healed, verified = trace.first(events.FaultHealed), trace.first(events.HealVerified)
    if healed is None or verified is None:
        missing = "undone" if healed is None else "verified as undone"
        yield views.finding(f"{trace.plan.id} on {trace.node} was never {missing}", injected)
    elif not injected.seq < healed.seq <= verified.seq:
        yield views.finding(f"{trace.plan.id}: undoing and its verification are in the wrong order", healed, verified)
