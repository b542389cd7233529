"""Every planned fault was armed, injected and verified on the right node, and healed, in that order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .. import views
from ..model.event import Event
from ..model.events import (
    FaultAct,
    FaultBefore,
    FaultHealed,
    FaultInjected,
    FaultPlanned,
    FaultTarget,
    FaultUnreached,
    FaultVerified,
    HealVerified,
    HoldExpired,
    LeaseArmed,
    LeaseOver,
    NodeExit,
    RankHeld,
    RankInside,
    RankReleased,
    RunResumed,
)
from ..model.payload import Payload
from ..model.run import Run
from ..model.trial import INSIDE
from ..model.verdict import Verdict

ALWAYS = True
TWIN = False

#: A fault that was not proved leaves the verdict unknown, never a pass.
UNPROVED = "fault not proved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """The whole operation of each fault, by its events."""
    traces = views.traces(run.trial, run.history)
    failures = [*_strangers(run), *(one for trace in traces for one in _frauds(run, trace))]
    times = views.clocks(run.history)
    held = run.history.of(RankHeld)
    doubts = [*(one for trace in traces for one in _gaps(trace, times, held)), *views.unended(run.history)]
    doubts += [one for trace in traces for one in _survived(run, trace, times)]
    if not any(views.unended(run.history)):
        failures += [one for trace in traces for one in _unhealed(trace) if trace.changed]
    return views.conclude("fault-verified", _text(traces), failures=failures, doubts=doubts)


def _text(traces: tuple[views.FaultTrace, ...]) -> str:
    if not traces:
        return "no fault was planned"
    named = ", ".join(f"{trace.plan.fault} {trace.node}" for trace in traces)
    return f"{named}: injected, verified and healed"


def _strangers(run: Run) -> Iterator[views.Finding]:
    """Injections that no planned fault and no command of ours stands behind."""
    planned = {fault.id for fault in run.trial.faults}
    asked = {event.data.id: event for event in reversed(run.history.of(FaultAct))}
    for event in run.history.of(FaultInjected):
        id = event.data.id
        if id not in planned:
            yield views.found(f"{id} was injected but not planned", event)
        elif id not in asked or asked[id].seq > event.seq:
            yield views.found(f"{id} was injected before anybody asked for it", event)


def _frauds(run: Run, trace: views.FaultTrace) -> Iterator[views.Finding]:
    """What a fault must never do: act twice, or elsewhere than where it was aimed at."""
    id, injected = trace.plan.id, trace.of(FaultInjected)
    if len(injected) > 1:
        yield views.found(f"{id} was injected {len(injected)} times", *injected)
    resumes = len(run.history.of(RunResumed))
    answers = [event for act in trace.acts for event in act.outcomes if event.type == "ok"]
    if len(answers) > 1 + resumes:
        yield views.found(f"{id} was acknowledged {len(answers)} times", *answers)
    for event in (
        *trace.of(LeaseArmed),
        *trace.of(FaultBefore),
        *injected,
        *trace.of(FaultVerified),
        *trace.of(FaultHealed),
    ):
        if trace.node is not None and event.node != trace.node:
            yield views.found(f"{id} was aimed at {trace.node} but {event.f} is of {event.node}", event)
    yield from _wrong_target(run, trace)


def _wrong_target(run: Run, trace: views.FaultTrace) -> Iterator[views.Finding]:
    """The resolution must be the named node, or the holder of the named group rank at that time."""
    target, asked = trace.first(FaultTarget), trace.plan.node
    if target is None:
        return
    holder: str | None = asked if isinstance(asked, str) else None
    if isinstance(asked, int):
        slots = views.slots_at(run.history, target.seq)
        holder = slots[asked] if asked < len(slots) else None
    if holder not in (None, trace.node):
        yield views.found(
            f"{trace.plan.id} was to hit {asked}, which was {holder}, and was aimed at {trace.node}", target
        )


def _gaps(trace: views.FaultTrace, times: views.Clocks, held: Sequence[Event[RankHeld]]) -> Iterator[views.Finding]:
    """What is missing from the proof."""
    id = trace.plan.id
    unreached, expired = trace.first(FaultUnreached), trace.first(HoldExpired)
    if unreached is not None:
        yield views.found(f"{UNPROVED}: {id} was not reached: {unreached.data.reason or ''}", unreached)
        return
    if expired is not None and not trace.acts:
        yield views.found(f"{UNPROVED}: nobody released the rank that {id} held", expired)
        return
    before = trace.of(FaultBefore)
    if before and trace.unchanged:
        yield views.found(f"{UNPROVED}: {trace.unchanged} ({id})", *before)
    else:
        yield from _chain(trace)
    over = trace.first(LeaseOver)
    if over is not None:
        yield views.found(f"the lease of {id} ran out: it was healed before its time", over)
    if trace.plan.at.exact:
        yield from _hold(trace, times, held)


def _chain(trace: views.FaultTrace) -> Iterator[views.Finding]:
    """planned -> (held) -> target -> asked -> armed -> (before) -> injected -> verified -> acknowledged."""
    asked = trace.acts[0].invoke if trace.acts else None
    answer = trace.acts[0].ok if trace.acts else None
    held = (RankHeld,) if trace.plan.at.exact else ()
    before = (FaultBefore,) if trace.inspects or trace.of(FaultBefore) else ()
    planned: tuple[type[Payload], ...] = (FaultPlanned, *held, FaultTarget)
    acted: tuple[type[Payload], ...] = (LeaseArmed, *before, FaultInjected, FaultVerified)
    chain: list[tuple[str, Event | None]] = [(kind.NAME, trace.first(kind)) for kind in planned]
    chain += [(FaultAct.NAME, asked), *((kind.NAME, trace.first(kind)) for kind in acted)]
    chain += [("the answer to fault.act", answer)]
    last: Event | None = None
    for name, event in chain:
        if event is None:
            yield views.found(f"{UNPROVED}: {trace.plan.id} has no {name}", last)
            return
        if last is not None and event.seq < last.seq:
            yield views.found(f"{UNPROVED}: {name} of {trace.plan.id} comes before {last.f}", event, last)
            return
        last = event


def _hold(trace: views.FaultTrace, times: views.Clocks, all_held: Sequence[Event[RankHeld]]) -> Iterator[views.Finding]:
    """The rank was held until the fault had acted; in a collective, another rank was inside of the same one.

    ``all_held``: ranks that were held for any fault. One that another fault holds at the same point is inside as well.
    """
    id, at, injected = trace.plan.id, trace.plan.at, trace.first(FaultInjected)
    held = next((e for e in reversed(trace.of(RankHeld)) if injected is None or e.seq < injected.seq), None)
    if held is None or injected is None:
        return
    if held.node != trace.node:
        yield views.found(f"{id} held a rank of {held.node} but acted on {trace.node}", held, injected)
    if held.data.phase != at.phase or (at.step is not None and held.data.step != at.step):
        yield views.found(f"{id} was held elsewhere than in {at.phase} of step {at.step}", held)
    released: list[Event] = [*trace.of(RankReleased), *trace.of(HoldExpired)]
    ended = [event for event in released if event.epoch == held.epoch]
    early = [event for event in ended if times.before(event, injected)]
    unsure = [event for event in ended if times.before(event, injected) is None]
    if unsure:
        yield views.found(
            f"{UNPROVED}: no clock tells whether the rank that {id} held went on before the fault acted", *unsure
        )
    if early:
        yield views.found(f"{UNPROVED}: the rank that {id} held had gone on before the fault acted", *early)
    place = (held.data.step, held.data.phase)
    others: list[Event[RankInside | RankHeld]] = [*trace.of(RankInside)]
    others += [event for event in all_held if (event.data.step, event.data.phase) == place]
    inside = [event for event in others if event.epoch == held.epoch and event.data.rank != held.data.rank]
    asked = trace.acts[0].invoke if trace.acts else injected
    shown = [event for event in inside if times.before(event, injected) or times.before(event, asked)]
    if at.phase in INSIDE and not shown:
        yield views.found(f"mid-collective not shown: no other rank was inside when {id} acted", held, injected)


def _survived(run: Run, trace: views.FaultTrace, times: views.Clocks) -> Iterator[views.Finding]:
    """A node whose power was cut says nothing more as the same incarnation: that its host did not answer is no proof alone."""
    verified = trace.first(FaultVerified)
    if verified is None or not trace.cuts_power:
        return
    own = [e for e in run.history.events if e.node == trace.node and _shows_life(e, of_host=trace.cuts_host)]
    before = {event.source.incarnation for event in own if event.seq < verified.seq}
    after = [event for event in own if event.source.incarnation in before and times.before(verified, event)]
    if after:
        yield views.found(
            f"{UNPROVED}: {trace.node} lived on after {trace.plan.id} had cut its power", verified, after[0]
        )


def _shows_life(event: Event, *, of_host: bool) -> bool:
    """What an agent or a rank says; with a host its keeper ends too, so an exit code that it saw is one of a living node."""
    if event.source.writer == "keeper":
        return of_host and event.kind is NodeExit and event.data.code is not None
    return event.source.writer.startswith(("agent", "rank"))


def _unhealed(trace: views.FaultTrace) -> Iterator[views.Finding]:
    """Hygiene: what was injected is undone when the run ends, and that was looked at. What was not proved is no failure."""
    injected = trace.first(FaultInjected)
    if injected is None:
        return
    healed, verified = trace.first(FaultHealed), trace.first(HealVerified)
    if healed is None or verified is None:
        missing = "healed" if healed is None else "seen to be healed"
        yield views.found(f"{trace.plan.id} on {trace.node} was never {missing}", injected)
    elif not injected.seq < healed.seq <= verified.seq:
        yield views.found(f"{trace.plan.id}: healed and verified stand in the wrong order", healed, verified)
