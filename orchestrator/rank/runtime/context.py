"""What a workload is given: the rank's place in the gang, and every effect that it may have."""

from __future__ import annotations

import datetime
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...model import gang as gang_model
from ..checkpoint import commit, contents, model_states, single_file, tensor_digest
from . import hold, random_states, recorder

if TYPE_CHECKING:
    from ..exchange import communicator

#: Phases of a rank's life; the others are phases of a step.
LIFE = ("rendezvous", "init", "restore", "shutdown")
PROGRESS_S = 0.5
COMMITTED, FAILED, REFUSED, AGAIN = range(4)
#: A checkpoint that cannot be written is tried again for so long, where the workload has no ``checkpoint_retry_s``.
RETRY_S = 5.0
#: Between the first two attempts; twice as long each time, up to the second figure.
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0

#: Names of events that begin so are ccbed's own.
RESERVED = (
    "run",
    "node",
    "rank",
    "gang",
    "fault",
    "heal",
    "hold",
    "lease",
    "checkpoint",
    "recovery",
    "resume",
    "agent",
)


class RankContext:
    """One rank of one epoch. ``params`` are the workload's Params; ``rng`` is this rank's own generator.

    ``result`` is what ``rank.finished`` will say. A workload calls connect(), restore(), then for every step begin_step(),
    phase(), all_reduce(), end_step(), save(); and finish() at the end.
    """

    def __init__(
        self, gang: gang_model.GangSpec, rank: int, *, params: Any, notes: recorder.Notes, release_fd: int
    ) -> None:
        self.gang, self.rank, self.params = gang, rank, params
        self.world, self.epoch, self.seed = gang.world_size, gang.epoch, gang.seed
        self.device = torch.device("cuda", gang.ranks.index(rank)) if gang.backend == "nccl" else torch.device("cpu")
        self._generators = random_states.Generators(gang.seed, rank, self.device)
        self.step, self.steps, self.loss = 0, 0, 0.0
        self.result: dict[str, Any] = {"steps": 0, "loss": None, "digest": {}, "metrics": {}}
        self._notes = notes
        self._holds = hold.Holds(gang.holds, rank, release_fd, notes)
        self._lines = recorder.Steps(str(Path(gang.out) / f"steps-r{rank}.jsonl"))
        recording = getattr(params, "record", True)
        self._chunks = recorder.Chunks(str(Path(gang.out) / f"chunks-r{rank}.bin")) if recording else None
        self._parent = gang.resume.name if gang.resume else None
        self._lost_last = False
        self.begun = self._told = 0.0
        self._first = True
        #: Samples of the whole batch of the step under way; the workload says how many, 0 where its steps have none.
        self.samples = 0
        #: What the first step moved: operation -> bytes; and how many samples it had: it may be an epoch's short last one.
        self.traffic: dict[str, int] | None = None
        self.traffic_samples = 0
        #: What was moved before the first step.
        self.traffic_once: dict[str, int] = {}

    @property
    def rng(self) -> torch.Generator:
        return self._generators.own

    @functools.cached_property
    def comm(self) -> communicator.Communicator:
        """Collectives of a step; counted, and every chunk transfer recorded. Loaded by the workloads that have any."""
        from ..exchange import communicator

        return communicator.Communicator(self.rank, self.world, self._chunks)

    def connect(self) -> None:
        """Join the gang's process group (``rendezvous``, ``init``); the epoch's store is already up."""
        self.phase("rendezvous")
        timeout = datetime.timedelta(seconds=self.gang.timeout_s)
        dist.init_process_group(self.gang.backend, timeout=timeout, device_id=self._take_gpu())
        self._notes.note("rank.joined", world=self.world, backend=self.gang.backend)
        self.phase("init")

    def _take_gpu(self) -> torch.device | None:
        """The GPU of LOCAL_RANK, used so that it gives the same bits again. Given to the process group, it connects at once."""
        if self.device.type != "cuda":
            return None
        torch.cuda.set_device(self.device)
        torch.use_deterministic_algorithms(True, warn_only=True)
        return self.device

    def phase(self, name: str) -> None:
        """A point at which a fault can hold this rank."""
        self._holds.reach(0 if name in LIFE else self.step, name)

    def point(self, name: str) -> Callable[[], None]:
        """A phase of this step that is passed at the first call, and at no other."""
        return _Once(self, name)

    @property
    def chunks(self) -> recorder.Chunks | None:
        """Where transfers are recorded; None where the workload does not want it."""
        return self._chunks

    def emit(self, f: str, **value: Any) -> None:
        """An observation of the workload's own, into the history. Raises ValueError for a name that ccbed itself uses."""
        if f == "progress" or f.partition(".")[0] in RESERVED:
            raise ValueError(
                f"{f}: a name of ccbed's own; name it after the workload, such as mine.{f.rpartition('.')[2]}"
            )
        self._notes.note(f, **value)

    def report_error(self, kind: str, message: str) -> None:
        """Into the history: why this rank fails."""
        self._notes.note("rank.error", kind=kind, message=message)

    def begin_step(self, step: int) -> None:
        self.step = step
        if self._first:
            self.traffic_once = self._moved()
        self.comm.begin(step)
        self.begun = time.monotonic()

    def _moved(self) -> dict[str, int]:
        return {operation: size for operation, (_, size) in self.comm.counted.items()}

    def end_step(
        self, loss: float | None, model: torch.nn.Module | None = None, timed: tuple[float, float] | None = None
    ) -> None:
        """The optimizer was applied, the step's time is over: record it, with the SHA-256 of ``model``'s parameters if given.

        ``loss`` None: there is none in this workload. ``timed``: the part of the step that counts. Chunks are written here,
        outside of timed work; rank 0 reports progress.
        """
        end = time.monotonic()
        self.loss = loss or 0.0
        self._lines.add(
            self.step, self.loss, *(timed or (self.begun, end)), tensor_digest.model(model) if model else None
        )
        if self._chunks:
            self._chunks.flush()
        if self._first:
            self.traffic = self._moved()
            self.traffic_samples = self.samples
            self._notes.note("rank.step", step=self.step, mark="first")
            self._first = False
        if self.rank == 0 and (end - self._told >= PROGRESS_S or self.step == self.steps):
            told = {} if loss is None else {"loss": loss}
            self._notes.note("progress", step=self.step, steps=self.steps, **told)
            self._told = end

    def all_reduce(self, flat: torch.Tensor, algorithm: str = "ring") -> None:
        """Sum the one-dimensional ``flat`` over all ranks, in place; passes phase ``allreduce`` after the first exchange."""
        passed = self.passing("allreduce")
        self.comm.all_reduce(flat, algorithm, passed)
        passed()

    def passing(self, phase: str) -> Callable[[], None]:
        """A call that passes ``phase`` the first time, and does nothing after that."""
        return _Once(self, phase)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Give every rank ``source``'s tensor, in place."""
        if self.world > 1:
            dist.broadcast(tensor, source)

    def save(
        self,
        step: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        keep: int = 3,
        *,
        held: model_states.States = model_states.REPLICATED,
    ) -> None:
        """Commit a checkpoint of all ranks after ``step``. Every rank calls it and returns when it is committed, or lost.

        It is lost where it still cannot be written after ``checkpoint_retry_s``; after a lost one the next has one attempt.
        Raises commit.Refused if a later epoch has taken over, CheckpointError where it is not the writing that failed.
        """
        identity = commit.Identity(epoch=self.epoch, step=step, world=self.world, parent=self._parent)
        passed = self.passing("checkpoint")
        begin, attempts, failed_since = time.monotonic(), 0, None
        limit = 0.0 if self._lost_last else getattr(self.params, "checkpoint_retry_s", RETRY_S)
        while True:
            code, reason = self._put(identity, model, optimizer, keep, passed, held)
            attempts += 1
            passed()
            if code == FAILED:
                failed_since = time.monotonic() if failed_since is None else failed_since
                code = AGAIN if time.monotonic() - failed_since < limit else FAILED
            code = single_file.agree(code, self.world, self.device)
            if code != AGAIN:
                break
            time.sleep(min(PAUSE_S * 2 ** (attempts - 1), LONGEST_PAUSE_S))
        if code == REFUSED:
            raise commit.Refused(identity.name, self.epoch + 1)
        self._lost_last = code == FAILED
        if code == COMMITTED:
            self._parent = identity.name
        elif self.rank == 0:
            tried = round(time.monotonic() - begin, 3)
            self._notes.note("checkpoint.failed", name=identity.name, reason=reason, attempts=attempts, tried_s=tried)

    def _put(
        self,
        identity: commit.Identity,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        keep: int,
        passed: Callable[[], None],
        held: model_states.States,
    ) -> tuple[int, str]:
        """One attempt to write and commit. What counts is the code of rank 0."""
        try:
            content = held.put(self, identity, model, optimizer, passed)
        except single_file.Unwritten as error:  # on every rank
            return self._unwritten(identity, str(error))
        return self._commit(identity, content, keep, passed) if content else (COMMITTED, "")

    def restore(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        held: model_states.States = model_states.REPLICATED,
    ) -> int:
        """Take the state of the chosen checkpoint, or what a fresh start gives; the step it holds (0: fresh)."""
        resume = self.gang.resume
        if resume:
            self._take(held.take(self, resume, model, optimizer))
        else:
            held.begin(self, model)
        self.phase("restore")
        return self.tell_weights(model)

    def tell_weights(self, model: torch.nn.Module) -> int:
        """Tell by a hash which weights this rank begins with; the step that they are of (0: fresh)."""
        resume = self.gang.resume
        name, sha256, step = (resume.name, resume.sha256, resume.step) if resume else (None, None, 0)
        self._notes.note("rank.restored", step=step, name=name, sha256=sha256, weights=tensor_digest.model(model))
        return step

    def tell_fresh(self) -> None:
        """This rank keeps no state: it begins anew, whatever was before."""
        self._notes.note("rank.restored", step=0, name=None, sha256=None, weights=None)

    def finish(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, metrics: dict[str, float], **more: Any
    ) -> None:
        """What ``rank.finished`` tells: the last loss and the SHA-256 of all state."""
        found = {
            **tensor_digest.tensors("model", model.state_dict()),
            **tensor_digest.optimizer(optimizer.state_dict()),
            **self._generators.digests(),
        }
        self.result = {"steps": self.steps, "loss": self.loss.hex(), "digest": found, "metrics": metrics, **more}

    def personal(self) -> single_file.Personal:
        """What this rank has that no other has."""
        return single_file.Personal(self._generators.states(), self.loss)

    def _commit(
        self, identity: commit.Identity, content: contents.Body, keep: int, passed: Callable[[], None]
    ) -> tuple[int, str]:
        try:
            facts = commit.commit(Path(self.gang.checkpoints), identity, content, keep=keep, before_rename=passed)
        except commit.Refused as refused:
            return self._refused(refused)
        except (OSError, ValueError) as error:
            return self._unwritten(identity, getattr(error, "strerror", None) or str(error))
        kept = ("name", "step", "epoch", "sha256", "parent", "bytes", "write_s")
        files = {"files": len(facts["files"])} if "files" in facts else {}
        self._notes.note("checkpoint.commit", **{name: facts[name] for name in kept}, **files)
        return COMMITTED, ""

    def _unwritten(self, identity: commit.Identity, reason: str) -> tuple[int, str]:
        """A gang that has been replaced is refused, whatever went wrong: the next epoch sweeps its unfinished files away."""
        if self.rank == 0:
            try:
                commit.check_fence(Path(self.gang.checkpoints), identity)
            except commit.Refused as refused:
                return self._refused(refused)
            except (OSError, ValueError):
                pass  # the reason for the failure says more
        return FAILED, reason

    def _refused(self, refused: commit.Refused) -> tuple[int, str]:
        self._notes.note("checkpoint.refused", name=refused.name, fence=refused.fence)
        return REFUSED, ""

    def _take(self, mine: single_file.Personal | None) -> None:
        """Go on from what a checkpoint holds of this rank; None: that world had no such rank."""
        if mine:
            self._generators.restore(mine.states)
        self.loss = mine.loss if mine else 0.0

    def share_weights(self, model: torch.nn.Module, algorithm: str = "library") -> None:
        """Give every rank rank 0's parameters and buffers, in one broadcast."""
        state = list(model.state_dict().values())
        flat = torch.cat([value.reshape(-1) for value in state])
        if self.world > 1:
            self.comm.broadcast(flat, algorithm)
        for value, part in zip(state, torch.split(flat, [value.numel() for value in state]), strict=True):
            value.copy_(part.view_as(value))


class _Once:
    """A phase point that is passed at its first call only."""

    def __init__(self, ctx: RankContext, phase: str) -> None:
        self._ctx, self._phase, self._done = ctx, phase, False

    def __call__(self) -> None:
        if not self._done:
            self._done = True
            self._ctx.phase(self._phase)
