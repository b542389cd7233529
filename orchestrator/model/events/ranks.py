"""Reports of ranks on themselves, and their exits as the agent sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..payload import Payload, Record, null, nullable, payload, record
from .field_types import Count, Figure, Rank, Ranks, Seconds, Step, Whole


@payload("rank.start", writer="rank")
class RankStart(Payload):
    """A rank started. ``ppid``: of the agent, as the rank sees it; ``files``: name -> SHA-256.

    ``cold``: variables that a running interpreter cannot apply, so that the rank's script starts a new one.
    ``imports``: what a reserve has imported for the script before its order, or why it has not.
    """

    rank: Rank
    pid: Whole | None = None
    ppid: Whole | None = None
    threads: Count | None = None
    preloaded: tuple[str, ...] | None = None
    files: Mapping[str, str] | None = None
    cold: tuple[str, ...] | None = None
    imports: str | None = None


@payload("rank.joining", writer="rank")
class RankJoining(Payload):
    """A rank of a script calls ``init_process_group`` for the first time: as rank ``number`` of ``world``, with the store ``HOST:PORT``.

    What the call does not show is absent.
    """

    rank: Rank
    number: Rank | None = None
    world: Ranks | None = None
    store: str | None = None


@payload("rank.joined", writer="rank")
class RankJoined(Payload):
    """A rank joined the process group of ``world`` ranks."""

    rank: Rank
    world: Ranks | None = None
    backend: str | None = None


@payload("rank.restored", writer="rank")
class RankRestored(Payload):
    """The state that a rank begins with. ``weights``: SHA-256 of its parameters; a measurement has step 0 and no others."""

    rank: Rank
    step: Step | None = null()
    name: str | None = null()
    sha256: str | None = null()
    weights: str | None = null()


@payload("rank.step", writer="rank")
class RankStep(Payload):
    """The first step that this rank completed in this attempt (``mark``: first).

    Of a script also its newest step (``mark``: newest), counted from the start of its process ``pid``; ``offset``: the steps that
    its optimizer had made before, where it counts them. ``pause_s``: steps are reported seldom, the next one after so many
    seconds at the earliest.
    """

    rank: Rank
    step: Step
    mark: str | None = None
    pid: Whole | None = None
    offset: Whole | None = None
    pause_s: Seconds | None = None


@payload("rank.unobserved", writer="rank")
class RankUnobserved(Payload):
    """A part of a script's state that this rank's watcher cannot observe, so that it cannot be judged, and ``why``. Reported once."""

    rank: Rank
    what: str
    why: str | None = None


@payload("rank.inside", writer="rank")
class RankInside(Payload):
    """The rank passed the point at which another rank is held, or waits for it. ``hold``: id of the fault.

    ``stack``: the innermost functions of its main thread, which does not move.
    """

    rank: Rank
    step: Step | None = None
    phase: str | None = None
    hold: str
    stack: tuple[str, ...] | None = None


@payload("rank.held", writer="rank")
class RankHeld(Payload):
    """The rank is held at this point. ``hold``: id of the fault. ``exact``: whether its device has no work left."""

    rank: Rank
    step: Step | None = None
    phase: str | None = None
    hold: str
    exact: bool | None = None


@payload("rank.released", writer="rank")
class RankReleased(Payload):
    """The held rank continues."""

    rank: Rank
    hold: str
    held_s: Seconds | None = None


@payload("hold.expired", writer="rank")
class HoldExpired(Payload):
    """The held rank was not released in time: the verdict is unknown."""

    rank: Rank
    hold: str
    held_s: Seconds | None = None


@record
class FilePrefix(Record):
    """The number of bytes of a file that were written by then, and their SHA-256."""

    bytes: Count | None = None
    sha256: str | None = None


@payload("rank.finished", writer="rank")
class RankFinished(Payload):
    """The rank completed its workload. ``digest``: name of a tensor or random state -> SHA-256; ``transfers``: chunk records.

    ``files``: name -> SHA-256; ``records``: of a script, the watcher's records.
    """

    rank: Rank
    steps: Step | None = null()
    loss: Figure | None = null()
    digest: Mapping[str, str | None] | None = None
    metrics: Any = None
    verified: Count | None = None
    loss_mean: Figure | None = None
    transfers: Count | None = None
    files: Mapping[str, str] | None = None
    records: Mapping[str, FilePrefix] | None = None


@payload("rank.error", writer="rank")
class RankError(Payload):
    """The reason why a rank ends. ``kind``: of the error; ``culprit``: the rank that caused it, where that may be another.

    ``stack``: of a script, where the error arose: frames as ``FILE:LINE FUNCTION``, the innermost first.
    """

    rank: Rank
    kind: str | None = None
    message: str | None = None
    culprit: Rank | None = None
    stack: tuple[str, ...] | None = None


@payload("rank.exit", writer="agent")
class RankExit(Payload):
    """The process of a rank exited: a detector unless ``code`` is 0. Below 0: a signal; null where it is not known.

    ``error``: the exception that ``torch.distributed.elastic``'s ``@record`` wrote into the error file of the rank, or why C++ ended it.
    """

    rank: Rank
    pid: Whole | None = null()
    code: Whole | None = nullable()
    last_step: Step | None = null()
    error: str | None = None


@payload("progress", writer="rank")
class Progress(Payload):
    """Rank 0 reports its newest step, at most twice a second; under a launcher the first worker ``pid`` of each node.

    ``pause_s``: see `RankStep`.
    """

    rank: Rank | None = None
    step: Step | None = None
    steps: Step | None = null()
    loss: Figure | None = None
    pid: Whole | None = None
    pause_s: Seconds | None = None


@payload("traffic", writer="rank")
class Traffic(Payload):
    """Bytes that a rank sent, by operation: in its first step and, with ``once``, before it; beside what the workload predicts."""

    rank: Rank | None = None
    measured: Mapping[str, Figure] | None = None
    predicted: Mapping[str, Figure] | None = None
    samples: Count | None = None
    once: Mapping[str, Figure] | None = None
    once_predicted: Mapping[str, Figure] | None = None
