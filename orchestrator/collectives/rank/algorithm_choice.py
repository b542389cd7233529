"""Finds algorithms by name and by operation, which of them can do a case, and which of these ``auto`` takes. Without torch.

The cost model on the probed links says which could be the fastest. Where it cannot tell several apart, they are measured in the
warm-up: a small message takes as long as the ranks wait for a CPU, and the buckets of shaped links let it pass faster.
"""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model import algorithm as model
from ...model import ratio
from ...model.frozen import dataclass, field, replace
from ...rank.exchange import cases
from . import expected_cost, link_fit
from . import mpi_names as mpi

_PACKAGE = f"{__name__.split('.')[0]}.algorithms"
#: Names without a file.
_NO_FILES = (model.LIBRARY, model.AUTO, mpi.MPI)


def names() -> tuple[str, ...]:
    """Every file of algorithms/, and those loaded from the user's folders."""
    folder = Path(__file__).parents[2] / "algorithms"
    stems = {path.stem for path in folder.glob("*.py") if not path.stem.startswith(("_", "."))}
    stems |= {name.rpartition(".")[2] for name in sys.modules if name.startswith(f"{_PACKAGE}.")}
    return tuple(sorted(stem.replace("_", "-") for stem in stems if not stem.startswith("_")))


def find(text: str) -> model.Chosen | None:
    """``chain:segments=16`` -> the algorithm; None for those without a file: library, mpi and auto. Raises ValueError."""
    if mpi.is_open_mpi(text):
        return None
    name, params = model.parse(text)
    if name in (model.LIBRARY, model.AUTO):
        if params:
            raise ValueError(f"{name} has no parameters (got {text!r})")
        return None
    if name not in names():
        raise ValueError(f"unknown algorithm {name}; known: {', '.join((*names(), *_NO_FILES))}")
    return model.choose(text, _module(name))


def doing(operation: str) -> tuple[str, ...]:
    return tuple(name for name in names() if operation in getattr(_module(name), "OPERATIONS", ()))


def problem(text: str, operation: str) -> str:
    """Return why ``text`` is not an algorithm for ``operation``, with those that are; empty if it is."""
    if mpi.is_open_mpi(text):
        return mpi.problem(text, operation)
    good = (*doing(operation), *_NO_FILES)
    try:
        algorithm = find(text)
    except ValueError as error:
        known = text.partition(":")[0].strip() in (*names(), model.LIBRARY, model.AUTO)
        return str(error) if known else f"unknown algorithm; {operation} has {_listed(good)}"
    if algorithm is not None and operation not in algorithm.operations:
        return f"{algorithm.name} does not do {operation}; {operation} has {_listed(good)}"
    return ""


def able(operation: str, world: int) -> Iterable[model.Chosen]:
    """Every algorithm that does ``operation`` among ``world`` ranks, with default parameters."""
    for name in doing(operation):
        algorithm = model.choose(name, _module(name))
        if not algorithm.refuses(operation, world):
            yield algorithm


