"""Our ring and the library's all-reduce in turns on the same group: seconds of every call, from rank 0, as JSON; and of one record.

Run by `ccbed run`: the ranks have ccbed's payload at hand, so `orchestrator.rank` can be imported here.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from orchestrator.algorithms import ring
from orchestrator.rank.exchange import schedule_runner
from orchestrator.rank.runtime import recorder

WARM_UP = 5


def main(out: str, elements: int, rounds: int) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = recorder.Chunks(f"{out}.chunks-r{rank}")
    steps = ring.schedule("all-reduce", rank, world)
    ours, recorded = schedule_runner.Exchange(steps), schedule_runner.Exchange(steps, chunks=chunks)
    flat = torch.ones(elements)
    parts = schedule_runner.cut(flat, ring.chunks("all-reduce", world))
    calls = {
        "library": lambda: dist.all_reduce(flat),
        "ring": lambda: ours.run(parts, step=1, op=0),
        "ring, recorded": lambda: recorded.run(parts, step=1, op=0),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + WARM_UP):
        for name, call in calls.items():
            flat.fill_(1.0)
            dist.barrier()
            begin = time.monotonic()
            call()  # type: ignore[no-untyped-call]
            if number >= WARM_UP:
                taken[name].append(time.monotonic() - begin)
            chunks.flush()
            assert bool((flat == world).all()), f"{name}: a wrong sum on rank {rank}"
    if rank == 0:
        document = {"taken": taken, "records": sum(len(step.recvs) for step in steps), "record_s": recording(chunks)}
        Path(out).write_text(json.dumps(document))


def recording(chunks: recorder.Chunks, count: int = 1000) -> float:
    """Seconds of one record with its reading of the clock, as in an exchange; the best of twenty."""
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        for index in range(count):
            chunks.add(1, 0, index, 3, 2, 65_536, begin, time.monotonic())
        best = min(best, (time.perf_counter() - begin) / count)
        chunks.discard()
    return best


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
