"""A program of the tests: forks ranks over gloo that carry out algorithms, and compares with torch's own result.

    python exchanging.py WORLD JOB...     JOB: everything | batched | groups | beside | operators | records:DIRECTORY

Exit code 1 if a rank failed; what it said is on stderr.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from orchestrator.model import algorithm, schedule
from orchestrator.rank.exchange import schedule_runner
from orchestrator.rank.runtime import recorder
from tests.contract import algorithms

#: No chunk count divides them; chunks of the first are large enough to wait for their turn, and some of the last are empty.
SIZES = (5003, 3)
GARBAGE = -77


class Room:
    """Where one rank is: its group's ranks as global ones, and its own number among them."""

    def __init__(self, ranks: Sequence[int], group: dist.ProcessGroup | None) -> None:
        self.ranks, self.group = ranks, group
        self.rank, self.world = ranks.index(dist.get_rank()), len(ranks)

    def exchange(
        self, chosen: algorithm.Chosen, operation: str, root: int = 0, operator: str = "sum"
    ) -> schedule_runner.Exchange:
        steps = chosen.schedule(operation, self.rank, self.world, root)
        return schedule_runner.Exchange(steps, ranks=self.ranks, group=self.group, operator=operator)


def whole(rank: int, count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """What ``rank`` brings: small whole numbers, different on every rank and in every place."""
    return ((torch.arange(count) * 7 + rank * 13) % 11 + 1).to(dtype)


def expected(operation: str, room: Room, root: int, count: int) -> torch.Tensor | None:
    """What torch's own collective makes of it; None: this rank may hold anything."""
    own_block, top = whole(room.rank, count), room.ranks[root]
    if operation == "broadcast":
        dist.broadcast(own_block, top, group=room.group)
        return own_block
    dist.all_reduce(own_block, group=room.group)
    return own_block if operation == "all-reduce" or room.rank == root else None


def check(chosen: algorithm.Chosen, operation: str, room: Room, root: int, count: int) -> None:
    """One operation over one buffer; raises AssertionError."""
    carried = room.exchange(chosen, operation, root)
    CHECKS.get(operation, whole_buffer)(carried, chosen, operation, room, root, count)


def whole_buffer(
    carried: schedule_runner.Exchange, chosen: algorithm.Chosen, operation: str, room: Room, root: int, count: int
) -> None:
    """all-reduce, reduce, broadcast."""
    flat = whole(room.rank, count)
    carried.run(schedule_runner.cut(flat, chosen.chunks(operation, room.world)), step=1, op=0)
    wanted = expected(operation, room, root, count)
    assert wanted is None or torch.equal(flat, wanted)


def blocks(
    carried: schedule_runner.Exchange, chosen: algorithm.Chosen, operation: str, room: Room, root: int, count: int
) -> None:
    """all-gather, gather, scatter, reduce-scatter: a block for each rank."""
    flat = whole(room.rank, count)
    parts = schedule_runner.cut(flat, chosen.chunks(operation, room.world))
    if operation in ("all-gather", "gather"):
        for other, part in enumerate(parts):
            if other != room.rank:
                part.fill_(GARBAGE)
    carried.run(parts, step=1, op=0)
    for block, part in enumerate(parts):
        source = block if operation in ("all-gather", "gather") else root
        wanted = schedule_runner.cut(whole(source, count), room.world)[block]
        if operation == "reduce-scatter":
            every = torch.stack([whole(other, count) for other in range(room.world)]).sum(0)
            wanted = schedule_runner.cut(every, room.world)[block]
        own_block = operation == "all-gather" or (room.rank == root if operation == "gather" else block == room.rank)
        assert not own_block or torch.equal(part, wanted), f"block {block}"


def swapped(
    carried: schedule_runner.Exchange, chosen: algorithm.Chosen, operation: str, room: Room, root: int, count: int
) -> None:
    """all-to-all, uneven where the algorithm can: from s to d go (count + s + 2d) / p elements, or as many as fit."""
    del root

    def size(source: int, target: int) -> int:
        return count // room.world if chosen.even(operation) else (count + source + 2 * target) // room.world

    def block(source: int, target: int) -> torch.Tensor:
        return whole(source * 31 + target, size(source, target))

    everybody = range(room.world)
    given = [block(room.rank, target) for target in everybody]
    got = [torch.full((size(source, room.rank),), GARBAGE) for source in everybody]
    scratch = [torch.full((size(room.rank, room.rank),), GARBAGE) for _ in everybody]
    parts = [*given, *got, *scratch][: chosen.chunks(operation, room.world)]
    carried.run(parts, step=1, op=0)
    assert all(torch.equal(got[source], block(source, room.rank)) for source in everybody)


def shifted(
    carried: schedule_runner.Exchange, chosen: algorithm.Chosen, operation: str, room: Room, root: int, count: int
) -> None:
    """send-recv."""
    del chosen, operation, root
    got = torch.full((count,), GARBAGE)
    carried.run([whole(room.rank, count), got], step=1, op=0)
    assert torch.equal(got, whole((room.rank - 1) % room.world, count))


def barrier(
    carried: schedule_runner.Exchange, chosen: algorithm.Chosen, operation: str, room: Room, root: int, count: int
) -> None:
    """Nobody leaves before the last one, which is late, has come."""
    del chosen, operation, root, count
    board = torch.zeros(room.world, dtype=torch.float64)
    if room.rank == room.world - 1:
        time.sleep(0.02)
    board[room.rank] = time.monotonic()
    carried.run([], step=1, op=0)
    left = time.monotonic()
    dist.all_reduce(board, group=room.group)
    assert left >= board.max().item()


Check = Callable[[schedule_runner.Exchange, algorithm.Chosen, str, Room, int, int], None]
CHECKS: dict[str, Check] = {
    "all-gather": blocks, "gather": blocks, "scatter": blocks, "reduce-scatter": blocks, "all-to-all": swapped,
    "send-recv": shifted, "barrier": barrier,
}  # fmt: skip


def everything(room: Room) -> None:
    """Every algorithm and operation, with the first and the last rank as root."""
    for chosen, operation in algorithms.cases(algorithms.defaults() + algorithms.variants()):
        if chosen.refuses(operation, room.world):
            continue
        for root in algorithms.roots(operation, room.world):
            for count in SIZES:
                try:
                    check(chosen, operation, room, root, count)
                except AssertionError as error:
                    raise AssertionError(f"{chosen.label} {operation}, root {root}, {count}: {error}") from error


def batched(room: Room) -> None:
    """The way of NCCL, over gloo: one batch for each step."""
    with mock.patch.object(dist, "get_backend", return_value="nccl"), mock.patch.object(torch.cuda, "synchronize"):
        for chosen, operation in algorithms.cases(algorithms.defaults()):
            if operation != "barrier" and not chosen.refuses(operation, room.world):
                check(chosen, operation, room, algorithms.roots(operation, room.world)[-1], 1009)


def groups(room: Room) -> None:
    """Even and odd ranks at once, each group in an order of its own, once with a group of torch's and once without."""
    halves = [[rank for rank in room.ranks if rank % 2 == half][::-1] for half in (0, 1)]
    made = [dist.new_group(half, sort_ranks=False) for half in halves]
    half = room.rank % 2
    for group in (made[half], None):
        small = Room(halves[half], group)
        for chosen, operation in algorithms.cases(algorithms.defaults()):
            if chosen.refuses(operation, small.world) or operation in ("all-reduce", "reduce", "broadcast", "barrier"):
                continue
            check(chosen, operation, small, 0, 1009)
        ring = next(algorithm for algorithm in algorithms.defaults() if algorithm.name == "ring")
        flat = whole(small.rank, 1009)
        small.exchange(ring, "all-reduce").run(schedule_runner.cut(flat, small.world), step=1, op=0)
        assert torch.equal(flat, torch.stack([whole(other, 1009) for other in range(small.world)]).sum(0))


def beside(room: Room) -> None:
    """Three that were started are carried out in order; what comes after them waits; a failure is told by wait()."""
    chosen = {algorithm.name: algorithm for algorithm in algorithms.defaults()}
    names = ("ring", "halving-doubling", "binomial-tree")
    flats = [whole(room.rank + number, 5003) for number in range(4)]
    carriers = [room.exchange(chosen[name], "all-reduce") for name in (*names, "star")]
    parts = [
        schedule_runner.cut(flat, chosen[name].chunks("all-reduce", room.world))
        for flat, name in zip(flats, (*names, "star"), strict=True)
    ]
    handles = [carrier.start(part, step=1, op=0) for carrier, part in zip(carriers[:3], parts[:3], strict=True)]
    carriers[3].run(parts[3], step=1, op=1)
    for number, flat in enumerate(flats):
        every = torch.stack([whole(other + number, 5003) for other in range(room.world)]).sum(0)
        assert torch.equal(flat, every), number
    for handle in handles:
        handle.wait()
    failed = carriers[0].start(parts[0][:1], step=1, op=0)
    try:
        failed.wait()
    except IndexError:
        return
    raise AssertionError("an exchange with too few parts ended well")


OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda every: every.sum(0), "prod": lambda every: every.prod(0), "min": lambda every: every.min(0)[0],
    "max": lambda every: every.max(0)[0],
}  # fmt: skip
BITS = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}


