"""What is gathered: all nodes at once, capped, and nothing silently absent."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.model.event import Clock, Event, Source
from orchestrator.model.provider import AT_ONCE, Fetched
from orchestrator.providers import node_files
from orchestrator.run import collect

from ..patience import until

ENTRIES = (("agent.log", "agent.log"), ("runs/r", ""))


@dataclass
class Nodes:
    """Directories of nodes; ``slow`` ones answer when they are let, ``dead`` ones never."""

    root: Path
    dead: tuple[str, ...] = ()
    slow: dict[str, threading.Event] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)

    def add(self, name: str, **texts: str) -> None:
        for path, text in {"agent.log": f"log of {name}", "runs/r/rank-0.log": f"rank of {name}", **texts}.items():
            target = self.root / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched:
        self.fetched.append(node)
        if node in self.slow:
            self.slow[node].wait(600)
        if node in self.dead:
            raise OSError(errno.EHOSTUNREACH, f"host of {node} does not answer")
        return node_files.fetch([self.root / node], path, to, limit)

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        return node_files.fetch_each(self.fetch, node, wanted, limit)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    made = Nodes(root=tmp_path / "nodes")
    for name in ("n0", "n1", "n2"):
        made.add(name)
    return made


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    directory = tmp_path / "runs" / "r"
    directory.mkdir(parents=True)
    return directory


def test_each_node_has_its_own_files(nodes: Nodes, bundle: Path) -> None:
    summary = collect.gather(nodes, dict.fromkeys(("n0", "n1", "n2"), ENTRIES), bundle)
    assert (summary["files"], summary["missing"], summary["capped"]) == (6, [], [])
    for name in ("n0", "n1", "n2"):
        assert (bundle / "nodes" / name / "agent.log").read_text() == f"log of {name}"
        assert (bundle / "nodes" / name / "rank-0.log").read_text() == f"rank of {name}"
    assert list(bundle.parent.iterdir()) == [bundle], "nothing is left beside the bundle"


def test_a_dead_host_is_marked_missing_with_its_reason_and_the_others_are_there(nodes: Nodes, bundle: Path) -> None:
    nodes.dead = ("n1",)
    summary = collect.gather(nodes, dict.fromkeys(("n0", "n1", "n2"), ENTRIES), bundle)
    assert [(entry["node"], entry["path"]) for entry in summary["missing"]] == [("n1", "agent.log"), ("n1", "runs/r")]
    assert "does not answer" in summary["missing"][0]["reason"]
    assert (bundle / "nodes" / "n2" / "rank-0.log").exists()


def test_nobody_waits_for_a_node_that_hangs_and_what_comes_late_spoils_nothing(nodes: Nodes, bundle: Path) -> None:
    nodes.slow = {"n1": threading.Event()}
    begun = time.monotonic()
    summary = collect.gather(nodes, dict.fromkeys(("n0", "n1", "n2"), ENTRIES), bundle, patience_s=0.3)
    assert time.monotonic() - begun < 300
    assert {entry["reason"] for entry in summary["missing"]} == {"not fetched within 0.3 s"}
    nodes.slow["n1"].set()
    until(lambda: nodes.fetched.count("n1") >= 2)
    time.sleep(0.05)
    assert not (bundle / "nodes" / "n1").exists()


def test_a_fetch_that_has_not_begun_when_the_gather_ends_never_begins(nodes: Nodes, bundle: Path) -> None:
    """It made the directory beside the bundle again."""
    go = threading.Event()
    nodes.slow = {f"s{n}": go for n in range(AT_ONCE)}
    summary = collect.gather(nodes, dict.fromkeys((*nodes.slow, "n1"), ENTRIES), bundle, patience_s=0.1)
    assert {entry["reason"] for entry in summary["missing"]} == {"not fetched within 0.2 s"}, "the limit of all"
    go.set()
    until(lambda: not any(thread.name == "ccbed-gather" for thread in threading.enumerate()))
    assert "n1" not in nodes.fetched
    assert list(bundle.parent.iterdir()) == [bundle]


def test_all_nodes_are_asked_at_once(nodes: Nodes, bundle: Path) -> None:
    nodes.slow = {name: threading.Event() for name in ("n0", "n1", "n2")}
    done = threading.Thread(target=collect.gather, args=(nodes, dict.fromkeys(nodes.slow, ENTRIES), bundle))
    done.start()
    until(lambda: len(nodes.fetched) >= 3)
    assert sorted(nodes.fetched) == ["n0", "n1", "n2"]
    for event in nodes.slow.values():
        event.set()
    done.join(600)


def test_the_cap_is_of_the_node_and_is_recorded(nodes: Nodes, bundle: Path) -> None:
    nodes.add("n1", **{"runs/r/rank-1.log": "x" * 500})
    summary = collect.gather(nodes, dict.fromkeys(("n0", "n1"), ENTRIES), bundle, limit=100)
    assert summary["capped"] == [{"node": "n1", "path": "runs/r", "files": ("rank-1.log",), "limit": 100}]
    assert sum(file.stat().st_size for file in (bundle / "nodes" / "n1").rglob("*.log")) == 100


def test_a_second_attempt_takes_the_place_of_the_first(nodes: Nodes, bundle: Path) -> None:
    (bundle / "nodes" / "n0").mkdir(parents=True)
    (bundle / "nodes" / "n0" / "torn").touch()
    (bundle.parent / ".gather-r-left").mkdir()
    collect.gather(nodes, {"n0": ENTRIES}, bundle)
    assert not (bundle / "nodes" / "n0" / "torn").exists()
    assert list(bundle.parent.iterdir()) == [bundle]


class _Full(Nodes):
    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_here_is_no_fault_of_the_nodes(tmp_path: Path, bundle: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        collect.gather(_Full(root=tmp_path), {"n0": ENTRIES}, bundle)


def test_an_event_that_was_written_after_the_files_were_copied_is_not_gathered(bundle: Path) -> None:
    def event(n: int, writer: str = "agent", incarnation: str = "i2", node: str = "n2") -> Event:
        source = Source(node=node, incarnation=incarnation, writer=writer, n=n)
        return Event(
            seq=0, t=0.0, type="note", f="command.refused", at=Clock(boot="b", mono=0.0, wall=0.0), source=source
        )

    directory = bundle / "nodes/n2"
    directory.mkdir(parents=True)
    line = json.dumps({"source": {"node": "n2", "incarnation": "i2", "writer": "agent", "n": 1}})
    (directory / "agent.i2.jsonl").write_text(f"{line}\n{line[:20]}")
    gathered = collect.GatheredEvents(bundle)
    assert gathered.has(event(1))
    assert not gathered.has(event(2))
    assert not gathered.has(event(1, incarnation="i3")), "it has started since"
    assert not gathered.has(event(1, writer="rank-0.e0"))
    assert gathered.has(event(9, writer="keeper")), "a keeper has a file of its own"
    assert gathered.has(event(2, node="n0")), "nothing of that node was gathered, and the bundle says why"
    (directory / "agent.i2.jsonl").unlink()
    assert gathered.has(event(1)), "the file is read once, however many events are late"
