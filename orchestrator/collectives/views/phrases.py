"""The measurement in words: sizes, times, late ranks and links, the fastest algorithms, the definition of percentiles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...model import ratio, schedule
from ...model.event import History
from ...views import quantities
from ...views.comparison import OVER
from ...views.json_values import whole
from ...views.statistics import DEFINITION, ENOUGH_FOR_P99
from .directions import MARGIN as DIRECTION
from .directions import Direction, changes
from .directions import slow as slow_directions
from .experiment import Case, Setting, wrong_results
from .measurements import OUTLIER, Measured, Slow
from .replay_gaps import TOLERANCE, TOLERANCE_S, ReplayGaps

if TYPE_CHECKING:
    from .stragglers import SlowLink

#: So many parts of a critical path are named.
MOST_PARTS = 3
#: At most so many directions of links are named.
MOST_DIRECTIONS = 4
#: At most so many cases are named whose precision was not reached.
MOST_CASES = 4


def case(measured_case: Case) -> str:
    """``all-reduce ring 971,048 B``."""
    return f"{measured_case.operation} {measured_case.algorithm}" + (
        f" {quantities.size(measured_case.bytes)}" if measured_case.bytes else ""
    )


def kind(measured_case: Case) -> str:
    """The title of a table: ``all-reduce, float32 sum``; groups and modes where they are not the defaults."""
    reduces = measured_case.operation in schedule.REDUCING
    parts = (
        [" ".join(part for part in (measured_case.dtype, measured_case.operator if reduces else "") if part)]
        if measured_case.bytes
        else []
    )
    if len(measured_case.groups) > 1:
        parts.append(f"{len(measured_case.groups)} groups of {measured_case.world}")
    if measured_case.operation in schedule.ROOTED:
        parts.append(f"root {measured_case.root}")
    parts += [f"shares {shares(measured_case)}"] if measured_case.shares else []
    parts += ["asynchronous"] if measured_case.asynchronous else []
    parts += [gap] if (gap := _gap(measured_case)) else []
    return ", ".join([measured_case.operation, *parts])


def _gap(measured_case: Case) -> str:
    """``gap 15 ms``, ``gaps 15 to 120 ms from the start before``; empty without gaps."""
    low, high = (f(measured_case.gaps_ms or (measured_case.gap_ms,)) for f in (min, max))
    if measured_case.after:
        return f"after {len(measured_case.after)} dependencies"
    text = f"gap {low:g} ms" if low == high else f"gaps {low:g} to {high:g} ms"
    return text + (" from the start before" if measured_case.gap_from == "start" else "") if high else ""


def gaps(measured_gaps: ReplayGaps) -> str:
    """Return how many gaps were reached, the largest deviation, and how many starts the network delayed."""
    count, limit = len(measured_gaps.measured), f"{TOLERANCE_S * 1e3:g} ms or {quantities.percent(TOLERANCE)}"
    if not count:
        return "no gap was recorded"
    worst = measured_gaps.worst
    reached = (
        ""
        if worst.is_held
        else f", {quantities.milliseconds(worst.reached_s)} ms for {quantities.milliseconds(worst.wanted_s)} ms"
    )
    where = f"(iteration {worst.trial} of {case(worst.case)}, rank {worst.rank})"
    parts = [
        f"{measured_gaps.kept:,} of {count:,} gaps reached within {limit}",
        f"largest deviation {quantities.duration(abs(worst.late_s))}{reached} {where}",
    ]
    parts += [f"{measured_gaps.held:,} starts waited for the collective before"] if measured_gaps.held else []
    return "; ".join(parts)


def bucket(setting: Setting) -> str:
    """Return what a gap does on a shaped link; empty where the link has no bucket, or nothing has a gap."""
    burst, speed = (whole(setting.link.spec.get(name)) or 0 for name in ("burst", "rate"))
    if not burst or not speed or not any(measured_case.is_paced for measured_case in setting.cases):
        return ""
    return (
        f"the bucket of a link holds {quantities.size(burst)} and fills up in {quantities.duration(burst * 8 / speed)} of a gap: "
        "so many bytes pass at the speed of the machine, and measured / model can be below 1"
    )


def shares(measured_case: Case) -> str:
    """``0.1:0.1:0.1:0.7``; empty where they are even."""
    return ":".join(f"{share:g}" for share in measured_case.shares)


def stop(waited: bool) -> str:
    """Return why a process did not run."""
    return "it waited for a CPU, or for its quota" if waited else "stopped, or out of its CPU quota"


def slow(iteration: Slow, setting: Setting) -> str:
    """A slow iteration in a sentence."""
    took = f"{quantities.duration(iteration.seconds)}, {setting.node(iteration.rank)} ended last"
    return f"iteration {iteration.trial} of {case(iteration.case)}: {took}{where(iteration, setting)}"


def where(iteration: Slow, setting: Setting) -> str:
    """The ranks and links that took most of the iteration's critical path; empty without records of transfers."""
    ends = (
        f"{part.kind} {setting.node(part.rank) if part.sender is None else f'{setting.node(part.sender)} to {setting.node(part.rank)}'}"
        f" {quantities.duration(part.seconds)}"
        for part in iteration.path[:MOST_PARTS]
    )
    return f"; most of it: {', '.join(ends)}" if iteration.path else ""


