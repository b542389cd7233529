"""A command whose acknowledgement was lost with its connection: sent again, done once, and one answer in the history."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.engine import fold
from orchestrator.model.event import Command, Event
from orchestrator.node.agent import agent, checkpoint_scan
from orchestrator.node.files import inbox
from orchestrator.node.hostlink import frames
from orchestrator.node.keeper import keeper
from orchestrator.providers import event_reader
from orchestrator.providers.ssh import helper_start, host_connection
from orchestrator.providers.ssh.remote_host import RemoteSite

from ..patience import until
from . import piped_site
from .piped import Pipes, serving

KILL = Command(f="node.kill", key="e1/kill/n0", node="n0", deadline_s=0.5)
FENCE = Command(f="fence.write", key="e0/fence", node="n0", epoch=0)
TIMEOUT_S = 600.0


class Torn:
    """A channel that breaks when a file has been placed and the word of it is on its way back."""

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        self._writes: set[int] = set()
        self._requests, self._responses = frames.Decoder(), frames.Decoder()
        self.torn = threading.Event()

    def sendall(self, data: bytes, /) -> None:
        self._writes |= {header["id"] for header, _ in self._requests.feed(data) if header["do"] == "write"}
        self._pipes.sendall(data)

    def recv(self, size: int, /) -> bytes:
        data = self._pipes.recv(size)
        if any(header.get("id") in self._writes and "ok" in header for header, _ in self._responses.feed(data)):
            self.torn.set()
            return b""
        return data

    def close(self) -> None:
        """The pipes are closed by whoever made them."""


@contextmanager
def _reconnected(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[RemoteSite, Torn]]:
    """A site whose first connection is torn, and whose second comes when ``torn`` has been waited for and cleared."""
    with serving(tmp_path / "host") as first, piped_site.site(tmp_path / "host", tmp_path / "mirror", patch) as site:
        second, torn = helper_start.start, Torn(first)
        patch.setattr(host_connection, "BACKOFF_S", (0.0,))
        channels = iter((torn,))

        def start(*about: Any) -> helper_start.Started:
            channel = next(channels, None)
            if channel is None:
                until(lambda: not torn.torn.is_set())
                return second(*about)
            return helper_start.Started(channel=channel, hello={}, rest=b"")

        patch.setattr(helper_start, "start", start)
        site.open()
        yield site, torn


def _sent_twice(site: RemoteSite, torn: Torn, path: Path, command: Command, work: Callable[[], None]) -> None:
    """Write it, have it done, lose the word of it, have it written again and looked at again."""
    site.write(str(path), inbox.encode_command("R", command))
    assert torn.torn.wait(TIMEOUT_S)
    work()
    assert not path.exists()
    torn.torn.clear()
    until(path.exists)
    work()


def _written_down(path: Path) -> list[Event]:
    """The events of a file as the history of run R has them."""
    history: list[Event] = []
    for line in path.read_bytes().splitlines():
        history += [fold.mark_repeated(event, history) for event in event_reader.decode(line, "R")]
    return history


def _answers(events: list[Event]) -> list[tuple[str, str, str | None]]:
    return [(event.type, event.f, event.key) for event in events if event.type != "note" or "repeated" in event.f]


def test_a_keeper_does_it_once_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = keeper.Keeper(tmp_path / "host", "b", "hash", keeper.CONTAINERS, str(tmp_path / "no.sock"))
    ended: list[str] = []

    def end(node: Any, then: Callable[[list[int], int], None]) -> None:
        ended.append(node.name)
        then([7], 0)

    monkeypatch.setattr(made._nodes, "end", end)
    with _reconnected(tmp_path, monkeypatch) as (site, torn):
        path = tmp_path / "host/keeper/inbox" / inbox.command_file_name("R", KILL.key)
        _sent_twice(site, torn, path, KILL, made._take_commands)
    assert ended == ["n0"]
    events = _written_down(tmp_path / "host/keeper/events.jsonl")
    assert _answers(events) == [("ok", "node.kill", KILL.key), ("note", "command.repeated", None)]
    assert events[-1].value == {"f": "node.kill", "key": KILL.key}


@pytest.fixture
def node(tmp_path: Path) -> agent.Agent:
    directory = tmp_path / "host/nodes/n0"
    directory.mkdir(parents=True)
    return agent.Agent(directory, {"node": "n0", "incarnation": "i1"})


@pytest.mark.parametrize(("incarnation", "type"), [("i1", "ok"), ("i0", "fail")], ids=["done", "refused"])
def test_an_agent_does_or_refuses_it_once_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: agent.Agent, incarnation: str, type: str
) -> None:
    written: list[int] = []
    monkeypatch.setattr(checkpoint_scan, "write_fence", lambda directory, epoch, **_: written.append(epoch))
    order = dataclasses.replace(FENCE, incarnation=incarnation, value={"dir": "/shared", "epoch": 0})
    with _reconnected(tmp_path, monkeypatch) as (site, torn):
        path = tmp_path / "host/nodes/n0/inbox" / inbox.command_file_name("R", order.key)
        _sent_twice(site, torn, path, order, node._take_commands)
    assert written == ([0] if type == "ok" else [])
    events = _written_down(tmp_path / "host/nodes/n0/runs/R/agent.i1.jsonl")
    assert _answers(events) == [(type, "fence.write", FENCE.key), ("note", "command.repeated", None)]
    assert [event.source.n for event in events] == list(range(1, len(events) + 1))


def _outcome(path: Path) -> Event:
    (event,) = (event for event in _written_down(path) if event.type != "note")
    return event


def test_what_says_something_else_or_does_not_say_that_it_is_said_again_is_a_second_answer(
    tmp_path: Path, node: agent.Agent
) -> None:
    directory = tmp_path / "host/nodes/n0"
    inbox.post_command(directory, "R", dataclasses.replace(FENCE, value={"dir": str(tmp_path / "shared"), "epoch": 0}))
    node._take_commands()
    first = _outcome(directory / "runs/R/agent.i1.jsonl")
    marked = dataclasses.replace(first, value={**first.value, "repeated": True})
    assert fold.mark_repeated(marked, [first]).f == "command.repeated"
    assert fold.mark_repeated(marked, []) == marked
    assert fold.mark_repeated(first, [first]) == first
    other = dataclasses.replace(marked, value={"epoch": 1, "repeated": True})
    assert fold.mark_repeated(other, [first]) == other
    failed = dataclasses.replace(marked, type="fail")
    assert fold.mark_repeated(failed, [first]) == failed


def test_an_answer_that_nobody_heard_is_given_to_whoever_asks_again(tmp_path: Path, node: agent.Agent) -> None:
    """The agent kept it and ended before it told."""
    directory = tmp_path / "host/nodes/n0"
    order = dataclasses.replace(FENCE, value={"dir": str(tmp_path / "shared"), "epoch": 0})
    outcome = {"type": "ok", "f": order.f, "key": order.key, "epoch": 0, "value": {"epoch": 0}}
    (directory / "done" / inbox.command_file_name("R", order.key)).write_text(json.dumps(outcome))
    inbox.post_command(directory, "R", order)
    node._take_commands()
    event = _outcome(directory / "runs/R/agent.i1.jsonl")
    assert (event.type, event.value) == ("ok", {"epoch": 0, "repeated": True})
    assert not (tmp_path / "shared").exists()


def test_the_host_says_why_it_did_not_take_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "host").mkdir()
    with serving(tmp_path / "host"), piped_site.site(tmp_path / "host", tmp_path / "mirror", monkeypatch) as site:
        site.open()
        (tmp_path / "host" / "full").write_text("")
        path = str(tmp_path / "host" / "full" / "inbox" / "c.json")
        assert site.refusal(path) == ""
        site.write(path, b"{}")
        until(lambda: site.refusal(path) != "")
        assert "full" in site.refusal(path)
        (tmp_path / "host" / "full").unlink()
        site.write(path, b"{}")
        until(Path(path).exists)
        assert site.refusal(path) == ""
