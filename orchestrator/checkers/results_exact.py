"""Every collective gave exactly what it must give, on every rank, and the same on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .. import views
from ..model.event import Event
from ..model.events import CaseFacts, CollectivePlan, CollectiveWrong, RankFinished
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False
NAME = "results-exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """By what the ranks of the last gang say: each compares every result, and all compare with each other."""
    gangs = views.gangs(run.history)
    failures = [_wrong(run, event) for event in run.history.of(CollectiveWrong)]
    doubts = [*views.unended(run.history), *views.unstarted(run.history)]
    plan = next(iter(gangs[-1].of(CollectivePlan)), None) if gangs else None
    cases = (plan.data.cases if plan else None) or ()
    if plan is None:
        doubts.append(views.found("no rank said what was measured"))
    elif plan.data.verify is False:
        doubts.append(views.found("verification was off: --verify true", plan))
    else:
        doubts += _unproved(gangs[-1], _wanted(cases), ended=not doubts)
    text = f"{_wanted(cases)} results of {len(cases)} cases exact, all ranks equal"
    evidence = {"results": _wanted(cases), "cases": len(cases)}
    return views.conclude(NAME, text, failures=failures, doubts=doubts, evidence=evidence)


def _wanted(cases: Sequence[CaseFacts]) -> int:
    return sum(case.iterations or 0 for case in cases)


def _unproved(gang: views.Gang, wanted: int, *, ended: bool) -> Iterator[views.Finding]:
    """Ranks that have not verified as many results as were planned."""
    ends = gang.by_rank(RankFinished)
    for rank in gang.ranks if ended else ():
        done = ends[rank].data.verified if rank in ends else 0
        if done != wanted:
            yield views.found(f"rank {rank} verified {done or 0} of {wanted} results", ends.get(rank))


def _wrong(run: Run, event: Event[CollectiveWrong]) -> views.Finding:
    data = event.data
    plan = next((one for one in run.history.of(CollectivePlan) if one.epoch == event.epoch), None)
    case = _case(plan, data.case)
    named = (case.operation, case.algorithm, case.bytes, case.dtype)
    what = " ".join(str(name) for name in named if name is not None)
    where = f"rank {data.rank} ({event.node}), step {data.step}"
    if views.whole(data.offset) == -1:
        return views.found(f"{what}: {where}: another result than the first rank of its group", event, plan)
    return views.found(
        f"{what}: {where}: element {data.offset}: expected {_number(data.expected)}, got {_number(data.got)}",
        event,
        plan,
    )


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _case(plan: Event[CollectivePlan] | None, number: int | None) -> CaseFacts:
    cases = (plan.data.cases if plan else None) or ()
    return next((case for case in cases if case.case == number), CaseFacts.read({}))