def path(measured: Measured) -> str:
    """The shares of the critical paths of recorded iterations; empty where nothing was recorded."""
    whole = sum(measured.path.values())
    if not whole:
        return ""
    shares = sorted(measured.path.items(), key=lambda entry: -entry[1])
    return "critical path: " + ", ".join(
        f"{quantities.percent(seconds / whole)} {kind}" for kind, seconds in shares if seconds >= whole / 200
    )


def link(setting: Setting) -> str:
    """The result of the probe, and the clocks of the ranks."""
    known, parts = setting.link, []
    if known.alpha_s is not None:
        parts.append(f"latency {quantities.duration(known.alpha_s)}")
    if known.beta:
        parts.append(f"bandwidth {quantities.rate(8 / known.beta)}")
    parts += [worst_direction(setting)] if known.directions else []
    if known.rate:
        parts.append(f"line rate {quantities.rate(known.rate)}")
    parts += [f"reused from {known.reused}, and confirmed"] if known.reused else []
    parts += [f"measured again: {known.changed}"] if known.changed else []
    parts += ["not probed: no model"] if known.alpha_s is None else []
    parts += [roughly_known(setting)] if any(direction.is_wide for direction in known.directions) else []
    return " · ".join([*parts, clocks(setting)])


def worst_direction(setting: Setting) -> str:
    """The slowest direction if it is clearly slower than the others; else that they are equal, or which may be slower."""
    directions = setting.link.directions
    if not any(direction.interval for direction in directions):
        return "worst direction not known: the record has no intervals"
    clear, compared = slow_directions(directions), changes(directions)
    if clear:
        more = f", {len(clear)} directions are slower than the others" if len(clear) > 1 else ""
        return f"worst direction {ends(clear[0], setting)} {_rates(clear[0])}{more}"
    unresolved = [(direction, change) for direction, change in compared if change.outcome(DIRECTION) == "not resolved"]
    lacking = sum(direction.is_comparable for direction in directions) - len(compared)
    if not unresolved and not lacking:
        return f"no direction is more than {quantities.percent(ratio.MARGIN)} slower than the others"
    parts = [f"{lacking} without an interval"] if lacking else []
    if unresolved:
        direction, change = max(unresolved, key=lambda entry: entry[1].high)
        parts.insert(
            0,
            f"{ends(direction, setting)} takes {quantities.multiple(change.value)} times as long as the others, 95 % "
            f"{quantities.multiple(change.low)} to {quantities.multiple(change.high)}; a longer probe would decide: --probe-s",
        )
    return f"slower directions not resolved, {len(unresolved) + lacking} of {len(directions)}: {'; '.join(parts)}"


def roughly_known(setting: Setting) -> str:
    """The directions whose rate is known only roughly, with its interval."""
    rough = [direction for direction in setting.link.directions if direction.is_wide]
    named = [f"{ends(direction, setting)} {_rates(direction)}" for direction in rough[:MOST_DIRECTIONS]]
    more = [f"{len(rough) - MOST_DIRECTIONS} more"] if len(rough) > MOST_DIRECTIONS else []
    return f"{len(rough)} of {len(setting.link.directions)} directions known roughly: {', '.join([*named, *more])}"


def ends(direction: Direction | SlowLink, setting: Setting) -> str:
    return f"{setting.node(direction.sender)} -> {setting.node(direction.receiver)}"


