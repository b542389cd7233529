"""Findings in words: the fastest algorithm of each size, the choice of ``auto``, the stragglers with their cost, the slow iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...model import ratio
from ...views import quantities
from . import phrases, stragglers
from .directions import changes, slow_end
from .experiment import Case, Setting
from .fastest import Fastest, Rival
from .measurements import Measured
from .stragglers import SlowLink

#: A case that takes so many times as long as its model is named, with what is known of it.
UNEXPLAINED = 1.25
#: So many directions of the probe are named.
MOST = 3
#: The text for algorithms none of whose rounds can be compared.
UNEQUAL = "ranks with different work cannot be compared"


def straggler(measured: Measured) -> str:
    """Return what lasts, or none, or what keeps it from being known."""
    named = [*_ranks(measured), *_links(measured.stragglers.links, measured.setting)]
    probed = _probed(measured)
    if named:
        return " · ".join([*named, *_unlike(measured), *probed])
    outcome, why = unnamed(measured)
    return " · ".join([f"{outcome}: {why}" if outcome != "none" else f"none ({why})", *probed]) + _unexplained(measured)


def unnamed(measured: Measured) -> tuple[str, str]:
    """(none, not resolved or not known, with the reason) where no rank and no link is named."""
    known = measured.stragglers
    count = max((row.trial.count for row in measured.rows if row.trial), default=0)
    if count < stragglers.LEAST_TRIALS:
        return "not known", f"needs {stragglers.LEAST_TRIALS} or more iterations (got {count})"
    if not any(row.transfers for row in measured.rows):
        return "not known", "no transfers were recorded"
    if not known.judged:
        return "not known", UNEQUAL
    if known.judged < stragglers.LEAST_CASES:
        return "not known", "needs two or more cases or sizes that can be compared (got 1)"
    if known.is_resolved:
        return "none", f"no rank and no link costs or takes {quantities.percent(stragglers.EQUAL)} more than the others"
    more = f"; about {known.needed:,} iterations would decide: --iterations {known.needed}" if known.needed else ""
    return "not resolved", f"one that is up to {_part(known.hidden or 0.0)} slower would not show{more}"


def _part(change: float) -> str:
    return quantities.percent(change) if change < 1 else f"{quantities.multiple(change)} times"


def slow_iterations(measured: Measured) -> str:
    """``12 of 300 iterations over 3 x p50, longest 12.4 ms (…), link n2 to n3``: single delays, of which nothing follows."""
    held = f"; {measured.held} held by ccbed for a fault, left out" if measured.held else ""
    text = phrases.outliers(measured)
    worst = max(measured.slow, key=lambda iteration: iteration.seconds, default=None)
    if worst is None:
        return text + held
    node = measured.setting.node
    where = f", link {node(worst.peer)} to {node(worst.rank)}" if worst.peer is not None else ""
    return f"{text}, longest {quantities.duration(worst.seconds)} ({phrases.case(worst.case)}){where}{held}"


def headline(measured: Measured) -> str:
    """``one iteration took 53 times the median``; empty where none was slow."""
    worst = max(measured.slow, key=lambda iteration: iteration.seconds / max(iteration.usual, 1e-9), default=None)
    if worst is None:
        return ""
    count = "one iteration" if measured.outliers == 1 else f"one of {measured.outliers:,} slow iterations"
    return f"{count} took {worst.seconds / max(worst.usual, 1e-9):.3g} times the median"


def _unexplained(measured: Measured) -> str:
    """The case of a largest size that takes longest beside its model, and how much of that ranks did not run."""
    largest = {row.case.kind: max(row.case.bytes for row in measured.rows) for row in measured.rows}
    slow = [(row.of_model or 0.0, row) for row in measured.rows if row.case.bytes == largest[row.case.kind]]
    factor, row = max(slow, key=lambda entry: entry[0], default=(0.0, None))
    if row is None or factor < UNEXPLAINED:
        return ""
    text = f" · {phrases.case(row.case)} takes {factor:.3g} times as long as its model, which counts the links alone"
    whole = sum(measured.path.values())
    if not whole:
        return f"{text}; without records of transfers it is not known where the time went"
    lost = measured.path.get("not running", 0.0) / whole
    return f"{text}; ranks did not run for {quantities.percent(lost)} of the critical paths, and how busy the machine was is not recorded"


def _ranks(measured: Measured) -> Iterator[str]:
    node = measured.setting.node
    for stop in measured.stragglers.stopped:
        share, longest = quantities.percent(stop.share), quantities.duration(stop.longest_s)
        yield f"{node(stop.rank)} did not run for {share} of the time, at most {longest} at once ({phrases.stop(stop.waited)})"
    for late in measured.stragglers.late:
        cost = quantities.percent(late.cost)
        yield f"{node(late.rank)} is late repeatedly, which costs {cost} of the time, in {late.cases} of {late.judged} cases"


def _links(links: Sequence[SlowLink], setting: Setting) -> Iterator[str]:
    shared = set.intersection(*({link.sender, link.receiver} for link in links)) if links else set()
    if len(links) > 1 and len(shared) == 1:
        rank = shared.pop()
        what = {
            (True, False): "{} sends slowly:",
            (False, True): "{} receives slowly:",
        }.get((all(link.sender == rank for link in links), all(link.receiver == rank for link in links)))
        text = (what or "every link of {} is slow:").format(setting.node(rank))
        worst = min(links, key=lambda link: link.rate)
        yield f"{text} {_rate(worst)}"
        return
    for link in links:
        sender, receiver = setting.node(link.sender), setting.node(link.receiver)
        where = {
            "sending": f"the probe: {sender} sends slowly to all",
            "receiving": f"the probe: {receiver} receives slowly from all",
            "wire": "the probe: only this direction is slow",
            "": f"cannot tell {sender}'s sending, {receiver}'s receiving and the wire apart",
        }[slow_end(link.sender, link.receiver, setting.link.directions)]
        yield f"the link {sender} to {receiver} carries {_rate(link)} ({where})"


def _rate(link: SlowLink) -> str:
    """``490 of 956 Mbit/s in 3 of 4 cases, at least 35 % of the time``."""
    rate, usual = quantities.rate(link.rate), quantities.rate(link.usual)
    unit = usual[usual.index(" ") :]
    cases = f"{link.cases} of {link.judged} cases{' and in the probe' * link.is_probed}"
    return f"{rate.removesuffix(unit)} of {usual} in {cases}, which costs {quantities.percent(link.cost)} of the time or more"


def _unlike(measured: Measured) -> Iterator[str]:
    """Links that the iterations show to be slow, and the probe does not."""
    known = {
        (direction.sender, direction.receiver): change
        for direction, change in changes(measured.setting.link.directions)
    }
    fast = [
        phrases.ends(link, measured.setting)
        for link in measured.stragglers.links
        if (link.sender, link.receiver) in known and known[link.sender, link.receiver].high < stragglers.LEAST
    ]
    if fast:
        yield f"the probe found {', '.join(fast[:MOST])} as fast as the others: slow since then, or only beside other messages"


def _probed(measured: Measured) -> Iterator[str]:
    """Directions that the probe shows to be slow, and the iterations do not."""
    slow, setting = measured.stragglers.probed, measured.setting
    if slow:
        named = [f"{phrases.ends(link, setting)} {quantities.rate(8 / (link.beta or 1.0))}" for link in slow[:MOST]]
        more = f" and {len(slow) - MOST} more" if len(slow) > MOST else ""
        also = "also " if measured.stragglers.links else ""
        yield f"the probe {also}finds {', '.join(named)}{more} slower than the others, which the iterations do not show"


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
