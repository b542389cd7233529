"""Which algorithms can do a case, and which of them ``auto`` takes: the fastest by the cost model on the probed links. Without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...model import algorithm as model
from ..open_mpi import names as mpi
from . import cases, expected_cost, known_algorithms, link_fit

#: Expected times that differ by less count as equal: the model is not more accurate.
EQUAL = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen algorithm. ``seconds``: name -> expected time, the fastest first; ``name`` is equal to the fastest."""

    name: str
    seconds: dict[str, float]
    why: str


def infeasible(item: cases.Item, world: int) -> Iterator[str]:
    """Why ``item`` cannot be measured among ``world`` ranks, each as ``name: why``."""
    try:
        algorithm = known_algorithms.find(item.algorithm)
    except ValueError as error:
        yield f"algorithm: {error}"
        return
    problems = list(cases.unfit(item, world, algorithm))
    if not problems and mpi.is_open_mpi(item.algorithm):
        problems += mpi.unfit(cases.cases([item], world)[0])
    if not problems and item.algorithm == model.AUTO and not candidates(cases.cases([item], world)[0]):
        problems.append(f"algorithm: none does {item.operation} of {item.bytes} bytes among {world} ranks (got 'auto')")
    yield from problems


def candidates(case: cases.Case) -> tuple[model.Chosen, ...]:
    """Every algorithm that can do this case."""
    able = known_algorithms.able(case.item.operation, case.ranks)
    return tuple(algorithm for algorithm in able if not cases.unequal(case, algorithm))


def choose(
    case: cases.Case,
    among: Iterable[model.Chosen],
    link: link_fit.Fit | None,
    tiers: expected_cost.Uplinks | None = None,
) -> Choice:
    """The fastest by Cost.seconds. If others are within EQUAL of it, the first by name, so that noise of the probe does not
    decide. Without a link (one rank) all times are 0."""
    alpha, beta = (link.alpha, link.beta) if link else (0.0, 0.0)
    operation = case.item.operation
    expected = {
        algorithm.name: expected_cost.cost(case, algorithm, tiers).seconds(case.item.bytes, alpha, beta)
        for algorithm in among
    }
    if not expected:
        raise ValueError(f"no algorithm does {operation} of {case.item.bytes} bytes among {case.ranks} ranks")
    ordered = dict(sorted(expected.items(), key=lambda item: (item[1], item[0])))
    best = next(iter(ordered.values()))
    equal = sorted(name for name, seconds in ordered.items() if seconds <= best * (1 + EQUAL))
    name, others = equal[0], [item for item in ordered.items() if item[0] not in equal]
    why = f"the model expects {_ms(ordered[name])}"
    if len(equal) > 1:
        why += f", no more than {EQUAL:.0%} from {', '.join(equal[1:])}"
    if others:
        why += f", {_less(best, others[0][1])} {others[0][0]}"
    why += f"; alpha {alpha * 1e6:.1f} us, beta {beta * 1e9:.3f} ns/B"
    if tiers:
        why += f"; ranks {_behind(tiers.groups)} behind shared uplinks"
    return Choice(name=name, seconds=ordered, why=why)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _behind(leaves: Sequence[int]) -> str:
    """``0,1 / 2,3``: the ranks of each switch."""
    groups = ([str(rank) for rank, leaf in enumerate(leaves) if leaf == switch] for switch in dict.fromkeys(leaves))
    return " / ".join(",".join(ranks) for ranks in groups)


def _less(best: float, second: float) -> str:
    return f"{(second - best) / second:.0%} less than"
