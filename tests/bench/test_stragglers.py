"""Seeded runs on shaped links: the node, the link and the direction that are slow are named, and nothing in clean runs.

``CCBED_BENCH_FAULTY`` and ``CCBED_BENCH_CLEAN`` are the numbers of runs, ``CCBED_BENCH_LOAD`` the number of busy processes beside
them. ``right``: what is slow is named, and nothing else is. ``wrong``: something else is named. ``unknown``: nothing is named.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.node.files import label, plain_files
from orchestrator.node.oslayer import processes
from orchestrator.store import bundle
from orchestrator.views import collectives
from orchestrator.views.collectives import phrases

from . import table
from .test_collectives import SIZE, Fabric

FAULTY = int(os.environ.get("CCBED_BENCH_FAULTY", "100"))
CLEAN = int(os.environ.get("CCBED_BENCH_CLEAN", "100"))
LOAD = int(os.environ.get("CCBED_BENCH_LOAD", "4"))
SEED = int(os.environ.get("CCBED_BENCH_SEED", "1"))
NODES, ITERATIONS = 4, 25
KINDS = ("slow-link", "stopped", "pause")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One seeded run. ``links``: (sender, receiver) that are slow; ``node``: the one that does not run.

    ``held``: the node that the trigger of a fault holds in one iteration; that it is late there is true as well.
    """

    kind: str
    seed: int
    node: int | None = None
    held: int | None = None
    links: frozenset[tuple[int, int]] = frozenset()
    faults: list[dict[str, Any]] = field(default_factory=list)
    runs_s: float = 0.0
    stops_s: float = 0.0


def draw(seed: int) -> Case:
    """A slow link in some direction, a node that is stopped again and again, or a node that is paused once."""
    random_ = random.Random(seed)
    kind, node = KINDS[seed % len(KINDS)], random_.randrange(NODES)
    before, after = ((node - 1) % NODES, node), (node, (node + 1) % NODES)
    if kind == "slow-link":
        direction = random_.choice(("out", "in", "both"))
        links = {"out": {after}, "in": {before}, "both": {before, after}}[direction]
        at = random_.choice(({"step": 1}, {"step": 5}))
        params = {"node": f"n{node}", "at": at, "direction": direction, "percent": random_.randrange(40, 71)}
        return Case(kind=f"{kind} {direction}", seed=seed, held=node, links=frozenset(links), faults=[{kind: params}])
    if kind == "stopped":
        runs_s, stops_s = random_.uniform(0.04, 0.08), random_.uniform(0.03, 0.06)
        return Case(kind=kind, seed=seed, node=node, runs_s=runs_s, stops_s=stops_s)
    params = {
        "node": f"n{node}",
        "at": {"step": random_.randrange(4, 20), "phase": "collective"},
        "for_s": random_.uniform(0.6, 1.5),
    }
    return Case(kind=kind, seed=seed, node=node, faults=[{"pause-node": params}])


def judge(case: Case, measured: collectives.Measured) -> str:
    """right, wrong or unknown."""
    links = frozenset((link.sender, link.receiver) for link in measured.links)
    nodes = {stop.rank for stop in measured.stopped}
    if measured.latest is not None and measured.latest.straggler:
        nodes.add(measured.latest.rank)
    causes = [slow.cause for slow in measured.slow if slow.cause is not None]
    causes = [cause for cause in causes if case.held is None or cause.rank != case.held]
    nodes |= {cause.rank for cause in causes if cause.sure and cause.rank is not None}
    links |= {cause.link for cause in causes if cause.kind == "link" and cause.link}
    if links <= case.links and nodes <= {case.node}:
        return "right" if links == case.links and nodes == {case.node} - {None} else "unknown"
    return "wrong"


@contextmanager
def stopping(fabric: Fabric, case: Case) -> Iterator[None]:
    """Stop the ranks of the node again and again while the body runs."""
    over = threading.Event()

    def run() -> None:
        directory = fabric.folder / "state/ccbed/beds" / fabric.name / "nodes" / f"n{case.node}"
        agent = int(plain_files.read_json(directory / label.NODE_LABEL)["pid"])
        while not over.is_set():
            ranks = [process.pid for process in processes.descendants(agent)]
            for number, pause_s in ((signal.SIGSTOP, case.stops_s), (signal.SIGCONT, case.runs_s)):
                for pid in ranks:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                over.wait(pause_s) if number == signal.SIGCONT else time.sleep(pause_s)

    thread = threading.Thread(target=run)
    if case.runs_s:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if case.runs_s:
            thread.join()


@contextmanager
def load(count: int) -> Iterator[None]:
    """Busy processes beside the body."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def carry_out(fabric: Fabric, case: Case) -> tuple[str, str]:
    """(judgement, what the report says)."""
    trial = {
        "trial": "straggler", "workload": "collective", "faults": case.faults, "recovery": {"policy": "none"}, "seed": case.seed,
        "params": {"operation": "all-reduce", "algorithm": ["ring"], "sizes": [SIZE], "iterations": ITERATIONS, "probe_s": 0.5},
        "world": {"nodes": NODES}, "liveness": {"suspect_s": 6, "lost_s": 20, "stalled_s": 120, "hold_s": 30},
    }  # fmt: skip
    file = fabric.folder / "straggler.json"
    file.write_text(json.dumps(trial))
    latest = fabric.folder / "runs/latest"
    before = latest.resolve()
    with stopping(fabric, case):
        fabric.call("run", str(file), "--bed", fabric.name, expect=None, timeout_s=600.0)
    assert latest.resolve() != before, "the run was refused"
    measured = collectives.measured(bundle.load(latest.resolve()))
    if measured is None or not measured.trials:
        return "unknown", "nothing was measured"
    judgement = judge(case, measured)
    if judgement != "right":
        shutil.copytree(latest.resolve(), table.OUT / f"stragglers-{case.seed}", symlinks=True, dirs_exist_ok=True)
    return judgement, phrases.straggler(measured)


def test_what_is_slow_is_named_and_nothing_in_clean_runs(tmp_path: Path) -> None:
    cases = [*(draw(SEED * 1000 + number) for number in range(FAULTY))]
    cases += [Case(kind="clean", seed=SEED * 1000 + number) for number in range(CLEAN)]
    random.Random(SEED).shuffle(cases)
    counts: dict[str, Counter[str]] = {}
    lines = []
    out = table.OUT / f"stragglers-{SEED}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    with Fabric(tmp_path, "bench-stragglers", "145mbit", nodes=NODES) as fabric, load(LOAD):
        for case in cases:
            judgement, text = carry_out(fabric, case)
            if case.kind == "clean" and judgement == "right":
                judgement = "nothing named"
            counts.setdefault(case.kind, Counter())[judgement] += 1
            expected = ", ".join(f"n{a} to n{b}" for a, b in sorted(case.links)) or (
                f"n{case.node}" if case.node is not None else "nothing"
            )
            lines.append(
                f"{judgement:14} load {os.getloadavg()[0]:.1f} seed {case.seed} {case.kind}: {expected} | {text}"
            )
            totals = [f"{kind}: {dict(count)}" for kind, count in sorted(counts.items())]
            out.write_text("\n".join([f"# Stragglers at a load of {LOAD}", "", *totals, "", *lines]) + "\n")
    print("\n" + out.read_text())
    clean, faulty = counts.pop("clean", Counter()), sum(counts.values(), Counter())
    assert clean["wrong"] == 0
    assert faulty["right"] >= 0.95 * faulty.total()
