"""What a trial may put in the place of a file holds nobody up and leads nowhere: pipes, links, devices, endless files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node.agent import rank_processes
from orchestrator.node.files import label
from orchestrator.node.files.event_log import EventLog
from orchestrator.providers import event_reader, node_files
from orchestrator.providers.ssh.host_requests import Link
from orchestrator.system import plain_files

from .piped import Heard, serving
from .test_link_server import RUN, Served

Plant = Callable[[Path], object]
PLANTED: dict[str, Plant] = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": os.mkdir,
    "too much": lambda path: os.truncate(path, 1 << 40) if path.write_bytes(b"") == 0 else None,
}
TIMEOUT_S = 600.0


def soon(work: Callable[[], object]) -> object:
    """What came of it; it must not wait for anybody."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert results, "it waits"
    return results[0]


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_label_is_read_from_a_plain_file_alone(tmp_path: Path, plant: Plant) -> None:
    plant(tmp_path / "node.json")
    assert soon(lambda: plain_files.read_json(tmp_path / "node.json")) == {}
    assert soon(lambda: label.live_label(tmp_path)) == {}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_heartbeat_is_read_from_a_plain_file_alone(tmp_path: Path, plant: Plant) -> None:
    plant(tmp_path / "heartbeat")
    assert soon(lambda: label.read_heartbeat(tmp_path / "heartbeat")) is None


@pytest.mark.parametrize("plant", [PLANTED["pipe"], PLANTED["link"]], ids=["pipe", "link"])
def test_neither_steps_nor_events_nor_copies_are_read_from_something_else(tmp_path: Path, plant: Plant) -> None:
    for name in ("steps-r0.jsonl", "agent.a.jsonl"):
        plant(tmp_path / name)
    assert soon(lambda: rank_processes.last_step(str(tmp_path), 0)) == 0
    assert soon(lambda: event_reader.whole_lines(tmp_path / "agent.a.jsonl", 0)) == ([], 0)
    assert soon(lambda: node_files.fetch([tmp_path], "steps-r0.jsonl", tmp_path / "to", 100)) is not None
    assert not (tmp_path / "to").exists()


def test_the_lock_of_a_directory_is_no_pipe_that_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.lock")
    assert soon(lambda: label.driven_run(tmp_path)) == ""


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_the_helper_of_a_host_goes_on_beside_them(tmp_path: Path, plant: Plant) -> None:
    (tmp_path / RUN).mkdir(parents=True)
    plant(tmp_path / "nodes/n0/heartbeat")
    plant(tmp_path / "nodes/n0/node.json") if plant is not PLANTED["too much"] else None
    EventLog(tmp_path / RUN / "agent.a.jsonl", writer="agent").append("note", "x", {})
    with serving(tmp_path) as pipes:
        heard = Heard()
        served = Served(tmp_path, Link(pipes, heard.frame, heard.loss), heard)
        served.ask("watch", trees=[{"path": "nodes/n0", "node": "n0"}, {"path": RUN, "node": "n0"}], beats=["n0"])
        assert heard.file(f"{RUN}/agent.a.jsonl")
        assert not any(header.get("beats") for header, _ in heard.frames)
        served.link.close()


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_what_is_written_takes_the_place_of_what_was_planted(tmp_path: Path, plant: Plant) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("kept")
    (tmp_path / f".exit.json.{os.getpid()}").symlink_to(target)
    if plant is not PLANTED["directory"]:
        plant(tmp_path / "exit.json")
    plain_files.write_json(tmp_path / "exit.json", {"code": 0})
    assert plain_files.read_json(tmp_path / "exit.json") == {"code": 0} and target.read_text() == "kept"


def test_the_end_of_a_long_file_is_its_end(tmp_path: Path) -> None:
    (tmp_path / "agent.log").write_bytes(b"x" * 3_000_000 + b"the reason")
    assert plain_files.read_tail(tmp_path / "agent.log", 10) == b"the reason"


def test_a_label_of_nonsense_is_none(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"pid": "seven", "start": []}')
    assert label.live_label(tmp_path) == {}
    (tmp_path / "node.json").write_text("[" * 100_000)
    assert plain_files.read_json(tmp_path / "node.json") == {}
