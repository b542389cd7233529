"""Every result of a collective is exact on every rank, and equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .... import views
from ....model import events
from ....model.event import Event
from ....model.events import CaseFacts, CollectivePlan, CollectiveSequence, CollectiveWrong
from ....model.plugin import NoParams as Params
from ....model.run import Run
from ....model.verdict import Verdict

NAME = "results-exact"


def check(run: Run, params: Params) -> Verdict:
    """Judge by the reports of the last gang: each rank checks every result and compares it with the other ranks.

    In a sequence with gaps, each case is checked before and after it, and every iteration whose gaps are long enough.
    """
    gangs = views.gangs(run.history)
    failures = [_wrong(run, event) for event in run.history.of(events.CollectiveWrong)]
    doubts = [*views.not_ended(run.history), *views.not_started(run.history)]
    plan = next(iter(gangs[-1].of(events.CollectivePlan)), None) if gangs else None
    cases = (plan.data.cases or ()) if plan else ()
    if plan is None:
        doubts.append(views.finding("no rank reported a plan of the measurement"))
    elif plan.data.verify is False:
        doubts.append(views.finding("verification was off: --verify true", plan))
    sequences = _sequences(gangs[-1], plan) if gangs and plan else []
    left = sum((part.iterations or 0) - len(part.verified or ()) for part in sequences)
    planned = (
        _planned(cases)
        - len(views.omitted_steps(run.history))
        - left
        + sum(2 * (part.cases or 0) for part in sequences)
    )
    if plan is not None and plan.data.verify is not False:
        doubts += _unproved(gangs[-1], planned, ended=not doubts)
    text = f"{planned} results of {len(cases)} case{'s' * (len(cases) != 1)} exact, all ranks equal"
    if left:
        text += f"; {left} of {_planned(cases)} iterations are not verified: the gaps after them are too short"
    evidence = {"results": planned, "cases": len(cases), **({"not_verified": left} if left else {})}
    return views.conclude(NAME, text, failures=failures, doubts=doubts, evidence=evidence)


def _planned(cases: Sequence[CaseFacts]) -> int:
    return sum(case.iterations or 0 for case in cases)


def _sequences(gang: views.Gang, plan: Event[CollectivePlan]) -> list[CollectiveSequence]:
    return [event.data for event in gang.of(CollectiveSequence) if event.data.rank == plan.data.rank]


def _unproved(gang: views.Gang, planned: int, *, ended: bool) -> Iterator[views.Finding]:
    """Ranks that verified another number of results than planned."""
    ends = gang.by_rank(events.RankFinished)
    for rank in gang.ranks if ended else ():
        done = ends[rank].data.verified if rank in ends else 0
        if done != planned:
            yield views.finding(f"rank {rank} verified {done or 0} of {planned} results", ends.get(rank))


def _wrong(run: Run, event: Event[CollectiveWrong]) -> views.Finding:
    wrong = event.data
    plan = next((plan for plan in run.history.of(events.CollectivePlan) if plan.epoch == event.epoch), None)
    case = _case(plan, wrong.case)
    where = f"{case}: rank {wrong.rank} ({event.node}), step {wrong.step}"
    if wrong.offset == -1:
        return views.finding(f"{where}: the result differs from that of the first rank of its group", event, plan)
    values = f"expected {_number(wrong.expected)}, got {_number(wrong.got)}"
    return views.finding(f"{where}: element {wrong.offset}: {values}", event, plan)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _case(plan: Event[CollectivePlan] | None, number: int | None) -> str:
    """Operation, algorithm, size and type of the case; empty where the plan does not have it."""
    cases = (plan.data.cases or ()) if plan else ()
    case = next((case for case in cases if case.case == number), None)
    parts = (case.operation, case.algorithm, case.bytes, case.dtype) if case else ()
    return " ".join(str(part) for part in parts if part is not None)
