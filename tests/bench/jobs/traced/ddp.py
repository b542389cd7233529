"""Trains a small network with DistributedDataParallel and writes what each rank did as a Chakra trace with dependencies.

A bucket is reduced while the backward pass goes on, so the trace has computing and communication that overlap. The times
between the starts of steps are in ``steps-RANK.json``.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

#: The first steps make connections and form the buckets anew.
WARM_UP = 3


class Trace:
    """Nodes of a rank: a chain of computing, and the collectives that depend on it."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.chain: list[str] = []
        self.reduced: list[str] = []
        self.since = 0.0

    def compute(self) -> None:
        """The computing since the last point of the chain."""
        now = time.monotonic()
        self._add("COMP_NODE", round((now - self.since) * 1e6), self.chain)
        self.chain, self.since = [self.nodes[-1]["id"]], now

    def reduce(self, size: int) -> None:
        self._add("COMM_COLL_NODE", 0, self.chain, comm_type=0, comm_size=size)
        self.reduced.append(self.nodes[-1]["id"])

    def wait(self) -> None:
        """The chain goes on when all collectives of the step have ended."""
        self.chain, self.reduced, self.since = [*self.chain, *self.reduced], [], time.monotonic()

    def _add(self, kind: str, length: int, needs: list[str], **attributes: int) -> None:
        number = str(len(self.nodes) + 1)
        attr = [{"name": name, "int64Val": str(value)} for name, value in attributes.items()]
        self.nodes.append(
            {
                "id": number,
                "name": f"{kind}{number}",
                "type": kind,
                "durationMicros": str(length),
                "dataDeps": needs,
                "attr": attr,
            }
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trace, starts, is_traced = Trace(), [], False

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        gradients = bucket.buffer()
        if is_traced:
            trace.compute()
            trace.reduce(gradients.nelement() * gradients.element_size())
        work: Any = dist.all_reduce(gradients, async_op=True)
        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
        return reduced

    model.register_comm_hook(None, hook)
    inputs = torch.randn(1024, 512)
    for step in range(WARM_UP + options.steps):
        is_traced = step >= WARM_UP
        if step == WARM_UP:
            trace.since = time.monotonic()
        if is_traced:
            starts.append(time.monotonic())
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        trace.wait()
        optimizer.step()
    rank = dist.get_rank()
    (options.out / f"rank-{rank}.json").write_text("\n".join(map(json.dumps, trace.nodes)))
    (options.out / f"steps-{rank}.txt").write_text(
        json.dumps([b - a for a, b in zip(starts, starts[1:], strict=False)])
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