def _module(name: str) -> Any:
    return importlib.import_module(f"{_PACKAGE}.{name.replace('-', '_')}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


#: Expected times that differ by less count as equal in what is printed: the model is not more accurate.
EQUAL = 0.03
#: Measured times are within these shares of the expected ones, if a start-up takes what it takes on the busy machine.
LEAST_SHARE, MOST_SHARE = 0.9, 1.1
#: The chance that an algorithm is dropped wrongly at a comparison in the warm-up.
LEVEL = 0.05
#: Turns of a measurement in the warm-up. Fewer decide nothing.
LEAST_TURNS, MOST_TURNS = 3, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen algorithm. ``seconds``: name -> expected time, the fastest first.

    ``rivals``: the algorithms that may be the fastest, because the model cannot tell them from the fastest. ``at_once``: name ->
    the most messages at a time; ``measured``: name -> median seconds in the warm-up.
    """

    name: str
    seconds: dict[str, float]
    why: str
    rivals: tuple[str, ...] = ()
    at_once: dict[str, int] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)


def infeasible(item: cases.Item, world: int) -> Iterator[str]:
    """Yield why ``item`` cannot be measured among ``world`` ranks, each as ``name: why``."""
    try:
        algorithm = find(item.algorithm)
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
    every = able(case.item.operation, case.ranks)
    return tuple(algorithm for algorithm in every if not cases.unequal(case, algorithm))


def choose(
    case: cases.Case,
    among: Iterable[model.Chosen],
    link: link_fit.Fit | None,
    tiers: expected_cost.Uplinks | None = None,
    combining: float = 0.0,
    busy_alpha: float = 0.0,
) -> Choice:
    """Choose by the cost of the schedules. Of those within EQUAL of the fastest, the one with the fewest messages at a time
    through a port, because ports do not share their rate quite evenly; then the one with fewer start-ups. Without a link (one
    rank) all are 0.

    ``busy_alpha``: seconds of a start-up as the machine runs the ranks now.
    """
    alpha, beta = (link.alpha, link.beta) if link else (0.0, 0.0)
    operation, size = case.item.operation, case.item.bytes
    algorithms = {algorithm.name: algorithm for algorithm in among}
    if not algorithms:
        raise ValueError(f"no algorithm does {operation} of {size} bytes among {case.ranks} ranks")
    costs = {
        name: expected_cost.cost(case, algorithm, tiers, link, combining if link else 0.0)
        for name, algorithm in algorithms.items()
    }
    expected = {name: cost.seconds(size, alpha, beta) for name, cost in costs.items()}
    names = sorted(expected, key=lambda name: (float(f"{expected[name]:.6g}"), costs[name].rounds, name))
    equal = [name for name in names if expected[name] <= expected[names[0]] * (1 + EQUAL)]
    at_once = {name: most_at_once(case, algorithm) for name, algorithm in algorithms.items()}
    first = min(equal, key=lambda name: at_once[name])
    latest = min(cost.seconds(size, max(alpha, busy_alpha), beta) for cost in costs.values()) * MOST_SHARE
    return Choice(
        name=first,
        seconds={name: expected[name] for name in names},
        why=f"{_compared(first, names, expected)}; latency {alpha * 1e6:.1f} us, {beta * 1e9:.3f} ns/B"
        + (f"; ranks {_behind(tiers.groups)} behind shared uplinks" if tiers else ""),
        rivals=tuple(name for name in names if link and expected[name] * LEAST_SHARE <= latest),
        at_once=at_once,
    )


def most_at_once(case: cases.Case, algorithm: model.Chosen) -> int:
    """The most messages of a step that a rank sends, or receives, at a time."""
    schedules = (algorithm.schedule(case.item.operation, me, case.ranks, case.item.root) for me in range(case.ranks))
    return max((max(len(step.sends), len(step.recvs)) for steps in schedules for step in steps), default=0)


def can_measure(choice: Choice, limit_s: float) -> bool:
    """Return whether the least number of turns of all rivals fits into ``limit_s``, with one that is not timed."""
    turn_s = sum(choice.seconds[name] for name in choice.rivals)
    return len(choice.rivals) > 1 and (LEAST_TURNS + 1) * turn_s <= limit_s


def measure_in_turns(
    names: Sequence[str], run_turn: Callable[[Sequence[str]], Sequence[float]], is_time_left: Callable[[], bool]
) -> dict[str, list[float]]:
    """Times of each algorithm. One that is slower than another is not measured any further.

    ``run_turn``: runs each of these once and returns the slowest rank's seconds; ``is_time_left``: the same on all ranks.
    """
    times: dict[str, list[float]] = {name: [] for name in names}
    rivals = list(names)
    run_turn(rivals)  # not timed: it connects the ranks
    for turn in range(1, MOST_TURNS + 1):
        for name, seconds in zip(rivals, run_turn(rivals), strict=True):
            times[name].append(seconds)
        if turn % LEAST_TURNS == 0:
            rivals = _undecided({name: times[name] for name in rivals})
            if not rivals or not is_time_left():
                break
    return times


def _undecided(times: Mapping[str, Sequence[float]]) -> list[str]:
    """The algorithms to measure further; none if one is left, or if all are equal to the fastest."""
    best, rivals = _compared_in_turn(times)
    is_known = all(outcome == "equal" for outcome in rivals.values())
    return [] if is_known else [best, *rivals]


def _compared_in_turn(times: Mapping[str, Sequence[float]]) -> tuple[str, dict[str, ratio.Outcome]]:
    """The algorithm with the least median, and those that it is not known to be faster than, with what is known of them."""
    best = min(times, key=lambda name: statistics.median_low(times[name]))
    outcomes: dict[str, ratio.Outcome] = {}
    for name, seconds in times.items():
        count = min(len(seconds), len(times[best]))
        change = ratio.change(times[best][:count], seconds[:count], level=LEVEL, in_turn=True)
        outcomes[name] = change.outcome() if change else "not resolved"
    return best, {name: outcome for name, outcome in outcomes.items() if name != best and outcome != "slower"}


def after_measurement(choice: Choice, times: Mapping[str, Sequence[float]]) -> Choice:
    """The least median; of those within EQUAL of it that are not slower, the one with the fewest messages at a time."""
    medians = {name: statistics.median_low(seconds) for name, seconds in times.items()}
    names = sorted(medians, key=lambda name: medians[name])
    best, rivals = _compared_in_turn(times)
    near = [name for name in (best, *rivals) if medians[name] <= medians[best] * (1 + EQUAL)]
    name = min(near, key=lambda name: (choice.at_once[name], medians[name]))
    text = ", ".join(f"{name} {_ms(medians[name])}" for name in names)
    turns = max(len(seconds) for seconds in times.values())
    return replace(
        choice, name=name, measured={name: medians[name] for name in names},
        why=f"chosen from {len(names)}, in turn in the warm-up, medians of up to {turns}: {text}{_open(best, rivals)}; {choice.why}",
    )  # fmt: skip


def _open(best: str, rivals: Mapping[str, ratio.Outcome]) -> str:
    """The algorithms that are not known to be slower than the one with the least median."""
    named = {word: [name for name, outcome in rivals.items() if outcome == word] for word in ("equal", "not resolved")}
    return "".join(f"; {word} against {best}: {', '.join(names)}" for word, names in named.items() if names)


def _compared(first: str, names: Sequence[str], expected: Mapping[str, float]) -> str:
    """The expected time of the first choice, and how far the others are from the fastest."""
    best = expected[names[0]]
    equal = [name for name in names if expected[name] <= best * (1 + EQUAL)]
    others = [name for name in names if name not in equal]
    texts = [f"the model expects {_ms(expected[first])} of {first}"]
    if len(equal) > 1:
        texts.append(f"no more than {EQUAL:.0%} from {', '.join(name for name in equal if name != first)}")
    if others:
        texts.append(f"{1 - expected[first] / expected[others[0]]:.0%} less than {others[0]}")
    return ", ".join(texts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _behind(leaves: Sequence[int]) -> str:
    """``0,1 / 2,3``: the ranks of each switch."""
    groups = ([str(rank) for rank, leaf in enumerate(leaves) if leaf == switch] for switch in dict.fromkeys(leaves))
    return " / ".join(",".join(ranks) for ranks in groups)
