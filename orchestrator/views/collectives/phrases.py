"""What was measured, in words: sizes, times, who was late, which algorithm won, what the percentiles are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...model.event import History
from .attribution import Blame
from .experiment import Case, Pair, Setting, wrong_results
from .fastest import MARGIN, Fastest
from .measurements import OUTLIER, Measured, Slow
from .repeated_delays import SlowLink
from .statistics import DEFINITION, ENOUGH_FOR_P99

#: So many unsure pairs are named.
MOST_UNSURE = 4
#: How the fastest is found.
JUDGED = "trials in pairs, 95 % over all sizes"
#: What a percentile is over.
OVER = {
    "max_rank": "the slowest rank of each trial",
    "mean_rank": "the mean rank of each trial",
    "cct": "first start to last end of each trial",
    "chunk": "every chunk transfer",
}


def size(count: int) -> str:
    """``4 KiB``, ``1 MiB``; what is no whole number of them in bytes: ``971,048 B``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if unit <= count < 1024 * unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} B"


def milliseconds(seconds: float | None) -> str:
    """Four digits that matter: 0.284, 13.41, 478.2, 4,577."""
    if seconds is None:
        return "-"
    return _digits(seconds * 1000)


def duration(seconds: float) -> str:
    """For sentences: 38 us, 14 ms, 0.89 s, 4.5 s."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def bandwidth(gigabytes: float | None) -> str:
    """10^9 bytes per second."""
    return "-" if gigabytes is None else f"{gigabytes:.4f}" if gigabytes < 1 else _digits(gigabytes)


def rate(bits: float) -> str:
    """``957 Mbit/s``, ``1 Gbit/s``."""
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= unit:
            return f"{bits / unit:.4g} {name}"
    return f"{bits:.0f} bit/s"


def percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}".replace("%", " %")


def case(one: Case) -> str:
    """``all-reduce ring 971,048 B``."""
    return f"{one.operation} {one.algorithm}" + (f" {size(one.bytes)}" if one.bytes else "")


def kind(one: Case) -> str:
    """What a table is of: ``all-reduce, float32 sum``; groups and modes where they are not the usual."""
    reduces = one.operation in ("all-reduce", "reduce-scatter", "reduce")
    parts = [" ".join(part for part in (one.dtype, one.operator if reduces else "") if part)] if one.bytes else []
    if len(one.groups) > 1:
        parts.append(f"{len(one.groups)} groups of {one.world}")
    if one.operation in ("broadcast", "reduce", "gather", "scatter"):
        parts.append(f"root {one.root}")
    parts += [f"shares {shares(one)}"] if one.shares else []
    parts += ["asynchronous"] if one.asynchronous else []
    parts += [f"gap {one.gap_ms:g} ms"] if one.gap_ms else []
    return ", ".join([one.operation, *parts])


def shares(one: Case) -> str:
    """``0.1:0.1:0.1:0.7``; empty where they are even."""
    return ":".join(f"{share:g}" for share in one.shares)


def blame(one: Blame, setting: Setting) -> str:
    """Who stood still, for how long, and who waited."""
    who = setting.node(one.rank) if one.rank is not None else ""
    other = setting.node(one.peer) if one.peer is not None else ""
    late, waited = duration(one.late_s), f"; {other} waited for it" if other else ""
    wire = f"the link {setting.node(one.link[0])} to {setting.node(one.link[1])}" if one.link else ""
    return {
        "entered late": f"{who} entered step {one.index} late, by {late}, though it waited for nobody{waited}",
        "stopped sending": f"{who} stood still for {late} while it sent in step {one.index}{waited}",
        "stopped receiving": f"{who} stood still for {late} in step {one.index}; {other} and the others went on",
        "link": f"{wire} stood still for {late} in step {one.index}; both its ends went on",
        "receiver or link": f"{who}, or {wire}, stood still for {late} in step {one.index}",
        "either end": f"{who} or {other} (or their link) stood still for {late} in step {one.index}; no record tells them apart",
        "ended late": f"{who} ended {late} late, though it waited for nobody",
    }[one.kind]


def slow(one: Slow, setting: Setting) -> str:
    """A slow trial in a sentence."""
    why = (
        blame(one.blame, setting)
        if one.blame
        else f"{setting.node(one.rank)} was slowest; no single delay that was recorded explains it"
    )
    return f"trial {one.trial} of {case(one.case)}: {why}"


def slowest(found: Measured) -> list[Slow]:
    """The slow trials, first those that have most lateness explained."""
    return sorted(found.slow, key=lambda one: (-(one.blame.late_s if one.blame else 0.0), -one.seconds))


def straggler(found: Measured) -> str:
    """Who is to blame, or none; always with what was compared with chance."""
    first, left, parts = next(iter(slowest(found)), None), found.outliers - 1, []
    if first is not None and first.blame:
        more = f" (and {left:,} more slow trial{'s' * (left > 1)}, in the report)" if left > 0 else ""
        parts.append(slow(first, found.setting) + more)
    parts += _habits(found)
    told = _chance(found)
    if not parts:
        return "none" + (f" ({told})" if told else "")
    return " · ".join([*parts, *([told] if told else [])])


def names_somebody(found: Measured) -> bool:
    """Whether a rank or a link is named as the cause of anything."""
    return any(one.blame for one in found.slow) or bool(_habits(found))


def _habits(found: Measured) -> list[str]:
    parts = []
    late = found.latest
    if late is not None and late.straggler:
        parts.append(
            f"{found.setting.node(late.rank)} is late again and again, which costs {percent(late.cost)} of the time"
        )
    return [*parts, *_links(found.links, found.setting)]


def _links(links: Sequence[SlowLink], setting: Setting) -> Iterator[str]:
    shared = set.intersection(*({one.sender, one.receiver} for one in links)) if links else set()
    if len(links) > 1 and len(shared) == 1:
        worst = max(one.factor for one in links)
        yield f"every link of {setting.node(shared.pop())} is slow, up to {worst:.1f} times as long as the others"
        return
    for one in links:
        ends = f"{setting.node(one.sender)} to {setting.node(one.receiver)}"
        yield f"the link {ends} takes {one.factor:.1f} times as long as the others"


def _chance(found: Measured) -> str:
    late = found.latest
    if late is None:
        return ""
    who = found.setting.node(late.rank)
    text = f"latest sender {who} in {percent(late.share)} of rounds; chance is {percent(late.chance)}"
    if late.p >= 0.01:
        return text
    small = f", but it costs {percent(late.cost)} of the time" if not late.straggler else ""
    return f"{text}, p {'< 0.001' if late.p < 0.001 else f'= {late.p:.3f}'}{small}"


def winners(found: Sequence[Fastest]) -> list[str]:
    """Per operation one text, by what it is judged included; neighbouring sizes with the same winner share a part."""
    operations: dict[str, list[Fastest]] = {}
    for one in found:
        operations.setdefault(one.operation, []).append(one)
    texts = []
    for operation, each in operations.items():
        label = f"{operation}: " if len(operations) > 1 else ""
        how = f" ({JUDGED})" if any(one.judged for one in each) else ""
        texts.append(label + "; ".join(_segments(sorted(each, key=lambda one: one.bytes))) + how)
    return texts


def _segments(ranked: Sequence[Fastest]) -> Iterator[str]:
    runs: list[list[Fastest]] = []
    for one in ranked:
        if runs and _winner(runs[-1][0]) == _winner(one):
            runs[-1].append(one)
        else:
            runs.append([one])
    for number, run in enumerate(runs):
        if len(runs) == 1:
            where = ""
        elif number == 0:
            where = f"up to {size(run[-1].bytes)} "
        elif number == len(runs) - 1:
            where = "above: "
        else:
            where = f"up to {size(run[-1].bytes)} "
        yield where + _winner(run[0])


def _winner(one: Fastest) -> str:
    if not one.needed:
        return "not judged: the algorithms did not take turns"
    if not one.judged:
        return f"not judged: needs {one.needed} iterations (got {one.count})"
    if one.clear:
        return one.algorithms[0]
    if len(one.algorithms) > one.others:
        return f"no difference of more than {percent(MARGIN)}"
    return " or ".join(one.algorithms) + ", no difference between them"


def autos(setting: Setting) -> list[str]:
    """What ``auto`` chose for each case, and why."""
    named = {case.number: case for case in setting.cases}
    return [
        f"{case(named[one.case])}: {one.why}" if one.case in named else f"{one.chosen}: {one.why}"
        for one in setting.autos
    ]


def link(setting: Setting) -> str:
    """What the probe found, and by which clocks the ranks were timed."""
    known, parts = setting.link, []
    if known.alpha_s is not None:
        parts.append(f"alpha {duration(known.alpha_s)}")
    if known.beta:
        parts.append(f"beta = {rate(8 / known.beta)}")
    if known.worst and known.worst[2]:
        a, b, beta = known.worst
        parts.append(f"worst pair {setting.node(a)}-{setting.node(b)} {rate(8 / beta)}")
    if known.rate:
        parts.append(f"line rate {rate(known.rate)}")
    parts += ["not probed: no model"] if known.alpha_s is None else []
    parts += [unsure(setting)] if known.unsure else []
    return " · ".join([*parts, clocks(setting)])


def unsure(setting: Setting) -> str:
    """The pairs of which the probe's line tells little, how far half of their repetitions spread, and sizes are off it."""
    found, count = setting.link.unsure, len(setting.link.pairs)
    named = [f"{setting.node(one.a)}-{setting.node(one.b)}{_doubt(one)}" for one in found[:MOST_UNSURE]]
    more = [f"{len(found) - MOST_UNSURE} more"] if len(found) > MOST_UNSURE else []
    text = f"{len(found)} of {count} pairs unsure: {', '.join([*named, *more])}"
    return text + (", left out" if len(found) < count else "; alpha and beta are by them all the same")


