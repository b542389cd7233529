"""One iteration of a collective, rank by time: its transfers by sender, light while they wait for it, and which rank did not run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from ....reports.page import svg, timeline
from ...views import Measured, dependencies, phrases
from . import trial

ROW, TOP = 34, 34
#: Senders with a colour of their own.
COLOURS = 8


def draw(measured: Measured, chosen: trial.Chosen) -> Markup:
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
    slow = trial.recorded(measured, chosen)
    stopped = slow.stopped if slow else None
    bottom = TOP + ROW * len(pattern.ranks)
    parts = [
        *_bars(paths),
        *_ranks(
            [measured.setting.node(rank) for rank in pattern.ranks], place.get(stopped) if stopped is not None else None
        ),
        *_ends(pattern.begin[row] - zero, pattern.finish[row] - zero),
        *timeline.axis(0.0, end - zero, bottom, 1000.0, "ms"),
        *_legend([measured.setting.node(peer) for peer in senders]),
    ]
    text = phrases.slow(slow, measured.setting) if slow else "no slow iteration"
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
