"""A warm process that forks gangs of ranks on request, in place of keeper and agent: one JSON request per line, one answer each.

Request: {"events": prefix, "gangs": [GangSpec], "release": {rank: [hold]}, "kill": rank | null, "rlimit": bytes | null,
"deadline_s": seconds}. The epoch's store is forked for every request. Answer: {"codes": {rank: code}}.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what a warm agent has imported
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from orchestrator import plugins
from orchestrator.model import codec
from orchestrator.model import gang as gang_model
from orchestrator.rank.runtime import rank_main
from tests.e2e import trials

INCARNATION = "i1"


def main() -> None:
    """Ranks begin with the signals of an agent's ranks, also under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for line in sys.stdin:
        request = json.loads(line)
        store, port = _open_store()
        try:
            codes = _run(request, port)
        finally:
            os.kill(store, signal.SIGKILL)
            os.waitpid(store, 0)
        print(json.dumps({"codes": codes}), flush=True)


def _open_store() -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, f"{store.port}\n".encode())
        signal.pause()
    return pid, int(os.read(reader, 16))


def _run(request: dict[str, Any], port: int) -> dict[int, int]:
    pids = {}
    for plain in request["gangs"]:
        gang = codec.build(gang_model.GangSpec, {**plain, "master_port": port})
        for rank in gang.ranks:
            pids[_fork(gang, rank, request)] = rank
    return _wait(pids, request)


def _fork(gang: gang_model.GangSpec, rank: int, request: dict[str, Any]) -> int:
    release, writer = os.pipe()
    os.write(writer, "".join(f"{hold}\n" for hold in request["release"].get(str(rank), ())).encode())
    pid = os.fork()
    if pid:
        os.close(release)  # the writing end stays open: a closed one would mean that the agent has gone
        return pid
    log = os.open(f"{gang.out}/rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if request.get("rlimit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["rlimit"], request["rlimit"]))
    code = 70
    try:
        path = f"{request['events']}/rank-{rank}.e{gang.epoch}.{INCARNATION}.jsonl"
        code = rank_main.main(
            gang, rank, events_path=path, release_fd=release, node=f"n{gang.group_rank}", incarnation=INCARNATION
        )
    finally:
        os._exit(code)


def _wait(pids: dict[int, int], request: dict[str, Any]) -> dict[int, int]:
    """Exit codes by rank. The rank to be killed is killed when it is held; what outlives the deadline is killed too."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + request["deadline_s"]
    victim = request.get("kill")
    while len(codes) < len(pids):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            codes[pids[pid]] = os.waitstatus_to_exitcode(status)
            continue
        if victim is not None and _held(Path(request["events"]), victim):
            os.kill(next(pid for pid, rank in pids.items() if rank == victim), signal.SIGKILL)
            victim = None
        if time.monotonic() > deadline:
            for pid, rank in pids.items():
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
        select.select([], [], [], 0.005)
    return codes


def _held(events: Path, rank: int) -> bool:
    return any("rank.held" in path.read_text() for path in events.glob(f"rank-{rank}.*"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    _ = plugins.discover((trials.DAMAGE,)).workloads["damaged-training"]  # from here on a rank finds it by its name
    main()
