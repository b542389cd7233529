"""One iteration of a collective, rank by time: its transfers by sender, light while they wait for it, and which rank did not run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from ...model.frozen import dataclass
from ...reports.page import node_timeline, svg
from ...views import quantities
from ..views import Case, Measured, Row, Slow, dependencies, phrases

ROW, TOP = 34, 34
#: Senders with a colour of their own.
COLOURS = 8
CAPTION = (
    "A bar is a transfer in its receiver's row, coloured by sender, light while it waits for the sender; upright lines: where a "
    "rank's timed region begins and ends."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The iteration that is drawn, and how its time stands to the median. ``slow``: it, if it is one of the slow ones."""

    case: Case
    trial: int
    seconds: float
    usual: float
    slow: Slow | None


def slowest(measured: Measured) -> dict[str, Any] | None:
    """The title, picture and caption of the iteration that is the slowest against its median; None without records of transfers."""
    chosen = choose(measured)
    picture = draw(measured, chosen) if chosen else ""
    if chosen is None or not picture:
        return None
    parts = phrases.where(chosen.slow, measured.setting) if chosen.slow else ""
    against = f"The slowest against its median: {quantities.duration(chosen.seconds)}, p50 {quantities.duration(chosen.usual)}{parts}."
    title = f"One iteration: {phrases.case(chosen.case)}, iteration {chosen.trial}"
    return {"title": title, "picture": picture, "caption": f"{against} {CAPTION}"}


def choose(measured: Measured) -> Chosen | None:
    """The slowest against its case's median, of those with records. Noise at a small size shows less than a long delay."""
    worst = [chosen for row in measured.rows if (chosen := _slowest_of(measured, row)) is not None]
    return max(worst, key=lambda chosen: chosen.seconds - chosen.usual, default=None)


def _slowest_of(measured: Measured, row: Row) -> Chosen | None:
    import numpy as np

    spans, _, moved = measured.data[row.case.number]
    recorded = np.flatnonzero(np.isin(spans.trials, moved.trials)) if moved is not None else np.empty(0, dtype=int)
    if row.trial is None or not recorded.size:
        return None
    times = spans.times("max_rank")
    spot = int(recorded[times[recorded].argmax()])
    trial = int(spans.trials[spot])
    slow = next((slow for slow in measured.slow if (slow.case, slow.trial) == (row.case, trial)), None)
    return Chosen(case=row.case, trial=trial, seconds=float(times[spot]), usual=row.trial.p50, slow=slow)


def draw(measured: Measured, chosen: Chosen) -> Markup:
    """Empty where its transfers are not those of a schedule. All bars of a sender are one path, so that a page stays small."""
    spans, _, moved = measured.data[chosen.case.number]
    pattern = dependencies.pattern(moved, spans, measured.setting.link.beta) if moved is not None else None
    if moved is None or pattern is None:
        return Markup("")
    known = dependencies.rows(moved, spans)
    row = [int(moved.trials[number]) for number in known].index(chosen.trial)
    zero, end = float(pattern.begin[row].min()), float(pattern.finish[row].max())
    place = {rank: number for number, rank in enumerate(pattern.ranks)}
    lanes: Counter[tuple[int, int]] = Counter()
    counts = Counter(zip(moved.rank.tolist(), moved.index.tolist(), strict=True))
    offset, factor = svg.scale(0.0, max(end - zero, 1e-9))
    paths: dict[tuple[int, bool], list[str]] = defaultdict(list)
    senders, sent = sorted(set(moved.peer.tolist())), pattern.sent()[row]
    for column, (rank, peer, index) in enumerate(
        zip(moved.rank.tolist(), moved.peer.tolist(), moved.index.tolist(), strict=True)
    ):
        height = (ROW - 10) / counts[rank, index]
        y = TOP + ROW * place[rank] + 5 + height * lanes[rank, index]
        lanes[rank, index] += 1
        start, stop = (float(times[known[row]][column]) - zero for times in (moved.start, moved.end))
        ready = min(max(float(sent[column]) - zero, start), stop)
        for since, until, waits in ((start, ready, True), (ready, stop, False)):
            if until > since:
                x1, x2 = offset + factor * since, offset + factor * until
                paths[senders.index(peer), waits].append(
                    f"M{x1:.1f} {y:.1f}H{x2:.1f}V{y + height * 0.92:.1f}H{x1:.1f}Z"
                )
    stopped = chosen.slow.stopped if chosen.slow else None
    bottom = TOP + ROW * len(pattern.ranks)
    parts = [
        *_bars(paths),
        *_ranks(
            [measured.setting.node(rank) for rank in pattern.ranks], place.get(stopped) if stopped is not None else None
        ),
        *_ends(pattern.begin[row] - zero, pattern.finish[row] - zero),
        *node_timeline.axis(0.0, end - zero, bottom, 1000.0, "ms"),
        *_legend([measured.setting.node(peer) for peer in senders]),
    ]
    text = phrases.slow(chosen.slow, measured.setting) if chosen.slow else "no slow iteration"
    return svg.picture("iteration", bottom + 30, "One iteration, rank by time", text, *parts)


def _bars(paths: dict[tuple[int, bool], list[str]]) -> Iterator[Markup]:
    for (sender, waits), pieces in sorted(paths.items()):
        yield svg.element("path", d="".join(pieces), class_=f"s{sender % COLOURS}{' waits' if waits else ''}")


def _ranks(names: Sequence[str], stopped: int | None) -> Iterator[Markup]:
    for number, name in enumerate(names):
        y = TOP + ROW * number + ROW / 2 + 4
        yield svg.text(svg.LEFT - 12, y, name, "fault" if number == stopped else "name", "end")


def _ends(begins: Sequence[float], finishes: Sequence[float]) -> Iterator[Markup]:
    """Upright lines where the timed region of a rank begins and ends."""
    offset, factor = svg.scale(0.0, max(float(max(finishes)), 1e-9))
    for number, moments in enumerate(zip(begins, finishes, strict=True)):
        for moment in moments:
            x = offset + factor * float(moment)
            yield svg.line(x, TOP + ROW * number + 2, x, TOP + ROW * (number + 1) - 2, "edge")


def _legend(names: Sequence[str]) -> Iterator[Markup]:
    x = float(svg.LEFT)
    for number, name in enumerate(names[:COLOURS]):
        yield svg.element("rect", x=x, y=8, width=12, height=12, class_=f"s{number}")
        yield svg.text(x + 17, 18, f"from {name}")
        x += 34 + svg.width(f"from {name}")
    if len(names) > COLOURS:
        yield svg.text(x, 18, f"and {len(names) - COLOURS} more, in the same colours")
