"""Every collective gave exactly what it must give, on every rank, and the same on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .. import views
from ..model.event import Event
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
    failures = [_wrong(run, event) for event in run.history.of("collective.wrong")]
    doubts = [*views.unended(run.history), *views.unstarted(run.history)]
    plan = next(iter(gangs[-1].of("collective.plan")), None) if gangs else None
    cases = views.listing(plan.value.get("cases")) if plan else []
    if plan is None:
        doubts.append(views.found("no rank said what was measured"))
    elif not plan.value.get("verify", True):
        doubts.append(views.found("verification was off: --verify true", plan))
    else:
        doubts += _unproved(gangs[-1], _wanted(cases), ended=not doubts)
    text = f"{_wanted(cases)} results of {len(cases)} cases exact, all ranks equal"
    evidence = {"results": _wanted(cases), "cases": len(cases)}
    return views.conclude(NAME, text, failures=failures, doubts=doubts, evidence=evidence)


def _wanted(cases: Sequence[Any]) -> int:
    return sum(views.whole(views.mapping(case).get("iterations")) or 0 for case in cases)


def _unproved(gang: views.Gang, wanted: int, *, ended: bool) -> Iterator[views.Finding]:
    """Ranks that have not verified as many results as were planned."""
    ends = gang.by_rank("rank.finished")
    for rank in gang.ranks if ended else ():
        done = views.whole(ends[rank].value.get("verified")) if rank in ends else 0
        if done != wanted:
            yield views.found(f"rank {rank} verified {done or 0} of {wanted} results", ends.get(rank))


def _wrong(run: Run, event: Event) -> views.Finding:
    value = event.value
    plan = next((one for one in run.history.of("collective.plan") if one.epoch == event.epoch), None)
    case = _case(plan, views.whole(value.get("case")))
    what = " ".join(str(case[name]) for name in ("operation", "algorithm", "bytes", "dtype") if name in case)
    where = f"rank {value.get('rank')} ({event.node}), step {value.get('step')}"
    if views.whole(value.get("offset")) == -1:
        return views.found(f"{what}: {where}: another result than the first rank of its group", event, plan)
    return views.found(
        f"{what}: {where}: element {value.get('offset')}: "
        f"expected {_number(value.get('expected'))}, got {_number(value.get('got'))}",
        event,
        plan,
    )


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _case(plan: Event | None, number: int | None) -> dict[str, Any]:
    cases = views.listing(plan.value.get("cases")) if plan else []
    return next((dict(views.mapping(one)) for one in cases if views.mapping(one).get("case") == number), {})