def _doubt(pair: Pair) -> str:
    told = (("spread", pair.spread), ("off the line", pair.off))
    parts = [f"{name} {percent(value)}" for name, value in told if value is not None]
    return f" ({', '.join(parts)})" if parts else ""


def clocks(setting: Setting) -> str:
    offsets = set(setting.clocks.values())
    if len(offsets) < 2:
        return "one clock"
    values = [offset for offset, _ in offsets]
    doubt = max(doubt for _, doubt in offsets)
    apart = duration(max(values) - min(values))
    return f"{len(offsets)} clocks, {apart} apart, known to {duration(doubt)}"


def percentiles(found: Measured) -> str:
    """The definition, what it is over, and of how many samples."""
    over = found.rows[0].over if found.rows else found.setting.over
    counts = sorted({row.time.count for row in found.rows if row.time})
    count = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}" if counts else "no"
    text = f"percentiles by {DEFINITION} of {count} samples, over {OVER.get(over, over)}{recorded(found)}"
    if not counts or counts[0] >= ENOUGH_FOR_P99:
        return text
    # a trial has many chunks: how many iterations they need is not said
    return f"{text}; p99 needs {ENOUGH_FOR_P99} or more" + (
        f": --iterations {ENOUGH_FOR_P99}" if over != "chunk" else ""
    )


