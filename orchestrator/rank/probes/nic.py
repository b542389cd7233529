"""Errors, drops and retransmissions of the node's interface while every node sends to the next one, and the rate of that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from ...model.events import ProbeFigure
from ..node_probe.probe_results import Fact, Missing, Node, Problem, Result

COLLECTIVE = True
#: Counters of /sys/class/net whose growth is a defect, and those that traffic can raise as well.
DEFECTS = ("rx_errors", "tx_errors", "rx_crc_errors", "rx_frame_errors", "tx_carrier_errors")
DROPS = ("rx_dropped", "tx_dropped", "rx_missed_errors", "rx_fifo_errors")


def measure(node: Node) -> Iterator[Result]:
    """Counters before and after the transfers. Retransmissions count all TCP connections of the node's network namespace."""
    before = counters(node.system, node.interface)
    rates = [_transfer(node) for _ in range(node.params.repeats)]
    after = counters(node.system, node.interface)
    yield Fact(
        name="nic", text=f"{node.interface}, {node.params.nic_mib} MiB to the next rank and from the previous one"
    )
    if node.world > 1:
        yield ProbeFigure(
            name="nic ring", unit="GB/s", better="higher", values=tuple(rates), ceiling=_ceiling(node)
        )  # fmt: skip
    yield from _growth(before, after)


def _transfer(node: Node) -> float:
    """GB/s of this rank, in each direction."""
    dist.barrier()
    sent = torch.ones(node.params.nic_mib << 20, dtype=torch.uint8, device=node.device)
    received = torch.empty_like(sent)
    peers = ((node.rank + 1) % node.world, (node.rank - 1) % node.world)
    begin = time.perf_counter()
    if node.world > 1:
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, peers[0]), dist.P2POp(dist.irecv, received, peers[1])]
        )
        for work in works:
            work.wait()
    if node.has_gpu:
        torch.cuda.synchronize(node.device)
    return sent.numel() / 1e9 / (time.perf_counter() - begin)


def counters(system: Path, interface: str) -> dict[str, int]:
    """Return the counters by name, without those that the kernel does not report."""
    folder = system / "sys/class/net" / interface / "statistics"
    values = {name: _number(folder / name) for name in (*DEFECTS, *DROPS)}
    return {
        name: value
        for name, value in {**values, "tcp_retransmitted": _retransmitted(system)}.items()
        if value is not None
    }


def _retransmitted(system: Path) -> int | None:
    try:
        lines = [
            line.split() for line in (system / "proc/net/snmp").read_text().splitlines() if line.startswith("Tcp:")
        ]
        return int(dict(zip(*lines, strict=True))["RetransSegs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _growth(before: dict[str, int], after: dict[str, int]) -> Iterator[Result]:
    groups = {"nic errors": DEFECTS, "nic drops": DROPS, "tcp retransmissions": ("tcp_retransmitted",)}
    for name, members in groups.items():
        known = [member for member in members if member in before and member in after]
        if not known:
            yield Missing(name=name, reason="the kernel does not report it")
            continue
        grown = {member: after[member] - before[member] for member in known if after[member] != before[member]}
        yield ProbeFigure(name=name, unit="count", better="lower", values=(float(sum(grown.values())),))
        if grown and members is DEFECTS:
            yield Problem(
                text="network interface: " + ", ".join(f"{count} {member}" for member, count in grown.items())
            )


def _ceiling(node: Node) -> float | None:
    """GB/s of the interface's speed, unless ranks share it or it has none. Ranks of one host do not cross the interface."""
    speed = _number(node.system / "sys/class/net" / node.interface / "speed")
    return speed / 8000 if speed and speed > 0 and len(node.sharers) == 1 else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
