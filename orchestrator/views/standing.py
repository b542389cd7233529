"""Where ranks stand: in which collective, at which line of the user's code. All of it is read from stacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from ..model.frozen import dataclass

#: Frame by frame from the innermost one, each as ``FILE:LINE FUNCTION``.
Stacks = Mapping[int, tuple[str, ...]]
#: Frames of a rank that waits for its peers: a collective, or the backward pass in which gradients are reduced.
_WAITING = re.compile(r"torch/distributed/|torch/nn/parallel/distributed\.py|_engine_run_backward")
_LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python3|<frozen|<string>|payloads/\w+/orchestrator/|\.pyz/")
#: Functions of torch.distributed through which every call goes.
_WRAPPERS = ("wrapper", "_wrapper", "decorate_context", "func_return")
#: The error of a rank that has waited in vain for its peers.
TIMED_OUT = re.compile(r"timed? ?out|timeout", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that wait for their peers in one call at one line. ``call``: ``barrier``, ``all_reduce``, ``backward`` …"""

    call: str
    position: str
    ranks: tuple[int, ...]

    @property
    def text(self) -> str:
        return f"{rank_names(self.ranks)} in {self.call} at {self.position}"


def is_waiting(frames: tuple[str, ...]) -> bool:
    """Whether a rank with this stack waits for its peers."""
    return any(_WAITING.search(frame) for frame in frames)


def is_in_script(frames: tuple[str, ...]) -> bool:
    """Whether the user's code has called what a rank with this stack does."""
    return any(not _LIBRARY.search(frame) for frame in frames)


def position(frames: tuple[str, ...]) -> str:
    """The innermost frame of the user's code as ``train.py:14 (load)``."""
    frame = next((frame for frame in frames if not _LIBRARY.search(frame)), frames[0])
    place, _, function = frame.rpartition(" ")
    return f"{place.rpartition('/')[2]} ({function})"


def groups(stacks: Stacks) -> tuple[Group, ...]:
    """The ranks that wait, by call and line; the smallest group first."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, frames in sorted(stacks.items()):
        if is_waiting(frames):
            ranks.setdefault((_call(frames), position(frames)), []).append(rank)
    waiting = [Group(call=call, position=place, ranks=tuple(members)) for (call, place), members in ranks.items()]
    return tuple(sorted(waiting, key=lambda group: (len(group.ranks), group.ranks)))


def absent(stacks: Stacks) -> tuple[int, ...]:
    """The ranks whose stack shows them in no collective."""
    return tuple(sorted(rank for rank, frames in stacks.items() if frames and not is_waiting(frames)))


def waiting_text(waiting: tuple[Group, ...]) -> Iterator[str]:
    """Yield who waits where: one place, or each group with its collective."""
    if len(waiting) == 1:
        (group,) = waiting
        yield f"{rank_names(group.ranks)} {verb(group.ranks, 'waits', 'wait')} for peers at {group.position}"
    elif waiting:
        yield "ranks wait in different collectives: " + ", ".join(group.text for group in waiting)


def rank_names(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in ranks]
    listed = " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)
    return f"rank{'s' * (len(names) > 1)} {listed}"


def verb(ranks: Iterable[int], singular: str, plural: str) -> str:
    return singular if len(tuple(ranks)) == 1 else plural


def _call(frames: tuple[str, ...]) -> str:
    """The function of torch that the user's code has called, of those that wait for peers."""
    names = [frame.rpartition(" ")[2] for frame in frames if _WAITING.search(frame)]
    calls = ["backward" if name == "_engine_run_backward" else name for name in names if name not in _WRAPPERS]
    return calls[-1] if calls else names[-1]
