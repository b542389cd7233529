"""Each link against the others of the same iterations: the time per byte of its messages beyond the bucket of its shaper.

A message has its time from the moment when both ends were ready and their ports free, to its arrival. A port is not free while
an earlier message of the same sender, or to the same receiver, is under way: so ranks with several messages at once are compared
as well. What a bucket holds passes at the speed of the machine: it is taken off, by how long the ports were idle. A message is not
compared if most of it may have passed so, if it may have been under way before its receiver was ready, or if an end did not run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...model.frozen import dataclass
from ...views.json_values import number
from .dependencies import Pattern
from .experiment import Link, Setting
from .gaps import Gaps
from .repeated_delays import Round

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...views.statistics import Floats
    from .samples import Transfers

Ends = tuple[int, int]
#: A link that takes so many times as long as a quick one is none to compare others with.
SLOW = 1.3
#: A message is not compared if one of its ends did not run for more than this part of it.
_RAN = 0.1
#: A message is compared if its longest possible time is at most so many times its shortest.
_SURE = 1.25
#: Others are compared with a message if the times that it may have taken differ by no more.
_ALONE = 1.05
#: A message is compared if at least this part of it did not come from a bucket.
_BEYOND = 0.5
#: A message that was faster than the links by this factor was under way before.
_FASTER = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes:
    """The times of a case by (sender, receiver). ``factors``: its time per byte over that of others, one per iteration that shows it;
    ``rates`` in bits/s; ``extra_s``: what it took beyond others, of ``total_s``; ``sizes``: its greatest message."""

    factors: Mapping[Ends, tuple[float, ...]]
    rates: Mapping[Ends, float]
    extra_s: Mapping[Ends, float]
    sizes: Mapping[Ends, int]
    total_s: float


def link_times(
    comparable: Sequence[Sequence[Round]], moved: Transfers, pattern: Pattern, rows: NDArray[np.int64], spots: NDArray[np.int64],
    gaps: Gaps, setting: Setting,
) -> LinkTimes:  # fmt: skip
    """Measure the links over the iterations ``spots`` of the pattern, whose rows in ``moved`` are ``rows``."""
    import numpy as np

    per_byte: dict[tuple[int, int, tuple[Ends, ...], bool, bool], dict[Ends, list[tuple[Floats, Floats]]]] = {}
    seconds: dict[Ends, Floats] = {}
    sizes: dict[Ends, int] = {}
    for group in comparable:
        messages = list(_messages(group, moved, pattern, rows, spots, setting.link))
        for message, taken, is_alone in _taken(messages, gaps, setting.link):
            link = message.link
            if np.isfinite(taken).any():
                own = taken / np.maximum(message.beyond, 1.0)
                kind = message.size, message.turn, message.round, *_kind(link, setting)
                per_byte.setdefault(kind, {}).setdefault(link, []).append((own, np.where(is_alone, own, np.nan)))
                seconds[link] = seconds.get(link, 0.0) + np.nan_to_num(taken)
                sizes[link] = max(message.size, sizes.get(link, 0))
    factors: dict[Ends, list[Floats]] = {}
    rates: dict[Ends, float] = {}
    for _, of_kind in sorted(per_byte.items()):
        alone = {link: _middle(np.stack([part for _, part in parts])) for link, parts in sorted(of_kind.items())}
        usual = {
            link: np.where(np.isfinite(alone[link]), alone[link], _middle(np.stack([part for part, _ in parts])))
            for link, parts in sorted(of_kind.items())
        }
        for link, factor in _against_others(usual, alone).items():
            factors.setdefault(link, []).append(factor)
            rates[link] = 8 / float(np.nanmedian(usual[link]))  # of its largest messages
    by_iteration = {link: _middle(np.stack(parts)) for link, parts in factors.items()}
    return LinkTimes(
        factors={link: tuple(factor[np.isfinite(factor)].tolist()) for link, factor in by_iteration.items()},
        rates=rates,
        extra_s={link: float(np.nansum((1 - 1 / factor) * seconds[link])) for link, factor in by_iteration.items()},
        sizes={link: sizes[link] for link in by_iteration},
        total_s=float((pattern.finish - pattern.begin).max(axis=1)[spots].sum()),
    )


def _kind(link: Ends, setting: Setting) -> tuple[bool, bool]:
    """Links within a node, within a host, and between hosts are not compared with each other."""
    return tuple(where.get(link[0]) == where.get(link[1]) for where in (setting.nodes, setting.hosts))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _Port:
    """One direction of a rank's port: when its last message arrived, and what its bucket holds then, per iteration."""

    at: Floats
    tokens: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """``round``: the links of its round, which are compared with each other. ``turn``: the distance of its ranks, where a rank has
    several messages at once; they are sent in this order, if one by one.

    Per iteration: ``sent``: when its sender had reached it; ``earliest`` and ``latest``: when it began, after earlier messages;
    ``end``; ``beyond``: its bytes beyond the bucket; ``held``: what the bucket may have held of it.
    """

    column: int
    link: Ends
    round: tuple[Ends, ...]
    turn: int
    size: int
    sent: Floats
    earliest: Floats
    latest: Floats
    end: Floats
    beyond: Floats
    held: Floats

    @property
    def start(self) -> Floats:
        """Return when it may have begun to use the ports: after the message before, unless it overtook that."""
        import numpy as np

        start: Floats = np.where(self.earliest < self.end, self.earliest, self.sent)
        return start


