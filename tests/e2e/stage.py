"""A stage on which real ranks play epochs over gloo, forked from a warm process, without agent and orchestrator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.model import codec, gang
from orchestrator.node.agent import rank_processes

ROOT = Path(__file__).parent.parent.parent
TEMPLATE = Path(__file__).parent / "template.py"


@dataclass(frozen=True)
class Played:
    """One epoch that was played."""

    codes: Mapping[int, int]
    events: Sequence[Mapping[str, Any]]
    out: Path

    def of(self, name: str) -> list[Mapping[str, Any]]:
        return [event["value"] for event in self.events if event["f"] == name]

    def finished(self) -> dict[int, Mapping[str, Any]]:
        return {value["rank"]: value for value in self.of("rank.finished")}

    def steps(self, rank: int) -> list[Mapping[str, Any]]:
        return [json.loads(line) for line in (self.out / f"n{rank}/steps-r{rank}.jsonl").read_text().splitlines()]

    def losses(self, rank: int) -> dict[int, str]:
        return {line["step"]: line["loss"] for line in self.steps(rank)}

    def watched(self, rank: int) -> list[Mapping[str, Any]]:
        """The lines that the watcher recorded in the process of this rank."""
        (path,) = (self.out / f"n{rank}").glob(f"watch-r{rank}-*.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def log(self, rank: int) -> str:
        return (self.out / f"n{rank}/rank-{rank}.log").read_text()


class Stage:
    """Plays epochs of a trial in the warm process."""

    def __init__(self, warm: subprocess.Popen[str], directory: Path) -> None:
        self._warm, self.directory = warm, directory
        self.checkpoints = directory / "checkpoints"
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.user = directory / "payload" / "user"

    def play(
        self,
        *,
        world: int = 4,
        epoch: int = 0,
        overtaken_by: int | None = None,
        more: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> Played:
        self._fence(epoch)
        events, out = self.directory / f"events-{epoch}", self.directory / f"out-{epoch}"
        events.mkdir()
        gangs = [codec.plain(self._gang(node, world, epoch, out, spec)) for node in range(world)]
        for spec_ in gangs:
            Path(spec_["out"]).mkdir(parents=True)
        request = {"events": str(events), "gangs": gangs, "release": {}, "deadline_s": 300, **(more or {})}
        assert self._warm.stdin and self._warm.stdout
        self._warm.stdin.write(json.dumps(request) + "\n")
        self._warm.stdin.flush()
        if overtaken_by is not None:
            while not any(b"rank.joined" in path.read_bytes() for path in events.iterdir()):
                time.sleep(0.002)
            self._fence(overtaken_by)
        codes = {int(rank): code for rank, code in json.loads(self._warm.stdout.readline())["codes"].items()}
        lines = [json.loads(line) for path in sorted(events.iterdir()) for line in path.read_text().splitlines()]
        return Played(codes, sorted(lines, key=lambda line: line["at"]["mono"]), out)

    def script(
        self,
        text: str,
        *,
        world: int = 2,
        epoch: int = 0,
        out: bool = False,
        holds: Sequence[gang.Hold] = (),
        more: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Played:
        """Play a user's script, with a module ``helper`` and, for ``out``, an empty directory of that name beside it."""
        (self.user / "out" if out else self.user).mkdir(parents=True, exist_ok=True)
        (self.user / "job.py").write_text(text)
        (self.user / "helper.py").write_text("word = 'hello'\n")
        values = {"file": str(self.user / "job.py"), "cwd": str(self.directory), **params}
        place = gang.WorkDir(root=str(self.user), path=str(self.user))
        return self.play(
            world=world, epoch=epoch, workload="script", work_dir=place, params=values, holds=tuple(holds), more=more
        )

    def has_event(self, name: str, epoch: int = 0) -> bool:
        """Whether a rank has noted ``name`` already."""
        needle = f'"f":"{name}"'.encode()
        return any(needle in path.read_bytes() for path in (self.directory / f"events-{epoch}").glob("*"))

    def last_step(self, rank: int, epoch: int = 0) -> int:
        """The last step that a rank has finished."""
        return rank_processes.last_step(str(self.directory / f"out-{epoch}/n{rank}"), rank)

    def _fence(self, epoch: int) -> None:
        temporary = self.directory / "fence"
        temporary.write_text(json.dumps({"epoch": epoch}))
        temporary.replace(self.checkpoints / "fence.json")

    def resume(self, name: str) -> gang.Resume:
        facts = json.loads((self.checkpoints / f"{name}.json").read_text())
        path = str(self.checkpoints / facts["file"])
        return gang.Resume(name=name, path=path, step=facts["step"], sha256=facts["sha256"])

    def _gang(self, node: int, world: int, epoch: int, out: Path, spec: Mapping[str, Any]) -> gang.GangSpec:
        base: dict[str, Any] = {
            "run": "r", "epoch": epoch, "world_size": world, "nodes": world, "group_rank": node, "ranks": (node,),
            "master_addr": "127.0.0.1", "master_port": 0, "backend": "gloo", "timeout_s": 60.0, "max_restarts": 3,
            "workload": "train-dp", "params": {}, "seed": 7, "payload": str(ROOT), "out": str(out / f"n{node}"),
            "checkpoints": str(self.checkpoints), "interface": "lo",
        }  # fmt: skip
        return gang.GangSpec(**{**base, **spec})


@contextmanager
def warmed() -> Iterator[subprocess.Popen[str]]:
    """The process that forks ranks."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(TEMPLATE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=env, start_new_session=True,
    )  # fmt: skip
    yield process
    assert process.stdin
    process.stdin.close()
    process.wait(60)
