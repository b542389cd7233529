"""Synthetic records of a job of a user: what the watcher writes as ranks train, save, die, and resume, rightly or wrongly."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.model import watch
from orchestrator.model.run import Run
from orchestrator.model.trial import Trial

from .synthetic import RUN as NAME
from .synthetic import Files

#: What a resumption can forget.
PARTS = ("weights", "buffers", "optimizer", "lr", "scheduler", "scaler", "rng", "data")


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass
class Job:
    """A job that saves by rank 0 every ``every`` steps. ``k``: the state is recorded at every k-th step.

    ``sharded``: each rank holds and saves a part. ``saves``: whether saves are recorded.
    """

    world: int = 2
    every: int = 5
    k: int = 1
    sharded: bool = False
    dropout: bool = True
    loader: bool = True
    momentum: bool = True
    saves: bool = True
    loss: bool = True
    files: list[watch.WatchFile] = field(default_factory=list)
    now: float = 100.0

    def attempt(
        self, number: int, begin: int, until: int, *, forgets: Iterable[str] = (), ranks: Iterable[int] | None = None,
        loaded: int | None = None, ends: bool = False, bare: Iterable[int] = (), broken: Iterable[int] = (), restart: int = 0,
    ) -> Job:  # fmt: skip
        """Ranks resume from step ``begin`` and train until ``until``.

        ``forgets``: parts that ``ranks`` (all by default) begin with anew; ``loaded``: the step of the file that they load;
        ``ends``: they leave normally; ``bare``: ranks without a record; ``broken``: steps whose file could not be read.
        """
        forgetful = set(range(self.world)) if ranks is None else set(ranks)
        start = self.now
        for rank in range(self.world):
            self.now = start
            lost = set(forgets) if rank in forgetful else set()
            if rank not in bare:
                loads = self._loads(begin if loaded is None else loaded, broken) if number or restart else []
                lines = [
                    *self._head(number, rank, restart),
                    *loads,
                    *self._training(number, rank, begin, until, lost, ends),
                ]
                file = watch.WatchFile(
                    path=f"nodes/n{rank}/i1-e{number}/watch-r{rank}-{number}{rank}.jsonl", node=f"n{rank}", attempt=number,
                    rank=rank, pid=10 * number + rank, lines=tuple(lines),
                )  # fmt: skip
                self.files.append(file)
        self.now += 100
        return self

    def run(self) -> Run:
        """Only the records: without a bed."""
        return Run(
            directory="", trial=Trial(name=NAME, workload="script"), history=_empty(), files=Files(processes=self.files)
        )

    # --- the lines of a process -----------------------------------------------------------------------------------------

    def _head(self, number: int, rank: int, restart: int) -> list[watch.Line]:
        t = self.now
        begin = watch.Begin(
            t=t, format=1, rank=rank, pid=10 * number + rank, world=self.world, attempt=number, restart=restart, wall=t
        )
        shards = tuple(range(self.world)) if self.sharded else ()
        owner = watch.Owner(t=t, optimizer="Adam", names="module", sharded=self.sharded, shards=shards)
        return [begin, watch.Joined(t=t, world=self.world, rank=rank), owner]

    def _loads(self, step: int, broken: Iterable[int]) -> list[watch.Line]:
        failed = [
            watch.Load(
                t=self.now, api="torch.load", path=self._path(bad), error="PytorchStreamReader: not a ZIP archive"
            )
            for bad in broken
        ]
        if not step:
            return [*failed]
        weights = None if self.sharded else self._whole(step)
        return [
            *failed,
            watch.Load(
                t=self.now, id=step, api="torch.load", path=self._path(step), sha256=self._sum(step), weights=weights
            ),
        ]

    def _training(self, number: int, rank: int, begin: int, until: int, lost: set[str], ends: bool) -> list[watch.Line]:
        lines: list[watch.Line] = []
        for step in range(begin, until):
            due = step == begin or step % self.every == 0
            if due or (step - begin) % self.k == 0:
                lines.append(self._state(rank, step, step - begin, lost, full=due))
            drawn: dict[str, Any] = (
                {"rng": {"torch": digest("rng", rank, step)}, "lr": _rates(step, lost)} if self.dropout else {}
            )
            lines.append(dataclasses.replace(self._step(rank, step + 1, step + 1 - begin, lost), **drawn))
            if self.saves and (step + 1) % self.every == 0 and (rank == 0 or self.sharded):
                lines += self._save(rank, step + 1, step + 1 - begin, lost)
            self.now += 0.001
        if ends:
            lines += [
                self._state(rank, until, until - begin, lost, full=True),
                watch.End(t=self.now, n=until - begin, code=0),
            ]
        return lines

    def _state(self, rank: int, step: int, n: int, lost: set[str], *, full: bool) -> watch.State:
        def value(part: str, *more: object) -> str:
            return digest(part, *((n, "anew") if part in lost else (step,)), *more, *self._drift(lost, n))

        if not full:
            return watch.State(
                t=self.now, n=n, weights=self._weights(rank, step, n, lost), counter=self._counter(step, n, lost)
            )
        optimizer = {"exp_avg": value("optimizer", rank if self.sharded else "")} if self.momentum and step else {}
        return watch.State(
            t=self.now, n=n, full=True, weights=self._weights(rank, step, n, lost), counter=self._counter(step, n, lost),
            buffers=value("buffers"), optimizer={} if "optimizer" in lost and n == 0 else optimizer,
            lr=_rates(step, lost),
            scheduler=[n if "scheduler" in lost else step], scaler={"scale": 1.0 if "scaler" in lost else 2.0 + step},
            rng={"torch": digest("rng", rank, (n, "anew") if "rng" in lost else step)} if self.dropout else {"torch": "same"},
            batch=self._batch(rank, step + 1, n + 1, lost),
        )  # fmt: skip

    def _step(self, rank: int, step: int, n: int, lost: set[str]) -> watch.Step:
        batches = (self._batch(rank, step, n, lost) or "",) if self.loader else None
        loss = (float(int(digest("loss", rank, step, *self._drift(lost - {"scaler"}, n))[:4], 16)) / 7).hex()
        return watch.Step(
            t=self.now, n=n, start=self.now - 0.001, end=self.now, loss=loss if self.loss else None, batches=batches
        )

    def _save(self, rank: int, step: int, n: int, lost: set[str]) -> list[watch.Line]:
        weights = self._weights(rank, step, n, lost)
        return [
            watch.Save(t=self.now, id=step, n=n, api="torch.save", path=self._path(step)),
            watch.Saved(t=self.now, id=step, weights=weights, matched=1.0),
            watch.Committed(t=self.now, id=step, path=self._path(step), sha256=self._sum(step), how="rename"),
        ]

    # --- values -----------------------------------------------------------------------------------------------------------

    def _drift(self, lost: set[str], n: int) -> tuple[object, ...]:
        """What differs from the undisturbed job after the first step that a forgotten part has influenced."""
        return ("drift", *sorted(lost)) if lost and n else ()

    def _weights(self, rank: int, step: int, n: int, lost: set[str]) -> str:
        own = digest("weights", n if "weights" in lost else step, *self._drift(lost, n))
        return digest(own, rank) if self.sharded else own

    def _whole(self, step: int) -> str:
        return digest("weights", step)

    def _counter(self, step: int, n: int, lost: set[str]) -> float | None:
        return float(n if "optimizer" in lost else step) if self.momentum else None

    def _batch(self, rank: int, step: int, n: int, lost: set[str]) -> str | None:
        return digest("batch", rank, n if "data" in lost else step) if self.loader else None

    def _path(self, step: int) -> str:
        return f"/ckpt/{step}.pt"

    def _sum(self, step: int) -> str:
        return hashlib.sha256(f"file {step}".encode()).hexdigest()


def _empty() -> Any:
    from orchestrator.model.event import History

    return History(())


def _rates(step: int, lost: set[str]) -> tuple[str]:
    return ((0.1 if "lr" in lost else 0.1 / (1 + step)).hex(),)


def right(**about: Any) -> Job:
    """Killed in step 19, resumed from 15, until 30."""
    return Job(**about).attempt(0, 0, 18).attempt(1, 15, 30, ends=True)


def wrong(*forgets: str, **about: Any) -> Job:
    """Resumed without these parts."""
    return Job().attempt(0, 0, 18).attempt(1, 15, 30, forgets=forgets, ends=True, **about)


def rounded(job: Job, *bases: int) -> Job:
    """The job, whose losses after failures differ from those of the undisturbed one as much as sums in another order do.

    ``bases``: the steps that it resumed from; default: 15.
    """

    def change(rank: int, base: int, line: watch.Line) -> watch.Line:
        if not isinstance(line, watch.Step):
            return line
        loss = float(int(digest("loss", rank, base + line.n)[:4], 16)) / 7
        return dataclasses.replace(line, loss=(loss * (1 + 1e-8)).hex())

    job.files = [
        dataclasses.replace(f, lines=tuple(change(f.rank, (bases or (15,))[f.attempt - 1], x) for x in f.lines))
        if f.attempt
        else f
        for f in job.files
    ]
    return job