def recorded(found: Measured) -> str:
    """How many transfers the chunk figures are of; empty where none was to be recorded."""
    counts = [(row.transfers, row.transfers_due) for row in found.rows if row.transfers_due]
    if not counts:
        return ""
    of, due = (sum(each) for each in zip(*counts, strict=True))
    return f"; chunks: {of:,} of {due:,} transfers"


def outliers(found: Measured) -> str:
    return f"{found.outliers:,} of {found.trials:,} iterations over {OUTLIER:.0f} x p50"


def _digits(value: float) -> str:
    """Four digits that matter, no more than three behind the point."""
    if value < 0.01:
        return f"{value:.4f}"
    for limit, places in ((10, 3), (100, 2), (1000, 1)):
        if value < limit:
            return f"{value:.{places}f}"
    return f"{value:,.0f}"


def verified(history: History, found: Measured) -> str:
    """Whether the results were right: the first wrong one by rank, offset, expected and got."""
    first = next(iter(wrong_results(history)), None)
    if first is None and not found.setting.verify:
        return "not verified"
    if first is None:
        whole = all(row.lost == 0 for row in found.rows)
        return "all results exact, all ranks equal" if whole else "no wrong result; not every trial was carried out"
    wrong = first.data
    where = f"rank {wrong.rank}, step {wrong.step}, offset {wrong.offset}"
    count = found.wrong or len(wrong_results(history))
    return f"{count} wrong, the first at {where}: expected {wrong.expected}, got {wrong.got}"
