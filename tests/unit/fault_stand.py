"""A stand for faults at the keeper: primitives as switches, and what the keeper notes and answers."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import codec
from orchestrator.model.act import Act, Primitive
from orchestrator.model.event import Command
from orchestrator.model.payload import Payload
from orchestrator.node.keeper import fault_lifecycle, node_primitives
from orchestrator.node.keeper.fault_lifecycle import FaultLifecycle
from orchestrator.node.keeper.lease_records import Lease, Leases
from orchestrator.node.oslayer.event_loop import Loop, Steps
from orchestrator.node.oslayer.processes import Process

ON, OFF = (Primitive(kind="pause", args={"state": state}) for state in ("on", "off"))
#: A fault that does not show is not verified after this time.
LIMIT_S = 0.05
PAUSE = Act(
    inject=(ON,), verify=(ON,), heal=(OFF,), verify_heal=(OFF,), lease_s=60.0, safety="container", limit_s=LIMIT_S
)


def results_of(task: Steps[Any], results: list[Any]) -> Steps[None]:
    """Append what a task returns."""
    results.append((yield from task))


class Node:
    name = "n2"

    @staticmethod
    def is_up() -> bool:
        return True

    @staticmethod
    def processes() -> list[Process]:
        """None: what such a fault hits is not observed on."""
        return []


@dataclass
class Switches:
    """Primitives as switches: kind -> state. What is ``broken`` is applied without effect, ``unseen`` is never known."""

    state: dict[str, str]
    broken: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    hides: Callable[[Primitive, Mapping[str, str]], bool] = lambda primitive, state: False
    done: list[str] = field(default_factory=list)

    def apply(self, primitive: Primitive, node: object) -> dict[str, Any]:
        self.done.append(f"{primitive.kind} {primitive.args['state']}")
        before = self.state[primitive.kind]
        if primitive.kind not in self.broken:
            self.state[primitive.kind] = primitive.args["state"]
        killed = {"killed": [7] if before == "on" else []} if primitive == KILL else {}
        return {primitive.kind: primitive.args["state"], **killed}

    def holds(self, primitive: Primitive, node: object) -> tuple[bool | None, dict[str, Any]]:
        evidence = {f"{primitive.kind} seen": self.state[primitive.kind]}
        hidden = primitive.kind in self.unseen or self.hides(primitive, self.state)
        return (None if hidden else self.state[primitive.kind] == primitive.args["state"]), evidence


@dataclass
class Stand:
    """A holder over such switches. A note whose name is in ``unwritable`` raises an error, as on a full disk."""

    directory: Path
    switches: Switches
    unwritable: tuple[str, ...] = ()
    notes: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    answers: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    loop: Loop = field(default_factory=Loop)

    def __post_init__(self) -> None:
        self.note: Callable[[Lease, Payload], None] = self._note
        self.acts = self.holder()

    def holder(self) -> FaultLifecycle:
        return FaultLifecycle(self.loop, Leases(self.directory), lambda name: Node(), self.note)  # type: ignore[arg-type,return-value]

    def _note(self, lease: Lease, payload: Payload) -> None:
        if payload.NAME in self.unwritable:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.notes.append((payload.NAME, codec.plain(payload)))

    def order(self, f: str, act: Act) -> None:
        perform = self.acts.act if f == "fault.act" else self.acts.heal
        perform("r", make_command(f, act), lambda kind, payload: self.answers.append((kind, codec.plain(payload))))

    def act(self, act: Act) -> tuple[str, Mapping[str, Any]]:
        return self.perform("fault.act", act)

    def perform(self, f: str, act: Act) -> tuple[str, Mapping[str, Any]]:
        count = len(self.answers)
        self.order(f, act)
        self.run(lambda: len(self.answers) > count)
        return self.answers[-1]

    def run(self, until: Callable[[], bool]) -> None:
        """Run the loop until the condition holds, for 60 s at most."""
        give_up = self.loop.call_later(60.0, lambda: None)
        end = time.monotonic() + 600
        while not until():
            assert time.monotonic() < end, (self.notes, self.answers)
            self.loop.run_once()
        give_up.cancel()

    @property
    def noted(self) -> list[str]:
        return [name for name, _ in self.notes]


CUT, JOIN = (Primitive(kind="link", args={"state": state}) for state in ("down", "up"))
KILL, START = (Primitive(kind="power", args={"state": state}) for state in ("off", "on"))
#: A node with a link of its own is cut off and killed.
CRASH = Act(
    inject=(CUT, KILL), verify=(CUT, KILL), heal=(JOIN, START), verify_heal=(START,), lease_s=60.0, safety="node",
    limit_s=LIMIT_S,
)  # fmt: skip


def make_stand(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """A stand whose switches are the primitives of every node."""
    switches = Switches({"pause": "off", "link": "up", "power": "on"})
    monkeypatch.setattr(node_primitives, "perform", switches.apply)
    monkeypatch.setattr(node_primitives, "observe", switches.holds)
    monkeypatch.setattr(node_primitives, "check_supported", lambda wanted, node: None)
    monkeypatch.setattr(fault_lifecycle, "VERIFY_S", 0.02)
    return Stand(directory, switches)


def make_command(f: str, act: Act = PAUSE) -> Command:
    return Command(f=f, key=f"f/f0/{f}", node="n2", value={"id": "f0", "fault": "pause", "act": codec.plain(act)})


def make_program(fifo: Path) -> Primitive:
    """A program that runs until the FIFO is opened for writing and closed."""
    os.mkfifo(fifo)
    return Primitive(kind="argv", args={"run": ["cat", str(fifo)]})


def close_fifo(fifo: Path) -> None:
    os.close(os.open(fifo, os.O_WRONLY))