def _messages(
    group: Sequence[Round],
    moved: Transfers,
    pattern: Pattern,
    rows: NDArray[np.int64],
    spots: NDArray[np.int64],
    link: Link,
) -> Iterator[_Message]:
    """Yield the messages in the order in which they are sent."""
    import numpy as np

    rate, burst = ((number(link.spec.get(name)) or 0.0) for name in ("rate", "burst"))
    full = _Port(np.full(len(spots), -np.inf), np.full(len(spots), burst if rate else 0.0))
    ports: dict[tuple[int, str], _Port] = {}
    places = {stage.rank: place for place, stage in enumerate(group[0])}
    for round_ in group:
        entered = {stage.rank: pattern.entered[spots, stage.number] for stage in round_}
        columns = [column for stage in round_ for column in stage.columns]
        ends = [(int(moved.peer[column]), int(moved.rank[column])) for column in columns]
        links = tuple(sorted(ends))
        sent: dict[int, Floats] = {}
        is_single = len(columns) == len(round_)
        turns = [0 if is_single else (places[b] - places[a]) % len(places) for a, b in ends]
        for turn, column, (sender, receiver) in sorted(zip(turns, columns, ends, strict=True)):
            end, size = moved.end[rows[spots], column], int(moved.size[column])
            keys = (sender, "out"), (receiver, "in")
            out, into = (ports.get(key, full) for key in keys)
            sent[sender] = np.maximum(entered[sender], sent.get(sender, -np.inf))
            earliest = np.maximum(sent[sender], out.at)
            latest = np.maximum(np.maximum(earliest, entered[receiver]), into.at)
            held = np.minimum(*(_filled(port, latest, burst, rate) for port in (out, into)))
            idle = np.minimum(*(np.clip(latest - port.at, 0.0, 1e9) for port in (out, into)))
            yield _Message(
                column=column, link=(sender, receiver), round=links, turn=turn, size=size, sent=sent[sender], earliest=earliest,
                latest=latest, end=end, beyond=size - np.minimum(held, rate / 8 * idle), held=held,
            )  # fmt: skip
            sent[sender] = end
            for key, port in zip(keys, (out, into), strict=True):
                left = np.clip(_filled(port, end, np.inf, rate) - size, 0.0, burst)
                ports[key] = _Port(np.maximum(port.at, end), left)


