"""Whether a container is frozen: only a fresh answer of its engine says so, before an injection as after it.
And one that is killed while its engine creates it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.keeper import container_node
from orchestrator.node.keeper.container_lifecycle import ContainerLifecycle
from orchestrator.node.oslayer import container_engine, processes
from orchestrator.node.oslayer.container_engine import EngineError
from orchestrator.node.oslayer.event_loop import Loop


class _Calls:
    """An engine that answers when it is let."""

    def __init__(self) -> None:
        self.pending: list[Callable[[Any, Any], None]] = []

    def request(self, method: str, path: str, then: Callable[[Any, Any], None], *rest: object, **more: object) -> None:
        if method == "GET":
            self.pending.append(then)

    def respond(self, *, paused: bool) -> None:
        self.pending.pop(0)({"State": {"Paused": paused}}, None)


@pytest.fixture
def calls() -> _Calls:
    return _Calls()


@pytest.fixture
def node(tmp_path: Path, calls: _Calls) -> container_node.ContainerNode:
    node = container_node.ContainerNode(
        "n0",
        tmp_path,
        record=tmp_path / "n0.json",
        container="ccbed-n0",
        engine=calls,  # type: ignore[arg-type]
        start=lambda node, wanted, respond: None,
    )
    node.label = {"pid": os.getpid(), "start": processes.start_time(os.getpid())}
    return node


def test_until_the_engine_has_answered_nothing_is_known(node: container_node.ContainerNode, calls: _Calls) -> None:
    assert [node.is_paused(True)[0], node.is_paused(False)[0]] == [None, None]
    assert len(calls.pending) == 1, "only one request is pending"
    calls.respond(paused=False)
    assert [node.is_paused(True)[0], node.is_paused(False)[0]] == [False, True]


def test_what_the_engine_said_some_time_ago_is_not_used(
    node: container_node.ContainerNode, calls: _Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.is_paused(True)
    calls.respond(paused=False)
    monkeypatch.setattr(container_node, "FRESH_S", 0.0)
    assert node.is_paused(True)[0] is None
    monkeypatch.setattr(container_node, "FRESH_S", 60.0)
    calls.respond(paused=True)
    assert node.is_paused(True)[0] is True


def test_an_order_makes_what_was_said_before_it_unknown(node: container_node.ContainerNode, calls: _Calls) -> None:
    node.is_paused(True)
    calls.respond(paused=False)
    node.pause(True)
    assert node.is_paused(True)[0] is None


@pytest.fixture
def main_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


class _Starting:
    """A node whose start waits for the engine: the requests, and what was responded to the start and to its end."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, main: subprocess.Popen[bytes]) -> None:
        self.pending: list[tuple[str, Callable[[Any, Any], None]]] = []
        self.started: list[str] = []
        self.ended: list[tuple[list[int], int]] = []
        self.loop = Loop()
        self.loop.call_every(0.01, lambda: None)

        def request(engine: Any, method: str, path: str, then: Callable[[Any, Any], None], *_: Any, **__: Any) -> None:
            if path.endswith("/kill"):
                main.kill()
            self.pending.append((f"{method} {path.partition('?')[0]}", then))

        monkeypatch.setattr(container_engine.LoopClient, "request", request)
        self.lifecycle = ContainerLifecycle(
            self.loop, directory, "lab", "archive", lambda node, payload: None, "/no.sock"
        )
        wanted = {"hash": "s", "request": {"Env": [], "Labels": {}}}
        self.lifecycle.start(self.lifecycle.get("n0"), wanted, lambda kind, payload: self.started.append(kind))

    def respond(self, content: Any, error: EngineError | None = None) -> None:
        self.pending.pop(0)[1](content, error)

    def end(self) -> None:
        self.lifecycle.end(self.lifecycle.get("n0"), lambda killed, left: self.ended.append((killed, left)))

    def turn(self, for_s: float) -> None:
        until = time.monotonic() + for_s
        while not self.ended and time.monotonic() < until:
            self.loop.run_once()

    def removed(self) -> list[str]:
        return [request for request, _ in self.pending if request.startswith("DELETE")]


@pytest.fixture
def starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main_process: subprocess.Popen[bytes]) -> _Starting:
    return _Starting(tmp_path, monkeypatch, main_process)


def test_a_container_that_is_killed_while_the_engine_creates_it_does_not_outlive_the_kill(
    starting: _Starting, main_process: subprocess.Popen[bytes]
) -> None:
    starting.end()
    starting.turn(0.1)
    assert starting.ended == [], "the container may still start"
    starting.respond(None, EngineError("no such container", 404))
    starting.respond({"Id": "c1"})
    starting.respond(None)
    starting.respond({"Id": "c1", "State": {"Pid": main_process.pid}})
    starting.turn(30.0)
    assert starting.ended == [([main_process.pid], 0)]
    assert starting.removed() == ["DELETE /containers/c1"]


def test_a_container_whose_start_was_not_responded_is_removed_with_its_node(starting: _Starting) -> None:
    starting.respond(None, EngineError("no such container", 404))
    starting.respond({"Id": "c1"})
    starting.respond(None, EngineError("no response within 60 s"))
    assert starting.started == ["fail"]
    starting.end()
    starting.turn(30.0)
    assert (starting.ended, starting.removed()) == ([([], 0)], ["DELETE /containers/c1"])
