"""``auto``: the algorithm that the cost model expects to be fastest on the links that were probed. Pure, without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..model import algorithm as model
from . import cases, expected, fit, known


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``seconds``: name -> expected time, the fastest first."""

    name: str
    seconds: dict[str, float]
    why: str


def candidates(case: cases.Case) -> tuple[model.Chosen, ...]:
    """Every algorithm that can do this very case."""
    able = known.able(case.item.operation, case.ranks)
    return tuple(one for one in able if not cases.unequal(case, one))


def choose(
    case: cases.Case, among: Iterable[model.Chosen], link: fit.Fit | None, tiers: expected.Uplinks | None = None
) -> Choice:
    """The fastest by Cost.seconds; where several are, the first by name. Without a link (one rank) nothing takes time."""
    alpha, beta = (link.alpha, link.beta) if link else (0.0, 0.0)
    operation = case.item.operation
    found = {one.name: expected.cost(case, one, tiers).seconds(case.item.bytes, alpha, beta) for one in among}
    if not found:
        raise ValueError(f"no algorithm does {operation} of {case.item.bytes} bytes among {case.ranks} ranks")
    ordered = dict(sorted(found.items(), key=lambda one: (one[1], one[0])))
    (name, best), *others = ordered.items()
    why = f"the model expects {_ms(best)}"
    if others:
        why += f", {_margin(best, others[0][1])} {others[0][0]}"
    why += f"; alpha {alpha * 1e6:.1f} us, beta {beta * 1e9:.3f} ns/B"
    if tiers:
        why += f"; nodes in order behind {len(set(tiers.groups))} shared uplinks"
    return Choice(name=name, seconds=ordered, why=why)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _margin(best: float, second: float) -> str:
    share = (second - best) / second if second > 0 else 0.0
    return f"{share:.0%} less than" if share >= 0.005 else "as much as"