def _taken(
    messages: Sequence[_Message], gaps: Gaps, link: Link
) -> Iterator[tuple[_Message, Floats, NDArray[np.bool_]]]:
    """The seconds of each message, nan where they are not known; and whether it had its ports for itself.

    Of the time in which a later message shared a port, so much is taken off as that one needs at the rate of the links, and at
    most in proportion to what it took beside this one: it was no faster then than later, when the port was its own.
    """
    import numpy as np

    betas = [direction.beta for direction in link.directions if direction.beta and not direction.is_internal]
    per_byte = min(betas, default=link.beta or (8 / link.rate if link.rate else math.inf))
    least = per_byte / _FASTER if betas else 0.0
    mates: dict[
        tuple[int, int], list[tuple[_Message, Floats]]
    ] = {}  # of each port, the latest first, with their least times
    known = []
    for message in reversed(messages):
        sides = [mates.setdefault((end, message.link[end]), []) for end in (0, 1)]
        shared = _shared(message, [side[::-1] for side in sides], per_byte)
        taken, longest = message.end - message.latest - shared, message.end - message.earliest - shared
        lost = np.maximum(
            *(gaps.within(rank, np.minimum(message.earliest, message.end), message.end) for rank in message.link)
        )
        is_known = (longest <= _SURE * taken) & (lost <= _RAN * taken) & (taken > 0)
        is_known &= (message.size - message.held >= _BEYOND * message.size) & (taken >= least * message.beyond)
        known.append((message, np.where(is_known, taken, np.nan), message.end - message.sent <= _ALONE * taken))
        for side in sides:
            side.append((message, np.where(lost <= _RAN * taken, np.maximum(taken, 0.0), 0.0)))
    return reversed(known)


def _shared(message: _Message, sides: Sequence[Sequence[tuple[_Message, Floats]]], per_byte: float) -> Floats:
    """Return what later messages may have taken of its ports. Where both ports were shared at a time, that time counts once."""
    import numpy as np

    sums = []
    for later in sides:
        seconds, first, last = (
            np.zeros_like(message.end),
            np.full_like(message.end, np.inf),
            np.full_like(message.end, -np.inf),
        )
        for other, own in later:
            if other.link == message.link:
                continue
            if not (other.start < message.end).any():
                break
            begin, end = np.maximum(message.latest, other.start), np.minimum(message.end, other.end)
            beside, after = (
                np.clip(end - begin, 0.0, None),
                np.clip(np.minimum(own, other.end - message.end), 0.0, None),
            )
            seconds += np.minimum(beside, other.size * per_byte * beside / np.maximum(beside + after, 1e-12))
            first, last = (
                np.where(begin < end, np.minimum(first, begin), first),
                np.where(begin < end, np.maximum(last, end), last),
            )
        sums.append((seconds, first, last))
    (out, out_first, out_last), (into, in_first, in_last) = sums
    both = np.maximum(np.minimum(out_last, in_last) - np.maximum(out_first, in_first), 0.0)
    shared: Floats = np.maximum(np.maximum(out, into), out + into - both)
    return shared


def _filled(port: _Port, now: Floats, burst: float, rate: float) -> Floats:
    """Return what the bucket holds now; before the first message it is full."""
    import numpy as np

    since = np.where(np.isfinite(port.at), now - port.at, 0.0)
    held: Floats = np.minimum(burst, port.tokens + rate / 8 * np.maximum(since, 0.0))
    return held


def _against_others(own: Mapping[Ends, Floats], alone: Mapping[Ends, Floats]) -> dict[Ends, Floats]:
    """Divide by the median of the other links that are not slow, by messages that were ``alone``; none for fewer than three links."""
    import numpy as np

    table = np.stack([alone[link] for link in own])
    if np.isfinite(table).any(axis=1).sum() < 3:
        return {}
    known = np.isfinite(table).sum(axis=0)
    quick = np.sort(table, axis=0)[np.maximum(known - 1, 0) // 3, np.arange(table.shape[1])]  # nan last
    is_usual = _middle((table / quick).T) <= SLOW
    result = {}
    for place, (link, figures) in enumerate(own.items()):
        others = is_usual & (np.arange(len(own)) != place)
        if others.any():
            result[link] = figures / _middle(table[others])
    return result


def _middle(table: Floats) -> Floats:
    """The median of each column without the numbers that are not known."""
    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without numbers
        middle: Floats = np.nanmedian(table, axis=0)
    return middle
