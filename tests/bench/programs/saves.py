"""One process that saves with or without the watcher: python saves.py KIND SIZE FOLDER RECORDS.

``KIND``: ``bytes`` (SIZE of a model and its optimizer in 60 tensors), ``tensors`` (SIZE tensors of 333 elements), or ``files``
(SIZE files of one checkpoint). RECORDS is empty where nothing is watched. Prints the seconds of each save, and the bytes of events.
"""

# mypy: disable-error-code="no-untyped-call,unused-ignore"
from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

SAVES = 5


def main() -> None:
    kind, size, folder, records = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    events = folder / "events"
    events.touch()
    if records:
        watch(events, records)
    count = {"bytes": 20, "tensors": size, "files": 4}[kind]
    elements = size // 12 // count if kind == "bytes" else 333
    model = nn.ParameterList([nn.Parameter(torch.randn(elements)) for _ in range(count)])
    optimizer = torch.optim.Adam(model.parameters())
    times = []
    for number in range(SAVES):
        for _ in range(2):
            optimizer.zero_grad()
            torch.stack([item.square().sum() for item in model]).sum().backward()
            optimizer.step()
        target = folder / str(number)
        target.mkdir()
        begin = time.perf_counter()
        save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, target, size if kind == "files" else 1)
        times.append(time.perf_counter() - begin)
        shutil.rmtree(folder / str(number - 1), ignore_errors=True)
    print(json.dumps({"times": times, "events": events.stat().st_size / SAVES}))


def save(state: dict[str, Any], target: Path, files: int) -> None:
    for index in range(files):
        torch.save(state["model"] if files > 1 else state, target / f"{index:05}.pt")


def watch(events: Path, records: str) -> None:
    from orchestrator.rank.watcher import install

    os.environ.update(
        RANK="0", WORLD_SIZE="1", CCBED_NODE_NAME="n0", CCBED_INCARNATION="bench", CCBED_EPOCH="0",
        CCBED_WATCH_EVENTS=str(events),
    )  # fmt: skip
    install.install(records, via="bench")
    import torch.optim  # noqa: F401 the watcher installs itself with it


if __name__ == "__main__":
    main()
