"""Whether a container is frozen: only a fresh answer of its engine says so, before an injection as after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.keeper import container_node
from orchestrator.node.oslayer import processes


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
