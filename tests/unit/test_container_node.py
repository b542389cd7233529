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


def test_a_container_that_is_killed_while_the_engine_creates_it_does_not_outlive_the_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main_process: subprocess.Popen[bytes]
) -> None:
    pending: list[tuple[str, Callable[[Any, Any], None]]] = []

    def request(engine: Any, method: str, path: str, then: Callable[[Any, Any], None], *_: Any, **__: Any) -> None:
        if path.endswith("/kill"):
            main_process.kill()
        pending.append((f"{method} {path.partition('?')[0]}", then))

    def respond(content: Any, error: EngineError | None = None) -> None:
        pending.pop(0)[1](content, error)

    def turn(is_over: Callable[[], bool], for_s: float) -> None:
        until = time.monotonic() + for_s
        while not is_over() and time.monotonic() < until:
            loop.run_once()

    monkeypatch.setattr(container_engine.LoopClient, "request", request)
    loop, started, ended = Loop(), list[str](), list[tuple[list[int], int]]()
    loop.call_every(0.01, lambda: None)
    lifecycle = ContainerLifecycle(loop, tmp_path, "lab", "archive", lambda node, payload: None, "/no.sock")
    node = lifecycle.get("n0")
    lifecycle.start(
        node, {"hash": "s", "request": {"Env": [], "Labels": {}}}, lambda kind, payload: started.append(kind)
    )
    lifecycle.end(node, lambda killed, left: ended.append((killed, left)))
    turn(lambda: bool(ended), 0.1)
    assert ended == [], "the container may still start"
    respond(None, EngineError("no such container", 404))
    respond({"Id": "c1"})
    respond(None)
    respond({"Id": "c1", "State": {"Pid": main_process.pid}})
    turn(lambda: bool(ended), 30.0)
    assert ended == [([main_process.pid], 0)]
    assert "DELETE /containers/c1" in [request for request, _ in pending]
