"""Our ring and the library's all-reduce in turns on the same group: seconds of every call, from rank 0, as JSON lines.

Run by `ccbed run`: the ranks have ccbed's payload at hand, so `orchestrator.rank` can be imported here.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from orchestrator.algorithms import ring
from orchestrator.rank import exchange, record

#: The gradients of the reference classifier: 971,048 bytes.
ELEMENTS = 242_762
ROUNDS = 60


def main(out: str) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = record.Chunks(f"{out}.chunks-r{rank}")
    steps = ring.schedule("all-reduce", rank, world)
    ours, recorded = exchange.Exchange(steps), exchange.Exchange(steps, chunks=chunks)
    flat = torch.ones(ELEMENTS)
    parts = exchange.cut(flat, ring.chunks("all-reduce", world))
    calls = {
        "library": lambda: dist.all_reduce(flat),
        "ring": lambda: ours.run(parts, step=1, op=0),
        "ring, recorded": lambda: recorded.run(parts, step=1, op=0),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 5):
        for name, call in calls.items():
            flat.fill_(1.0)
            dist.barrier()
            begin = time.monotonic()
            call()  # type: ignore[no-untyped-call]
            if number >= 5:
                taken[name].append(time.monotonic() - begin)
            chunks.flush()
            assert bool((flat == world).all()), f"{name}: a wrong sum on rank {rank}"
    if rank == 0:
        Path(out).write_text(json.dumps(taken))


main(sys.argv[1])
