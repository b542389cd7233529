"""Tells where the ranks of a script stand: in which collective, at which line of the user's code, and what keeps them from joining."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from ..model.events import RankJoining
from ..model.frozen import dataclass

V = TypeVar("V")

#: Frame by frame from the innermost one, each as ``FILE:LINE FUNCTION``.
Stacks = Mapping[int, tuple[str, ...]]
#: Frames of a rank that waits for its peers: a collective, or the backward pass in which gradients are reduced.
_WAITING = re.compile(r"torch/distributed/(?!checkpoint/)|torch/nn/parallel/distributed\.py|_engine_run_backward")
_LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python3|<frozen|<string>|payloads/\w+/orchestrator/|\.pyz/")
#: Functions of torch.distributed through which every call goes.
_WRAPPERS = ("wrapper", "_wrapper", "decorate_context", "func_return")
#: Calls that match another call of their peer.
PAIRED = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
#: Errors of a rank that has waited in vain for its peers, or that met them in another collective: as gloo, NCCL and torch's store word
#: them. A time-out of the job's own, such as of a download, is none.
_OF_PEERS = re.compile(
    r"gloo/\S+ timed out|timed out waiting \d+ ?ms for|(collective|operation|barrier|store|socket|wait)\b.{0,80}\b(timeout|timed out)"
    r"|(timeout|timed out)\b.{0,80}\b(barrier|ranks?|clients|keys|store)\b|EnforceNotMet|op\.preamble",
    re.IGNORECASE | re.DOTALL,
)
#: Classes of errors that torch.distributed does not raise where peers are late.
_OWN_KINDS = ("TimeoutError", "TimeoutExpired", "Timeout", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that wait for their peers in one call at one line. ``call``: ``barrier``, ``all_reduce``, ``backward`` …"""

    call: str
    position: str
    ranks: tuple[int, ...]

    @property
    def text(self) -> str:
        return f"{rank_names(self.ranks)} in {self.call} at {self.position.partition(' (')[0]}"


def is_waiting(frames: tuple[str, ...]) -> bool:
    """Return whether a rank with this stack waits for its peers."""
    return any(_WAITING.search(frame) for frame in frames)


def is_of_peers(kind: str | None, message: str | None) -> bool:
    """Return whether the error of a rank, with its class, follows from where its peers are."""
    return bool(_OF_PEERS.search(message or "")) and not (kind or "").endswith(_OWN_KINDS)


def is_in_script(frames: tuple[str, ...]) -> bool:
    """Return whether the user's code has called what a rank with this stack does."""
    return any(not _LIBRARY.search(frame) for frame in frames)


def position(frames: tuple[str, ...]) -> str:
    """The innermost frame of the user's code as ``train.py:14 (load)``, at the top of a file without a function."""
    frame = next((frame for frame in frames if not _LIBRARY.search(frame)), frames[0])
    place, _, function = frame.rpartition(" ")
    return place.rpartition("/")[2] + (f" ({function})" if function != "<module>" else "")


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
        yield f"ranks wait in different collectives: {places(waiting)}"


def places(waiting: tuple[Group, ...]) -> str:
    return ", ".join(group.text for group in waiting)


def mismatches(joining: Mapping[int, RankJoining], world: int, port: int | None) -> Iterator[str]:
    """Yield what keeps the ranks apart. ``joining``: by rank; ``world``, ``port``: of the process group and store that the bed has."""
    for number, ranks in _grouped({rank: call.number for rank, call in joining.items()}).items():
        if len(ranks) > 1:
            yield f"{rank_names(ranks)} join as rank {number}: the script takes its rank from something else than RANK"
    for size, ranks in _grouped({rank: call.world for rank, call in joining.items()}).items():
        if size != world:
            yield f"{rank_names(ranks)} {verb(ranks, 'joins', 'join')} a group of {size}; there are {world} ranks (WORLD_SIZE)"
    for store, ranks in _grouped({rank: call.store for rank, call in joining.items()}).items():
        if port is not None and not store.endswith(f":{port}"):
            searching = f"{rank_names(ranks)} {verb(ranks, 'looks', 'look')} for the store at {store}"
            yield f"{searching}; that of the bed has port {port} (MASTER_ADDR, MASTER_PORT)"


def missing(joining: Collection[int], joined: Collection[int], world: int) -> Iterator[str]:
    """Yield which ranks wait in ``init_process_group``, and which have not called it."""
    waiting = sorted(set(joining) - set(joined))
    if waiting:
        yield f"{rank_names(waiting)} {verb(waiting, 'waits', 'wait')} in init_process_group"
    absent = [rank for rank in range(world) if rank not in joining and rank not in joined]
    if absent:
        yield f"{rank_names(absent)} {verb(absent, 'has', 'have')} not called it"


def _grouped(values: Mapping[int, V | None]) -> dict[V, list[int]]:
    """Value -> the ranks that have it, without those that have none."""
    ranks: dict[V, list[int]] = {}
    for rank, value in sorted(values.items()):
        if value is not None:
            ranks.setdefault(value, []).append(rank)
    return ranks


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
