"""Comparisons of algorithms in words: the fastest of each size, what would resolve it, and the choice of ``auto``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...model import ratio
from ...views import quantities
from . import phrases
from .experiment import Case
from .fastest import Fastest, Rival
from .measurements import Measured

#: How the fastest algorithm is determined.
JUDGED = "iterations in turn, 95 % over all sizes"


def winners(results: Sequence[Fastest]) -> list[str]:
    """One text per operation, with the method of the comparison; neighbouring sizes with the same winner share a part."""
    operations: dict[str, list[Fastest]] = {}
    for fastest in results:
        operations.setdefault(fastest.operation, []).append(fastest)
    texts = []
    for operation, sizes in operations.items():
        label = f"{operation}: " if len(operations) > 1 else ""
        how = f" ({JUDGED})" if any(fastest.judged for fastest in sizes) else ""
        texts.append(label + "; ".join(_segments(sorted(sizes, key=lambda fastest: fastest.bytes))) + how)
    return texts


def _segments(ranked: Sequence[Fastest]) -> Iterator[str]:
    runs: list[list[Fastest]] = []
    for fastest in ranked:
        if runs and _kind(runs[-1][0]) == _kind(fastest):
            runs[-1].append(fastest)
        else:
            runs.append([fastest])
    for number, run in enumerate(runs):
        if len(runs) == 1:
            where = ""
        elif number == len(runs) - 1:
            where = "above: "
        else:
            where = f"up to {quantities.size(run[-1].bytes)} "
        worst = max(run, key=lambda fastest: fastest.unresolved.change.value if fastest.unresolved else 0.0)
        at = f" at {quantities.size(worst.bytes)}" if len(run) > 1 and worst.unresolved else ""
        yield where + _winner(worst, at)


def _kind(fastest: Fastest) -> tuple[object, ...]:
    """Sizes of one kind share a part."""
    return fastest.judged, fastest.needed, fastest.algorithms, fastest.unresolved is None


def _winner(fastest: Fastest, at: str = "") -> str:
    if not fastest.needed:
        return "not judged: the algorithms did not take turns"
    if not fastest.judged:
        return f"not judged: needs {fastest.needed} iterations (got {fastest.count})"
    if fastest.clear:
        return fastest.algorithms[0]
    names = " or ".join(fastest.algorithms)
    if not fastest.unresolved:
        return f"{names}, equal within {quantities.percent(ratio.MARGIN)}"
    return f"{names}, not resolved: {unresolved(fastest.best, fastest.unresolved, at)}"


def unresolved(best: str, rival: Rival, at: str = "") -> str:
    """``star 2.8x faster than ring in the median, 95 % 0.9 to 6.0; about 200 iterations would decide: --iterations 200``."""
    low, high = (quantities.multiple(end) for end in (rival.change.low, rival.change.high))
    text = f"{best} {quantities.multiple(rival.change.value)}x faster than {rival.algorithm} in the median{at},"
    text += f" 95 % {low} to {high}"
    if rival.needed is None:
        return f"{text}; {ratio.MOST_NEEDED:,} iterations would not decide"
    return f"{text}; about {rival.needed:,} iterations would decide: --iterations {rival.needed}"


def autos(measured: Measured) -> list[str]:
    """The choice of ``auto`` for each case, with its reason; and whether another algorithm was faster in the same iterations."""
    named = {case.number: case for case in measured.setting.cases}
    return [
        f"{phrases.case(named[auto.case])}: {auto.why}{_lost(named[auto.case], measured.fastest)}"
        if auto.case in named
        else f"{auto.chosen}: {auto.why}"
        for auto in measured.setting.autos
    ]


def _lost(chosen: Case, results: Sequence[Fastest]) -> str:
    for fastest in results:
        if (fastest.kind, fastest.bytes) == (chosen.kind, chosen.bytes):
            for rival in fastest.rivals:
                if rival.algorithm == chosen.algorithm and rival.outcome == "slower":
                    low, high = (quantities.multiple(end) for end in (rival.change.low, rival.change.high))
                    return f"; the choice lost: {fastest.best} was {quantities.multiple(rival.change.value)}x faster, 95 % {low} to {high}"
    return ""
