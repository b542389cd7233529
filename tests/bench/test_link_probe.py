"""The link probe against the rates that the links were shaped to, also with a link that is slower in one direction."""

from __future__ import annotations

import csv
import os
import random
import subprocess
from pathlib import Path

import pytest

from orchestrator.collectives import views as collectives
from orchestrator.collectives.views import directions as link_directions
from orchestrator.node.files import label
from orchestrator.store import bundle
from orchestrator.system import plain_files

from .test_collectives import Fabric

#: How many runs; each has its own slow link, or none.
RUNS = int(os.environ.get("CCBED_BENCH_PROBES", "100"))
RATE, BURST = 100_000_000, 32768
#: TCP payload of a full frame.
PAYLOAD = 1448 / 1514
NEAR = 0.02
SHORT = ("--sizes", "4096", "--iterations", "1", "--warmup", "1", "--fresh-probe", "true")


class Links:
    """The links of a bed's nodes, whose rates are changed by hand."""

    def __init__(self, fabric: Fabric) -> None:
        self._nodes = fabric.folder / "state/ccbed/beds" / fabric.name / "nodes"

    def set_rate(self, node: str, direction: str, rate: float) -> None:
        """``direction``: out of the node, or in to it."""
        pid = int(label.live_label(self._nodes / node)["pid"])
        if direction == "out":
            namespace, device = f"/proc/{pid}/ns/net", "eth0"
        else:
            switch = str(plain_files.read_json(self._nodes / node / label.NODE_LABEL)["switch"])
            files = Path(f"/proc/{pid}/fd").iterdir()
            namespace, device = next(str(file) for file in files if str(file.readlink()) == switch), node
        shaper = f"root handle 1: tbf rate {rate:.0f}bit burst {BURST} limit 67108864"
        argv = ["nsenter", f"--net={namespace}", "tc", "qdisc", "change", "dev", device, *shaper.split()]
        subprocess.run(argv, check=True)


def test_beta_of_every_direction_is_within_two_percent_and_the_slow_link_is_named(tmp_path: Path) -> None:
    draw, wrong, misnamed = random.Random(11), list[str](), list[str]()
    with Fabric(tmp_path, "bench-probe", f"{RATE}bit") as fabric:
        links = Links(fabric)
        for number in range(RUNS):
            node, direction = draw.choice(("n0", "n1", "n2", "n3")), draw.choice(("out", "in"))
            part = draw.choice((1.0, 0.95, 0.8, 0.5))
            links.set_rate(node, direction, part * RATE)
            fabric.call("run", "allreduce", "--bed", fabric.name, *SHORT)
            links.set_rate(node, direction, RATE)
            end = "node" if direction == "out" else "peer_node"
            about = f"run {number}: {node} {direction} at {part:g}"
            wrong += [f"{about}: {text}" for text in _deviations(fabric, end, node, part * RATE)]
            named = _named(fabric)
            misnamed += [f"{about}: {named}"] if named != ({node: 3} if part < 1 else {}) else []
            print(about, "wrong", len(wrong), "misnamed", len(misnamed), flush=True)
    assert (wrong, misnamed) == ([], [])


def _deviations(fabric: Fabric, end: str, node: str, rate: float) -> list[str]:
    with (fabric.folder / "runs/latest/report/links.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    texts = []
    for row in rows:
        wanted = (rate if row[end] == node else RATE) * PAYLOAD
        if not row["bits_per_s"] or float(row["bits_per_s"]) != pytest.approx(wanted, rel=NEAR):
            texts.append(f"{row['node']} -> {row['peer_node']} {row['bits_per_s']} bit/s, shaped to {wanted:.0f}")
    return texts


def _named(fabric: Fabric) -> dict[str, int]:
    """Node -> the number of slow directions, for the node that has the most of them."""
    setting = collectives.setting(bundle.load((fabric.folder / "runs/latest").resolve()))
    assert setting is not None
    slow = link_directions.slow(setting.link.directions)
    ends = [setting.node(rank) for direction in slow for rank in (direction.sender, direction.receiver)]
    most = max(ends, key=ends.count, default="")
    return {most: len(slow)} if most else {}
