"""Long jobs: bytes of records, and memory and time to judge them, by steps and ranks. ``make bench-growth``.

A simulated job makes a step each second, saves every ten minutes, loses its ranks at 60 % and resumes. The watcher's own code writes
its records. The judging process is ``ccbed judge``: it reads, folds and checks all of them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rank.watcher import record, thinned_steps

from .test_report import used

STEPS, RANKS, MILLION = (300, 3_000, 30_000, 100_000), (4, 64), 1_000_000
DAY = 86_400
OUT = Path(__file__).parent / "out"
#: Bytes per rank and day at one step a second; MiB of the judging process; seconds of its processor for 100,000 x 4.
DAY_BYTES, JUDGE_MIB, JUDGE_S = 2_000_000, 200.0, 3.0
#: Bytes of a record by which each step after the first ones makes it longer.
SLOPE_BYTES = 12.0
#: How much more memory ten times as many steps may take.
GROWTH = 1.6


@dataclass(frozen=True)
class Job:
    """``every``: steps between two saves; ``states``: between two states outside of windows."""

    steps: int
    every: int
    states: int = 64

    @property
    def lost_after(self) -> int:
        return self.steps * 6 // 10 + self.every // 3

    @property
    def resumed(self) -> int:
        return self.lost_after // self.every * self.every


def digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def loss_of(rank: int, step: int) -> str:
    """As a tensor of float32 has it."""
    fraction = int.from_bytes(hashlib.blake2b(b"%d/%d" % (rank, step), digest_size=3).digest(), "big")
    return ((1 + fraction / (1 << 24)) / 8).hex()


def write(folder: Path, job: Job, rank: int) -> None:
    """The records of both attempts of a rank."""
    for attempt, (begin, end) in enumerate(((0, job.lost_after), (job.resumed, job.steps))):
        recorder = record.Recorder(str(folder))
        recorder.path = folder / f"watch-r{rank}-{1000 * (attempt + 1) + rank}.jsonl"
        os.close(recorder._fd)
        recorder._fd = os.open(recorder.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for kind, fields in lines(job, attempt, rank, begin, end):
            recorder.append(kind, record.text_of({"k": kind, **fields}), fields)
            if kind == "step":
                recorder.replace_old(fields["n"], begin)
        os.close(recorder._fd)
    (folder / f"watch-r0-{os.getpid()}.jsonl").unlink(missing_ok=True)


def lines(job: Job, attempt: int, rank: int, begin: int, end: int) -> Iterator[tuple[str, dict[str, Any]]]:
    t = 1000.0 + attempt * 1e7
    pid = 1000 * (attempt + 1) + rank
    yield (
        "begin",
        {"t": t, "format": 1, "rank": rank, "pid": pid, "world": 4, "attempt": attempt, "wall": t, "node": f"n{rank}"},
    )
    yield "joined", {"t": t, "world": 4, "rank": rank, "backend": "gloo"}
    yield "owner", {"t": t, "optimizer": "AdamW", "names": "module", "tensors": 2, "numel": 272, "sharded": False}
    if attempt:
        yield "load", {"t": t, "id": 1, "n": 0, "api": "torch.load", "path": "/ckpt", "weights": digest("w", begin)}
    least = 1
    for step in range(begin, end):
        n = step - begin
        least = max(1, thinned_steps.interval(step) // 16) if n & (n - 1) == 0 else least
        is_marked = step % job.every == 0
        is_window = step % job.every <= 16
        if is_window or step % max(job.states, least) == 0:
            yield "state", state(step, n, t, is_window, is_marked)
        moment = {"rng": {}, "batches": [digest("b", rank, step)]} if is_window else {"batches": [None]}
        end_t = t + 1.0 + (hash((step, rank)) % 2000) * 1e-5
        timed = {"start": round(t, 6), "end": round(end_t, 6), "loss": loss_of(rank, step + 1), "data_s": 0.001}
        t = end_t
        yield "step", {"t": t, "n": n + 1, **timed, "compute_s": 0.9, **moment}
        if (step + 1) % job.every == 0 and rank == 0:
            number = (step + 1) // job.every
            saved = {"t": t, "id": number}
            path = f"/ckpt/{step + 1}.pt"
            yield "save", {**saved, "n": n + 1, "api": "torch.save", "path": path, "called": t}
            yield "saved", {**saved, "staged": t, "weights": digest("w", step + 1), "matched": 1.0, "contents": {}}
            committed = {"path": path, "bytes": 1 << 20, "how": "return", "t_committed": t}
            yield "committed", {**saved, **committed}
            yield "committed", {**saved, **committed, "sha256": "0" * 64}
    if attempt:
        yield "state", state(end, end - begin, t, True, True)
        yield "end", {"t": t, "n": end - begin}


def state(step: int, n: int, t: float, full: bool, marked: bool) -> dict[str, Any]:
    rest = {
        "buffers": None,
        "optimizer": {"exp_avg": digest("o", step)},
        "lr": [(0.1).hex()],
        "groups": [{"eps": "1e-08"}],
    }
    return {
        "t": t, "n": n, "full": full, "weights": digest("w", step), "numel": 272, **(rest if full else {}),
        **({"gradients": [1.0]} if marked else {}), "counter": step, "rng": {"torch": "a" * 16, "python": "b" * 16},
    }  # fmt: skip


def written(folder: Path, steps: int, ranks: int, every: int) -> int:
    """Write the records of a job; ranks beyond the fourth have those of another one. Returns the bytes of the first rank."""
    folder.mkdir(parents=True)
    job = Job(steps, every)
    for rank in range(4):
        write(folder, job, rank)
    for rank in range(4, ranks):
        for attempt in (1, 2):
            text = (folder / f"watch-r1-{1000 * attempt + 1}.jsonl").read_text()
            text = re.sub(r',"sum":"[0-9a-f]{8}"', "", text).replace('"rank":1,', f'"rank":{rank},')
            text = text.replace('"node":"n1"', f'"node":"n{rank}"')
            (folder / f"watch-r{rank}-{1000 * attempt + rank}.jsonl").write_text(text)
    for path in folder.glob("*.jsonl") if ranks > 4 else ():
        path.write_text(path.read_text().replace('"world":4', f'"world":{ranks}').replace(',"sum":', ',"of":'))
    return sum(path.stat().st_size for path in folder.glob("watch-r0-*.jsonl"))


@dataclass(frozen=True)
class Row:
    steps: int
    ranks: int
    record_bytes: int
    peak_mib: float
    cpu_s: float
    wall_s: float


def measure(folder: Path, steps: int, ranks: int, every: int = 600) -> Row:
    size = written(folder, steps, ranks, every if steps > 2 * every else 60)
    figures = used("judge", str(folder), "--json")
    assert figures["code"] in (0, 2), "nothing is wrong with the job"
    shutil.rmtree(folder)
    return Row(steps, ranks, size, figures["peak_mib"], figures["cpu_s"], figures["wall_s"])


def table(rows: list[Row]) -> str:
    head = "| steps | ranks | bytes of a rank | bytes a step | MiB to judge | s of the processor | s |"
    text = [head, "|--:|--:|--:|--:|--:|--:|--:|"]
    text += [
        f"| {row.steps:,} | {row.ranks} | {row.record_bytes:,} | {row.record_bytes / row.steps:.1f} | {row.peak_mib:.0f} |"
        f" {row.cpu_s:.1f} | {row.wall_s:.1f} |"
        for row in rows
    ]
    return "\n".join([*text, "", f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"])


def report(name: str, text: str) -> None:
    OUT.mkdir(exist_ok=True)
    (OUT / name).write_text(text + "\n")
    print(text)


def test_records_memory_and_time_by_steps_and_ranks(tmp_path: Path) -> None:
    rows = [measure(tmp_path / f"{steps}x{ranks}", steps, ranks) for ranks in RANKS for steps in STEPS]
    report("growth_steps.md", table(rows))
    by_size = {(row.steps, row.ranks): row for row in rows}
    few, many = by_size[30_000, 4], by_size[100_000, 4]
    slope = (many.record_bytes - few.record_bytes) / (many.steps - few.steps)
    assert slope < SLOPE_BYTES * 2, f"{slope:.1f} bytes a step"
    assert many.record_bytes / many.steps * DAY < DAY_BYTES
    assert many.cpu_s < JUDGE_S
    assert by_size[100_000, 64].peak_mib < JUDGE_MIB + by_size[300, 4].peak_mib
    assert many.peak_mib < GROWTH * few.peak_mib


@pytest.mark.parametrize("every", [600, 6_000], ids=str)
def test_a_million_steps(tmp_path: Path, every: int) -> None:
    row = measure(tmp_path / "million", MILLION, 4, every)
    report(f"growth_million_{every}.md", table([row]))
    assert row.record_bytes / row.steps * DAY < DAY_BYTES
    assert row.peak_mib < JUDGE_MIB


COST = """
import json, os, sys, time
import torch
torch.set_num_threads(1)
if sys.argv[1]:
    from orchestrator.rank.watcher import install
    install.install(sys.argv[1], via="bench")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer, batch = torch.optim.SGD(model.parameters(), 0.01), torch.randn(8, 16)
