"""The stragglers of a run: ranks that did not run, ranks and links that are lastingly slower than the others, what the probe adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...model import ratio
from ...model.frozen import dataclass
from . import directions, lasting
from .directions import Direction
from .experiment import Setting
from .link_times import Ends, LinkTimes
from .repeated_delays import Stopped

#: None is slow if none can be slower than the others by more than this.
EQUAL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRank:
    """A rank whose own delays take ``cost`` of the time beyond those of the others, in ``cases`` of ``judged`` cases."""

    rank: int
    cost: float
    cases: int
    judged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A link that carries ``rate`` of ``usual`` bits/s beyond its bucket, in ``cases`` of ``judged`` cases.

    ``cost``: at least so much of the time. ``is_probed``: the probe shows it too.
    """

    sender: int
    receiver: int
    factor: float
    rate: float
    usual: float
    cost: float
    cases: int
    judged: int
    is_probed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """``probed``: directions that the probe shows to be slow, that the cases use, and that their iterations do not show.

    ``judged``: cases in which ranks or links were compared. ``hidden``: a link or a rank may be slower by so much without being
    named, which about ``needed`` iterations would show; None: not known.
    """

    stopped: tuple[Stopped, ...] = ()
    late: tuple[LateRank, ...] = ()
    links: tuple[SlowLink, ...] = ()
    probed: tuple[Direction, ...] = ()
    judged: int = 0
    hidden: float | None = None
    needed: int | None = None

    def __bool__(self) -> bool:
        return bool(self.stopped or self.late or self.links)

    @property
    def is_resolved(self) -> bool:
        return self.hidden is not None and self.hidden <= EQUAL


def stragglers(
    delays: Mapping[int, Mapping[int, Sequence[float]]], links: Mapping[int, LinkTimes], stopped: Iterable[Stopped],
    used: Iterable[Ends], setting: Setting,
) -> Stragglers:  # fmt: skip
    """``delays``, ``links``: by case; ``used``: links that messages passed."""
    stopped, used = tuple(stopped), set(used)
    ranks = lasting.changes(delays, is_relative=False)
    pairs = lasting.changes({case: times.factors for case, times in links.items()}, is_relative=True)
    slow = _probed(setting.link.directions)
    named = tuple(_links(pairs, links, slow, setting))
    away = {stop.rank for stop in stopped}
    late = tuple(
        LateRank(rank=rank, cost=change.value, cases=len(change.slower), judged=len(change.by_case))
        for rank, change in sorted(ranks.items())
        if change.lasts and rank not in away
    )
    open_changes = [change for change in (*ranks.values(), *pairs.values()) if not change.lasts]
    worst = max(open_changes, key=lambda change: change.most, default=None)
    ends = {(link.sender, link.receiver) for link in named}
    return Stragglers(
        stopped=stopped,
        late=late,
        links=named,
        probed=tuple(direction for link, direction in slow.items() if link in used - ends),
        judged=max((len(change.by_case) for change in (*ranks.values(), *pairs.values())), default=0),
        hidden=worst.most if worst else None,
        needed=worst.needed(EQUAL) if worst and worst.most > EQUAL else None,
    )


def _probed(known: Sequence[Direction]) -> dict[Ends, Direction]:
    """The directions that the probe shows to be slow."""
    compared = directions.changes(known)
    return {(link.sender, link.receiver): link for link, change in compared if change.low > lasting.LEAST}


def _links(
    changes: Mapping[Ends, lasting.Changes],
    links: Mapping[int, LinkTimes],
    probed: Mapping[Ends, Direction],
    setting: Setting,
) -> Iterable[SlowLink]:
    """What the probe shows counts as one case. Nodes of one host without shaped links have no link between them."""
    total_s = sum(times.total_s for times in links.values()) or 1.0  # a bundle may claim that no time passed
    betas = [direction.beta for direction in setting.link.directions if direction.beta and not direction.is_internal]
    for link, change in sorted(changes.items()):
        slower = [links[case] for case in change.slower]
        cost = sum(times.extra_s.get(link, 0.0) for times in links.values()) / total_s
        is_memory = not setting.link.spec and setting.hosts.get(link[0], "") == setting.hosts.get(link[1]) != ""
        if is_memory or not slower or not (change.lasts or link in probed) or cost < ratio.MARGIN:
            continue
        rate = max(slower, key=lambda times: times.sizes[link]).rates[link]
        yield SlowLink(
            sender=link[0], receiver=link[1], factor=1 + change.value, rate=rate,
            usual=8 / min(betas) if betas else rate * (1 + change.value), cost=cost, cases=len(slower),
            judged=len(change.by_case), is_probed=link in probed,
        )  # fmt: skip
