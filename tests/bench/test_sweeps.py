"""Pair sweeps on shaped links: a link at 80 % is named with its direction, nothing is named on clean nights, also beside a load.

``CCBED_BENCH_FAULTY`` and ``CCBED_BENCH_CLEAN`` are the numbers of sweeps, ``CCBED_BENCH_LOAD`` the number of busy processes beside
half of the clean ones, ``CCBED_BENCH_SEED`` the first seed. The links are shaped by tc, not by a fault of ccbed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.node.files import label
from orchestrator.system import plain_files

from . import table
from .bed import load
from .test_collectives import Fabric

pytestmark = [pytest.mark.bench, pytest.mark.root, pytest.mark.timeout(36_000)]

FAULTY = int(os.environ.get("CCBED_BENCH_FAULTY", "20"))
CLEAN = int(os.environ.get("CCBED_BENCH_CLEAN", "20"))
LOAD = int(os.environ.get("CCBED_BENCH_LOAD", "4"))
SEED = int(os.environ.get("CCBED_BENCH_SEED", "1"))
NODES, RATE, SHARE, BURST, QUEUE = 4, 1_000_000_000, 0.8, 250_000, 64 * 1024**2
KINDS = ("egress", "ingress", "node", "direction")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A seeded sweep. ``slow``: the directions that are shaped; ``named``: the part that must be named, empty for none."""

    seed: int
    kind: str
    slow: frozenset[tuple[int, int]]
    named: str
    busy: int = 0


def draw(seed: int) -> Case:
    """A node's link in one direction or in both, or one direction between two nodes."""
    random_ = random.Random(seed)
    kind, (first, second) = random_.choice(KINDS), random_.sample(range(NODES), 2)
    out = {(first, peer) for peer in range(NODES) if peer != first}
    slow = {
        "egress": out, "ingress": {(b, a) for a, b in out}, "node": out | {(b, a) for a, b in out},
        "direction": {(first, second)},
    }  # fmt: skip
    named = f"direction n{first} -> n{second}" if kind == "direction" else f"{kind} n{first}"
    return Case(seed=seed, kind=kind, slow=frozenset(slow[kind]), named=named)


def agent(fabric: Fabric, node: int) -> int:
    """The process that holds the node's network namespace."""
    directory = fabric.folder / "state/ccbed/beds" / fabric.name / "nodes" / f"n{node}"
    return int(plain_files.read_json(directory / label.NODE_LABEL)["pid"])


def run_in(fabric: Fabric, node: int, *command: str) -> str:
    enter = ["nsenter", "-t", str(agent(fabric, node)), "-n", *command]
    return subprocess.run(enter, check=True, capture_output=True, text=True).stdout


def address(fabric: Fabric, node: int) -> str:
    shown = json.loads(run_in(fabric, node, "ip", "-j", "-4", "addr", "show", "dev", "eth0"))
    return str(shown[0]["addr_info"][0]["local"])


@contextmanager
def shaped(fabric: Fabric, slow: frozenset[tuple[int, int]], share: float = SHARE) -> Iterator[None]:
    """Each of these directions has a share of the rate, at the sender: a class for each receiver."""
    rate, rest = round(RATE * share), ("burst", str(BURST), "cburst", str(BURST), "quantum", "60000")
    senders = {sender for sender, _ in slow}
    try:
        for sender in senders:
            run_in(
                fabric,
                sender,
                "tc",
                *["qdisc", "replace", "dev", "eth0", "parent", "1:1", "handle", "2:", "htb", "default", "0"],
            )
        for sender, receiver in slow:
            identity = f"2:{receiver + 1}"
            run_in(
                fabric,
                sender,
                "tc",
                *f"class add dev eth0 parent 2: classid {identity} htb rate {rate}bit".split(),
                *rest,
            )
            match = f"match ip dst {address(fabric, receiver)}/32 flowid {identity}"
            run_in(fabric, sender, "tc", *f"filter add dev eth0 parent 2: protocol ip u32 {match}".split())
        yield
    finally:
        for sender in senders:
            with contextlib.suppress(subprocess.CalledProcessError):
                run_in(fabric, sender, "tc", *f"qdisc replace dev eth0 parent 1:1 bfifo limit {QUEUE}".split())


def carry_out(fabric: Fabric, case: Case) -> tuple[str, str]:
    """(right, wrong or unknown; what the sweep says). A clean sweep is right if it names nothing."""
    with shaped(fabric, case.slow), load(case.busy):
        document = json.loads(fabric.output("sweep", "links", "--each-pair", "--bed", fabric.name, "--json"))
    (finding,) = document["findings"]
    if case.named:
        is_right = finding["culprits"] == [case.named]
        is_wrong = finding["outcome"] == "pass" or (finding["culprits"] and not is_right)
    else:
        is_right = finding["outcome"] == "pass"
        is_wrong = finding["outcome"] in ("warn", "fail")
    return "right" if is_right else "wrong" if is_wrong else "unknown", finding["text"]


def test_a_link_at_80_percent_is_named_and_nothing_on_clean_nights(tmp_path: Path) -> None:
    cases = [draw(SEED * 1000 + number) for number in range(FAULTY)]
    cases += [
        Case(seed=SEED * 1000 + number, kind="clean", slow=frozenset(), named="", busy=LOAD if number % 2 else 0)
        for number in range(CLEAN)
    ]
    random.Random(SEED).shuffle(cases)
    counts: dict[str, Counter[str]] = {}
    lines = []
    out = table.OUT / f"sweeps-{SEED}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    with Fabric(tmp_path, "bench-sweeps", "1gbit", nodes=NODES) as fabric:
        for case in cases:
            judgement, text = carry_out(fabric, case)
            kind = f"{case.kind}, load {case.busy}" if case.kind == "clean" else case.kind
            counts.setdefault(kind, Counter())[judgement] += 1
            lines.append(f"{judgement:8} seed {case.seed} {kind}: {case.named or 'nothing'} | {text}")
            totals = [f"{kind}: {dict(count)}" for kind, count in sorted(counts.items())]
            out.write_text("\n".join(["# Pair sweeps, one link at 80 %", "", *totals, "", *lines]) + "\n")
    print("\n" + out.read_text())
    clean = sum((count for kind, count in counts.items() if kind.startswith("clean")), Counter())
    faulty = sum((count for kind, count in counts.items() if not kind.startswith("clean")), Counter())
    assert clean["wrong"] == 0
    assert faulty["right"] == faulty.total()