def operators(room: Room) -> None:
    """Integers and floats exactly; every rank has the same bits."""
    for name in ("ring", "recursive-doubling", "binomial-tree", "double-binary-tree"):
        chosen = next(algorithm for algorithm in algorithms.defaults() if algorithm.name == name)
        for operator in (*OPERATORS, *BITS):
            for dtype in (torch.int32, torch.uint8, torch.float64) if operator in OPERATORS else (torch.int32,):
                every = torch.stack([whole(other, 501, dtype) % 4 + 1 for other in range(room.world)])
                flat = every[room.rank].clone()
                parts = schedule_runner.cut(flat, chosen.chunks("all-reduce", room.world))
                room.exchange(chosen, "all-reduce", operator=operator).run(parts, step=1, op=0)
                wanted = folded(every, BITS[operator]) if operator in BITS else OPERATORS[operator](every).to(dtype)
                assert torch.equal(flat, wanted), f"{name} {operator} {dtype}"


def folded(every: torch.Tensor, operator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    result = every[0]
    for other in every[1:]:
        result = operator(result, other)
    return result


def records(room: Room, directory: str) -> None:
    """One record for each message with chunks that came in, none for tokens; buffers change from call to call."""
    tree = next(algorithm for algorithm in algorithms.defaults() if algorithm.name == "binomial-tree")
    chunks = recorder.Chunks(f"{directory}/chunks-r{room.rank}.bin")
    steps = tree.schedule("gather", room.rank, room.world)
    carried = schedule_runner.Exchange(steps, chunks=chunks)
    for step, count in enumerate((1009, 2017), 1):
        carried.run(schedule_runner.cut(whole(room.rank, count), room.world), step=step, op=3)
    schedule_runner.Exchange(tree.schedule("broadcast", room.rank, room.world), chunks=chunks).run(
        [whole(0, 11)], step=3, op=0
    )
    chunks.flush()


JOBS: dict[str, Callable[..., None]] = {
    "everything": everything, "batched": batched, "groups": groups, "beside": beside, "operators": operators, "records": records,
}  # fmt: skip


def child(rank: int, world: int, store: str, jobs: Sequence[str]) -> int:
    """The exit code of one rank."""
    try:
        life(rank, world, store, jobs)
    except Exception:  # noqa: BLE001 a forked rank must never go on as the program
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()
    return 0


def life(rank: int, world: int, store: str, jobs: Sequence[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for job in jobs:
        name, *arguments = job.split(":")
        JOBS[name](Room(range(world), None), *arguments)
        dist.barrier()


def main(world: int, jobs: Sequence[str]) -> int:
    assert set(schedule.OPERATIONS) >= set(CHECKS)
    with tempfile.TemporaryDirectory() as folder:
        children = {}
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                os._exit(child(rank, world, f"{folder}/store", jobs))
            children[pid] = rank
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children)


if __name__ == "__main__":
    print(Path(__file__).name, *sys.argv[1:], flush=True)
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