def loop(count):
    for _ in range(count):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
loop(1000)
for line in sys.stdin:  # interleaved with the other process
    begin = time.thread_time_ns()
    loop(int(line))
    print(time.thread_time_ns() - begin, flush=True)
os._exit(0)
"""


def test_cpu_time_of_a_step(tmp_path: Path) -> None:
    """A watched and a bare process in turn; the difference of each pair."""
    environment = {**os.environ, "RANK": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    (tmp_path / "records").mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COST, folder], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for folder in (str(tmp_path / "records"), "")
    ]  # fmt: skip
    differences, bare = [], []
    for _ in range(40):
        taken = []
        for process in processes:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("500\n")
            process.stdin.flush()
            taken.append(int(process.stdout.readline()) / 500e3)
        differences.append(taken[0] - taken[1])
        bare.append(taken[1])
    for process in processes:
        process.communicate()
    differences.sort()
    median = differences[len(differences) // 2]
    text = f"{median:.0f} us of CPU more a step than {sorted(bare)[20]:.0f} us, in 40 pairs of 500 steps; load {os.getloadavg()[0]:.1f}"
    report("growth_cpu.md", text)
    assert median < SHARE * sorted(bare)[20]


#: CPU time of the watcher beside that of the smallest step that torch makes; a machine with cold caches makes both dearer.
SHARE = 1.25
