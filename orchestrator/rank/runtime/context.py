"""The context of a rank: joins the process group, passes the phases where faults act, saves and restores checkpoints, records steps."""

from __future__ import annotations

import datetime
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...model import events
from ...model import gang as gang_model
from ...model.payload import Payload
from ..checkpoint import contents, model_states, single_file, tensor_digest
from . import hold, random_states, recorder, run_gaps

if TYPE_CHECKING:
    from ..exchange import communicator

#: Phases outside of steps; the others are phases of a step.
LIFE = ("rendezvous", "init", "restore", "shutdown")
PROGRESS_S = 0.5
COMMITTED, FAILED, REFUSED, RETRY = range(4)
#: For how long writing a checkpoint is retried, if the workload has no ``checkpoint_retry_s``.
RETRY_S = 5.0
#: The pause between the first two tries, and the longest; it doubles each time.
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0

#: Names of events with these prefixes are reserved for ccbed.
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
    """One rank of one attempt. ``params``: the workload's Params; ``rng``: this rank's own generator.

    A workload calls connect(), restore(), then for every step begin_step(), phase(), all_reduce(), end_step(), save(), and
    finish() at the end. ``result`` is written with ``rank.finished``.
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
        self.begun = self._reported = 0.0
        self._first = True
        #: Variables that this process cannot apply, because they take effect when an interpreter starts.
        self.start_only: tuple[str, ...] = ()
        #: Samples of the whole batch of the current step, set by the workload; 0 if its steps have none.
        self.samples = 0
        #: Digests of the samples of this rank's share and of the whole batch, and their number in the share, if there are shares.
        self.share: tuple[str, str, int] | None = None
        #: Bytes that the first step moved, by operation, and the samples of its batch, which may be the last, short one.
        self.traffic: dict[str, int] | None = None
        self.traffic_samples = 0
        #: Bytes moved before the first step, by operation.
        self.traffic_once: dict[str, int] = {}

    @property
    def rng(self) -> torch.Generator:
        return self._generators.own

    @functools.cached_property
    def comm(self) -> communicator.Communicator:
        """The collectives of a step: counted, with every chunk transfer recorded. Imported on first use."""
        from ..exchange import communicator

        return communicator.Communicator(self.rank, self.world, self._chunks)

    def connect(self) -> None:
        """Join the gang's process group (phases ``rendezvous`` and ``init``); the store of the attempt is already up."""
        self.phase("rendezvous")
        timeout = datetime.timedelta(seconds=self.gang.timeout_s)
        dist.init_process_group(self.gang.backend, timeout=timeout, device_id=self._take_gpu())
        self.note(events.RankJoined(rank=self.rank, world=self.world, backend=self.gang.backend))
        self.phase("init")

    def _take_gpu(self) -> torch.device | None:
        """Select the GPU of LOCAL_RANK and deterministic algorithms. With this device the process group connects at once."""
        if self.device.type != "cuda":
            return None
        torch.cuda.set_device(self.device)
        torch.use_deterministic_algorithms(True, warn_only=True)
        return self.device

    def phase(self, name: str) -> None:
        """Pass a point at which a fault can hold this rank."""
        self._holds.reach(0 if name in LIFE else self.step, name)

    @property
    def chunks(self) -> recorder.Chunks | None:
        """The recorder of transfers; None if the workload records none."""
        return self._chunks

    def note(self, payload: Payload) -> None:
        """Write an event of ccbed to the history."""
        self._notes.note(payload)

    def emit(self, f: str, **value: Any) -> None:
        """Write an event of the workload to the history. Raises ValueError for a name that is reserved for ccbed."""
        if f == "progress" or f.partition(".")[0] in RESERVED:
            raise ValueError(
                f"{f}: is reserved for ccbed; use the name of the workload, such as mine.{f.rpartition('.')[2]}"
            )
        self._notes.emit(f, **value)

    def report_watched(self, f: str, **value: Any) -> None:
        """Write to the history what the watcher of a user's script observed."""
        self._notes.emit(f, **value)

    @property
    def events_path(self) -> str:
        """The file of this rank's events."""
        return self._notes.path

    def report_error(self, kind: str, message: str) -> None:
        """Write to the history why this rank fails."""
        self.note(events.RankError(rank=self.rank, kind=kind, message=message))

    def begin_step(self, step: int) -> None:
        self.step = step
        if self._first:
            self.traffic_once = self._moved_bytes()
        self.comm.begin(step)
        self.begun = time.monotonic()

    def _moved_bytes(self) -> dict[str, int]:
        return {operation: size for operation, (_, size) in self.comm.counted.items() if self.world > 1}

    def end_step(
        self,
        loss: float | None,
        model: torch.nn.Module | None = None,
        timed: tuple[float, float] | None = None,
        gaps: Sequence[run_gaps.Gap] | None = None,
    ) -> None:
        """Record the step, with the SHA-256 of the parameters of ``model`` if given; rank 0 reports progress.

        ``loss``: None if the workload has none. ``timed``: start and end of the part of the step that is measured; ``gaps``:
        when the process did not run in it (None: not watched). Chunk records are written here, outside of timed work.
        """
        end = time.monotonic()
        self.loss = loss or 0.0
        self._lines.add(
            self.step,
            self.loss,
            *(timed or (self.begun, end)),
            tensor_digest.model(model) if model else None,
            self.share,
            gaps,
        )
        if self._chunks:
            self._chunks.flush()
        if self._first:
            self.traffic = self._moved_bytes()
            self.traffic_samples = self.samples
            self.note(events.RankStep(rank=self.rank, step=self.step, mark="first"))
            self._first = False
        if self.rank == 0 and (end - self._reported >= PROGRESS_S or self.step == self.steps):
            self.note(events.Progress(rank=self.rank, step=self.step, steps=self.steps, loss=loss))
            self._reported = end

    def all_reduce(self, flat: torch.Tensor, algorithm: str = "ring") -> None:
        """Sum the one-dimensional ``flat`` over all ranks, in place; passes phase ``allreduce`` after the first exchange."""
        pass_phase = self.phase_once("allreduce")
        self.comm.all_reduce(flat, algorithm, pass_phase)
        pass_phase()

    def phase_once(self, phase: str) -> Callable[[], None]:
        """A function that passes ``phase`` on its first call and does nothing on later calls."""
        return _Once(self, phase)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Give every rank the tensor of ``source``, in place."""
        if self.world > 1:
            dist.broadcast(tensor, source)

    def save(
        self,
        step: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        keep: int = 3,
        *,
        states: model_states.States = model_states.REPLICATED,
    ) -> None:
        """Commit a checkpoint of all ranks after ``step``. Every rank calls it; it returns when the checkpoint is committed or lost.

        A checkpoint is lost if it cannot be written within ``checkpoint_retry_s``; the one after a lost one has a single try.
        Raises commit.Refused if a later attempt has begun, CheckpointError if anything but writing fails.
        """
        identity = contents.Identity(epoch=self.epoch, step=step, world=self.world, parent=self._parent)
        trained, pass_phase = model_states.Trained(model, optimizer), self.phase_once("checkpoint")
        begin, attempts, failed_since = time.monotonic(), 0, None
        limit = 0.0 if self._lost_last else getattr(self.params, "checkpoint_retry_s", RETRY_S)
        while True:
            code, reason = self._put(identity, trained, keep, pass_phase, states)
            attempts += 1
            pass_phase()
            if code == FAILED:
                failed_since = time.monotonic() if failed_since is None else failed_since
                code = RETRY if time.monotonic() - failed_since < limit else FAILED
            code = single_file.agree(code, self.world, self.device)
            if code != RETRY:
                break
            time.sleep(min(PAUSE_S * 2 ** (attempts - 1), LONGEST_PAUSE_S))
        if code == REFUSED:
            raise contents.Refused(identity.name, self.epoch + 1)
        self._lost_last = code == FAILED
        if code == COMMITTED:
            self._parent = identity.name
        elif self.rank == 0:
            tried_s = round(time.monotonic() - begin, 3)
            self.note(
                events.CheckpointFailed(
                    rank=self.rank, name=identity.name, reason=reason, attempts=attempts, tried_s=tried_s
                )
            )

    def save_progress(self, step: int, **progress: Any) -> None:
        """Commit what rank 0 knows after ``step``, for an attempt that begins behind it: ``progress``. Only rank 0 calls it.

        Raises commit.Refused if a later attempt has begun. What cannot be written is done again by that attempt.
        """
        identity = contents.Identity(epoch=self.epoch, step=step, world=self.world, parent=self._parent)
        code, _ = self._commit(
            identity, contents.Whole(data=single_file.saved({**progress, "step": step})), 1, lambda: None
        )
        if code == REFUSED:
            raise contents.Refused(identity.name, self.epoch + 1)
        self._parent = identity.name if code == COMMITTED else self._parent

    def resume_progress(self) -> Any:
        """The progress of an earlier attempt, with its ``step``; empty for a fresh start. Reports which it is. Raises CheckpointError."""
        resume = self.gang.resume
        if resume is None:
            self.report_fresh_start()
            return {}
        progress = single_file.load(resume)
        self.note(
            events.RankRestored(rank=self.rank, step=resume.step, name=resume.name, sha256=resume.sha256, weights=None)
        )
        return progress

    def _put(
        self,
        identity: contents.Identity,
        trained: model_states.Trained,
        keep: int,
        pass_phase: Callable[[], None],
        states: model_states.States,
    ) -> tuple[int, str]:
        """Try once to write and commit. The code of rank 0 decides."""
        try:
            content = states.put(self, identity, trained, pass_phase)
        except single_file.Unwritten as error:  # on every rank
            return self._unwritten(identity, str(error))
        return self._commit(identity, content, keep, pass_phase) if content else (COMMITTED, "")

    def restore(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        states: model_states.States = model_states.REPLICATED,
    ) -> int:
        """Load the chosen checkpoint, or begin fresh; return the step of the checkpoint (0: fresh)."""
        resume = self.gang.resume
        if resume:
            self._restore_personal(states.take(self, resume, model_states.Trained(model, optimizer)))
        else:
            states.begin(self, model)
        self.phase("restore")
        return self.report_weights(model)

    def report_weights(self, model: torch.nn.Module) -> int:
        """Report the hash of the weights that this rank begins with; return the step of the checkpoint (0: fresh)."""
        resume = self.gang.resume
        name, sha256, step = (resume.name, resume.sha256, resume.step) if resume else (None, None, 0)
        weights = tensor_digest.model(model)
        self.note(events.RankRestored(rank=self.rank, step=step, name=name, sha256=sha256, weights=weights))
        return step

    def report_fresh_start(self) -> None:
        """Report that this rank keeps no state and begins fresh."""
        self.note(events.RankRestored(rank=self.rank, step=0, name=None, sha256=None, weights=None))

    def finish(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, metrics: dict[str, float], **more: Any
    ) -> None:
        """Set the result that ``rank.finished`` carries: the last loss and the SHA-256 of all state."""
        digest = {
            **tensor_digest.tensors("model", model.state_dict()),
            **tensor_digest.optimizer(optimizer.state_dict()),
            **self._generators.digests(),
        }
        self.result = {"steps": self.steps, "loss": self.loss.hex(), "digest": digest, "metrics": metrics, **more}

    def personal(self) -> single_file.Personal:
        """The state that differs from rank to rank."""
        return single_file.Personal(self._generators.states(), self.loss)

    def _commit(
        self, identity: contents.Identity, content: contents.Body, keep: int, pass_phase: Callable[[], None]
    ) -> tuple[int, str]:
        try:
            facts = contents.commit(Path(self.gang.checkpoints), identity, content, keep=keep, before_rename=pass_phase)
        except contents.Refused as refused:
            return self._refused(refused)
        except (OSError, ValueError) as error:
            return self._unwritten(identity, getattr(error, "strerror", None) or str(error))
        names = ("name", "step", "epoch", "sha256", "parent", "bytes", "write_s")
        files = len(facts["files"]) if "files" in facts else None
        self.note(events.CheckpointCommit(rank=self.rank, files=files, **{name: facts[name] for name in names}))
        return COMMITTED, ""

    def _unwritten(self, identity: contents.Identity, reason: str) -> tuple[int, str]:
        """The error is Refused if a later attempt has begun: it removes the unfinished files of this one."""
        if self.rank == 0:
            try:
                contents.check_fence(Path(self.gang.checkpoints), identity)
            except contents.Refused as refused:
                return self._refused(refused)
            except (OSError, ValueError):
                pass  # ``reason`` is the better explanation
        return FAILED, reason

    def _refused(self, refused: contents.Refused) -> tuple[int, str]:
        self.note(events.CheckpointRefused(rank=self.rank, name=refused.name, fence=refused.fence))
        return REFUSED, ""

    def _restore_personal(self, personal: single_file.Personal | None) -> None:
        """Restore what the checkpoint holds of this rank; None: its world had no such rank."""
        if personal:
            self._generators.restore(personal.states)
        self.loss = personal.loss if personal else 0.0

    def share_weights(self, model: torch.nn.Module, algorithm: str = "library") -> None:
        """Give every rank the parameters and buffers of rank 0, in one broadcast."""
        state = list(model.state_dict().values())
        flat = torch.cat([value.reshape(-1) for value in state])
        if self.world > 1:
            self.comm.broadcast(flat, algorithm)
        for value, part in zip(state, torch.split(flat, [value.numel() for value in state]), strict=True):
            value.copy_(part.view_as(value))


class _Once:
    """Passes a phase on its first call only."""

    def __init__(self, ctx: RankContext, phase: str) -> None:
        self._ctx, self._phase, self._done = ctx, phase, False

    def __call__(self) -> None:
        if not self._done:
            self._done = True
            self._ctx.phase(self._phase)
