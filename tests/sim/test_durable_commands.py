"""A command that changes what exists is on disk before it is sent: a crash in between cannot hide a fault."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.model.event import Clock, Command, Event, Source
from orchestrator.store.journal import Journal

from ..fakes.fake import FakeBed
from . import world

CHANGES = {"fault.act", "fault.heal", "node.apply", "node.kill"}


@dataclass
class Disk(world.Memory):
    """A journal in memory that knows which commands a crash of the machine would leave in the file."""

    durable_keys: set[str] = field(default_factory=set)

    def sync(self) -> None:
        self.durable_keys |= {str(event.key) for event in self.events if event.type == "invoke"}


def unsynced_commands(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], set[str]]:
    """Names of the commands that a run with a pause and a crash sends, and those that it sends before they are durable."""
    sent: set[str] = set()
    unsynced: set[str] = set()
    perform = FakeBed.perform

    def record(bed: FakeBed, command: Command) -> None:
        sent.add(command.f)
        if command.key not in disk.durable_keys:
            unsynced.add(command.f)
        perform(bed, command)

    monkeypatch.setattr(FakeBed, "perform", record)
    trial = world.trial(world.crash(1), world.crash(2, "f1", step=45), policy=("restart",))
    acts = {"f0": world.pause(None), "f1": world.CRASH}
    state = world.loop(trial, world.plan(trial, acts), world.bed(), disk).run()
    assert state.over
    return sent, unsynced


def test_commands_that_change_what_exists_are_durable_before_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, unsynced = unsynced_commands(Disk(), monkeypatch)
    assert sent >= CHANGES
    assert unsynced & CHANGES == set()


def test_a_journal_that_never_syncs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "sync", lambda disk: None)
    _, unsynced = unsynced_commands(Disk(), monkeypatch)
    assert unsynced >= CHANGES


def test_sync_forces_every_line_of_the_journal_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.jsonl"
    synced: list[tuple[str, bytes]] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        fsync(fd)
        synced.append((str(Path(f"/proc/self/fd/{fd}").readlink()), path.read_bytes()))

    event = Event(type="note", f="run.begin", at=Clock(boot="b", mono=1.0, wall=1.0), source=Source(writer="ctl", n=0))
    with Journal(path) as book:
        monkeypatch.setattr(os, "fsync", record)
        book.append(event)
        assert synced == []
        book.sync()
    assert synced == [(str(path), path.read_bytes())]
    assert path.read_bytes().count(b"\n") == 1
