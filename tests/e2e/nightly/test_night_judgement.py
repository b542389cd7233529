"""A node that gets slow between two nights: the night names it by its floor, and calls what it is told to call."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app.hosts import quarantine

from ..conftest import Bed

pytestmark = pytest.mark.e2e

SLOW = "n1"
SUITE = """\
suite: rates
trials:
  - trial: gemm
    params: {repeats: 3, repeat_s: 0.5, dtypes: [float32]}
    world: {nodes: 2}
"""
#: A rank of the slow node computes for so long, and is stopped for so many times as long as that took.
COMPUTES_NS, STOPS = 2_000_000, 30
#: A stop takes no longer, in seconds: where it does, the machine itself was late, and the other rank waits for this one.
LONGEST_STOP_S = 2.0


def computed_ns(pid: int) -> int:
    """The CPU time of a process; where it has ended, more than any process has."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except (OSError, IndexError):
        return 1 << 62


def ranks_of(process: int) -> list[int]:
    """The processes below the agent's that have none below them; the process that forks ranks is above them."""
    try:
        children = [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []
    return [rank for child in children for rank in (ranks_of(child) or [child])]


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


@contextlib.contextmanager
def slowed(bed: Bed, node: str) -> Iterator[None]:
    """The ranks of a node are slower by ``STOPS``, whatever else the machine does; its agent is not."""
    agent = json.loads((Path(bed.spec.workdir) / "nodes" / node / "node.json").read_text())["pid"]
    ended = threading.Event()

    def alternate() -> None:
        while not ended.is_set():
            begin, ranks = time.monotonic(), ranks_of(agent)
            limits = {pid: computed_ns(pid) + COMPUTES_NS for pid in ranks}
            send(ranks, signal.SIGCONT)
            while not (computed := any(computed_ns(pid) >= limit for pid, limit in limits.items())):
                time.sleep(0.0005)
                if ended.is_set() or ranks_of(agent) != ranks:  # on a busy machine 2 ms of CPU time take long
                    break
            if computed:
                send(ranks, signal.SIGSTOP)
                ended.wait(min(STOPS * (time.monotonic() - begin), LONGEST_STOP_S))

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        send(ranks_of(agent), signal.SIGCONT)


@pytest.fixture
def nights(bed: Bed, tmp_path: Path) -> Iterator[Path]:
    """A directory for nights. The offence of the night is not left on the bed that other tests use."""
    (tmp_path / "rates.yml").write_text(SUITE)
    yield tmp_path
    (Path(bed.spec.workdir) / quarantine.FILE).unlink(missing_ok=True)


def nightly(bed: Bed, directory: Path, *args: str) -> tuple[int, dict[str, Any]]:
    paths = ("--runs-dir", str(directory / "runs"), "--baselines", str(directory / "baselines"))
    code, output = bed.ccbed("nightly", str(directory / "rates.yml"), "--record", "--json", *paths, *args)
    assert output.startswith("{"), output
    document: dict[str, Any] = json.loads(output)
    return code, document


def test_a_node_that_is_slow_from_the_third_night_on_fails_its_floor_and_is_called_out(bed: Bed, nights: Path) -> None:
    _, first = nightly(bed, nights)
    assert first["outcome"] != "fail", first
    handle = Path(first["directory"]).name
    baseline = ("--baselines", str(nights / "baselines"), "--runs-dir", str(nights / "runs"))
    code, output = bed.ccbed("baseline", "accept", handle, "--margin", "90%", *baseline)
    assert code == 0, output
    code, second = nightly(bed, nights)
    assert (code, second["outcome"]) in ((0, "pass"), (0, "warn"), (2, "unknown")), second  # unknown on a busy machine
    states = {item["state"] for item in second["findings"] if item["finding"]["gate"] == "floor"}
    assert states == {"pass"}
    with slowed(bed, SLOW):
        code, third = nightly(bed, nights, "--on-culprit", "drain {node}")
    assert (code, third["exit"], third["outcome"]) == (1, 1, "fail"), third
    assert third["number"] == first["number"] + 2
    failed = [
        (item["finding"]["gate"], item["finding"]["node"]) for item in third["findings"] if item["state"] == "fail"
    ]
    assert ("floor", SLOW) in failed and {node for _, node in failed} == {SLOW}
    assert third["sentence"].startswith(f"{SLOW}: gemm float32")
    assert any(note.startswith(f"{SLOW}: would call: drain {SLOW}") for note in third["notes"])
    assert (Path(third["directory"]) / "evidence" / f"{SLOW}.tar.gz").is_file()
    assert [offence.node for offence in quarantine.read(Path(bed.spec.workdir)).offences] == [SLOW]
