"""Which algorithms can do a case, and which of them ``auto`` takes: the fastest by the cost model on the probed links. Without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...model import algorithm as model
from ..open_mpi import names as mpi
from . import cases, expected_cost, known_algorithms, link_fit

#: Expected times that differ by less count as equal in what is printed: the model is not more accurate.
EQUAL = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen algorithm: the fastest. ``seconds``: name -> expected time, the fastest first."""

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
    combining: float = 0.0,
) -> Choice:
    """The fastest by the cost of its schedule; of equal ones the one with fewer start-ups. Without a link (one rank) all are 0."""
    alpha, beta = (link.alpha, link.beta) if link else (0.0, 0.0)
    operation = case.item.operation
    costs = {
        algorithm.name: expected_cost.cost(case, algorithm, tiers, link, combining if link else 0.0)
        for algorithm in among
    }
    if not costs:
        raise ValueError(f"no algorithm does {operation} of {case.item.bytes} bytes among {case.ranks} ranks")
    expected = {name: cost.seconds(case.item.bytes, alpha, beta) for name, cost in costs.items()}
    names = sorted(expected, key=lambda name: (float(f"{expected[name]:.6g}"), costs[name].rounds, name))
    return Choice(
        name=names[0],
        seconds={name: expected[name] for name in names},
        why=f"{_compared(names, expected)}; alpha {alpha * 1e6:.1f} us, beta {beta * 1e9:.3f} ns/B"
        + (f"; ranks {_behind(tiers.groups)} behind shared uplinks" if tiers else ""),
    )


def _compared(names: Sequence[str], expected: Mapping[str, float]) -> str:
    """The expected time of the first, and how far the others are from it."""
    best = expected[names[0]]
    equal = [name for name in names[1:] if expected[name] <= best * (1 + EQUAL)]
    others = [name for name in names[1:] if name not in equal]
    texts = [f"the model expects {_ms(best)}"]
    if equal:
        texts.append(f"no more than {EQUAL:.0%} from {', '.join(equal)}")
    if others:
        texts.append(f"{_less(best, expected[others[0]])} {others[0]}")
    return ", ".join(texts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _behind(leaves: Sequence[int]) -> str:
    """``0,1 / 2,3``: the ranks of each switch."""
    groups = ([str(rank) for rank, leaf in enumerate(leaves) if leaf == switch] for switch in dict.fromkeys(leaves))
    return " / ".join(",".join(ranks) for ranks in groups)


def _less(best: float, second: float) -> str:
    return f"{(second - best) / second:.0%} less than"