def _rates(direction: Direction) -> str:
    """``91.2 Mbit/s (90.8 to 91.6 Mbit/s)``; without the number that is not known, with the reason."""
    interval, reason = "", f" ({direction.reason})" if direction.reason else ""
    if direction.interval:
        least, greatest = (quantities.rate(8 / beta) for beta in reversed(direction.interval))
        unit = greatest[greatest.index(" ") :]
        interval = f"{least.removesuffix(unit)} to {greatest}"
    if direction.beta is None:
        return f"{interval or 'not known'}{reason}"
    return f"{quantities.rate(8 / direction.beta)}{f' ({interval})' if interval else reason}"


def clocks(setting: Setting) -> str:
    offsets = set(setting.clocks.values())
    if len(offsets) < 2:
        return "one clock"
    values = [offset for offset, _ in offsets]
    doubt = max(doubt for _, doubt in offsets)
    apart = quantities.duration(max(values) - min(values))
    return f"{len(offsets)} clocks, {apart} apart, known to {quantities.duration(doubt)}"


def percentiles(measured: Measured) -> str:
    """The definition of percentiles, their samples and the number of these."""
    over = measured.rows[0].over if measured.rows else measured.setting.over
    counts = sorted({row.time.count for row in measured.rows if row.time})
    count = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}" if counts else "no"
    text = f"percentiles by {DEFINITION} of {count} samples, over {OVER.get(over, over)}{recorded(measured)}"
    if not counts or counts[0] >= ENOUGH_FOR_P99:
        return text
    # an iteration has many chunks, so that their number does not follow
    return f"{text}; p99 needs {ENOUGH_FOR_P99} or more" + (
        f": --iterations {ENOUGH_FOR_P99}" if over != "chunk" else ""
    )


def recorded(measured: Measured) -> str:
    """The number of transfers behind the chunk figures; empty where no transfers were to be recorded."""
    counts = [(row.transfers, row.transfers_due) for row in measured.rows if row.transfers_due]
    if not counts:
        return ""
    of, due = (sum(column) for column in zip(*counts, strict=True))
    return f"; chunks: {of:,} of {due:,} transfers"


def stops(measured: Measured) -> str:
    """Return how many cases reached the precision that the user set, and which did not; empty without a precision."""
    plan = measured.setting
    if not plan.precision:
        return ""
    cases = [row.case for row in measured.rows]
    wide = [entry for entry in cases if plan.widths.get(entry.number, math.inf) >= plan.precision]
    counts = sorted({entry.iterations for entry in cases if entry not in wide})
    span = f" after {counts[0]:,}" + (f" to {counts[-1]:,}" if len(counts) > 1 else "") if counts else ""
    known = f"{len(cases) - len(wide)} of {len(cases)} cases known to {quantities.fraction(plan.precision)}"
    known += f"{span}{' iterations' * bool(counts)}"
    if not wide:
        return known
    named = [
        f"{case(entry)} to {quantities.fraction(plan.widths.get(entry.number))} after {entry.iterations:,}"
        for entry in wide
    ]
    more = [f"{len(named) - MOST_CASES} more"] if len(named) > MOST_CASES else []
    return (
        f"{known}; not reached in {plan.precision_s:g} s a size (--precision-s): {', '.join(named[:MOST_CASES] + more)}"
    )


def outliers(measured: Measured) -> str:
    return f"{measured.outliers:,} of {measured.trials:,} iterations over {OUTLIER:.0f} x p50"


def verified(history: History, measured: Measured) -> str:
    """Return whether the results are exact: the first wrong one with rank, offset, expected and actual value."""
    first = next(iter(wrong_results(history)), None)
    if first is None and not measured.setting.verify:
        return "not verified"
    if first is None:
        if any(row.lost for row in measured.rows):
            return "no wrong result; not every iteration was carried out"
        if (left := measured.setting.unverified) and (count := sum(row.case.iterations for row in measured.rows)):
            return (
                f"{count - left:,} of {count:,} results exact, all ranks equal; the gaps after the others are too short to verify; "
                "each case also before and after the sequence"
            )
        return "all results exact, all ranks equal"
    wrong = first.data
    where = f"rank {wrong.rank}, step {wrong.step}, offset {wrong.offset}"
    count = measured.wrong or len(wrong_results(history))
    return f"{count} wrong, the first at {where}: expected {wrong.expected}, got {wrong.got}"
