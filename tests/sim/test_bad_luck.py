"""What no recovery can help, in virtual time: a full disk, taken ports, a run that was cut off before it could say so."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from orchestrator.core.engine import fold
from orchestrator.model.event import Command, Event, Source
from orchestrator.model.payload import EventType

from ..fakes.fake import FakeBed
from ..fakes.fake_ranks import FakeGang
from . import world

NAMES = ("n0", "n1", "n2", "n3", "n4")


def full_disk() -> FakeBed:
    """No checkpoint can be written; the gang continues without, as real ranks do."""
    bed = FakeBed(NAMES)

    def commit(gang: FakeGang) -> None:
        bed.ranks.emit(gang, 0, "checkpoint.failed", {"name": "e0-s5", "reason": "No space left on device"})

    bed.ranks.commit = commit  # type: ignore[method-assign]
    return bed


def sharded() -> FakeBed:
    """Its checkpoints are directories, which the scan reports."""
    bed = FakeBed(NAMES)
    commit = bed.ranks.commit

    def commit_directory(gang: FakeGang) -> None:
        commit(gang)
        bed.ranks.checkpoints[-1]["file"] = bed.ranks.checkpoints[-1]["name"]

    bed.ranks.commit = commit_directory  # type: ignore[method-assign]
    return bed


def failing(kind: str) -> FakeBed:
    """Its ranks end by an error of this kind in their first step, as measured collectives do."""
    bed = FakeBed(NAMES)

    def step(gang: FakeGang, first: bool = False) -> None:
        for rank, node in gang.ranks.items():
            bed.ranks.emit(gang, rank, "rank.error", {"kind": kind, "message": f"rank {rank} says why"})
            bed.at(0.02, functools.partial(bed.ranks.fail, gang, rank, node))

    bed.ranks.step = step  # type: ignore[method-assign]
    return bed


def taken_ports() -> FakeBed:
    """Another process holds the first port that is tried."""
    bed = FakeBed(NAMES)
    respond = bed.cluster.respond

    def respond_with_second_port(
        command: Command, type: EventType, value: Mapping[str, Any], writer: str = "agent"
    ) -> None:
        if command.f == "store.open":
            value = {**value, "port": value["port"] + 1, "retries": [value["port"]]}
        respond(command, type, value, writer)

    bed.cluster.respond = respond_with_second_port  # type: ignore[method-assign]
    return bed


def test_lost_checkpoints_end_no_run_and_keep_no_gang_from_coming_back() -> None:
    _, book = world.run(world.trial(world.crash(2)), full_disk())
    assert book.events[-1].value["outcome"] == "finished"
    assert len(world.names(book, "recovery.decided")) == 1
    assert [event.value.get("step") for event in book.events if event.f == "resume.chosen"] == [0, 0]


@pytest.mark.parametrize(("kind", "path"), [(world.bed, "e0-s25.pt"), (sharded, "e0-s25")])
def test_ranks_are_told_the_file_or_the_directory_that_the_scan_found(kind: Callable[[], FakeBed], path: str) -> None:
    _, book = world.run(world.trial(world.crash(2)), kind())
    starts = [event.value for event in book.events if event.f == "gang.start" and event.type == "invoke"]
    assert {start["resume"]["path"] for start in starts if start.get("resume")} == {f"/shared/r/checkpoints/{path}"}


@pytest.mark.parametrize(
    ("message", "kind", "because"),
    [
        ("wrong result", "finding", "says why; a wrong result is not measured again"),
        ("memory", "infrastructure", "says why; a restart would end in the same way"),
    ],
)
def test_what_a_restart_does_not_cure_ends_the_run_at_once(message: str, kind: str, because: str) -> None:
    bed = failing(message)
    _, book = world.run(world.trial(policy=("restart",)), bed)
    end = book.events[-1].value
    assert (end["outcome"], end["kind"]) == ("failed", kind)
    assert re.fullmatch(rf"rank \d {because}", str(end["reason"])), "who and why, and nothing before it"
    assert world.names(book, "recovery.decided") == []


def test_another_error_is_answered_by_another_start() -> None:
    bed = failing("ValueError")
    _, book = world.run(world.trial(policy=("restart",)), bed)
    assert len(world.names(book, "recovery.decided")) > 0 and book.events[-1].value["outcome"] == "failed"
    assert re.match(r"(rank \d|ranks \d(, \d)+) failed; crash loop", book.events[-1].value["reason"])


def test_ports_that_were_taken_are_noted_in_each_epoch() -> None:
    _, book = world.run(world.trial(world.crash(2)), taken_ports())
    notes = [
        (event.epoch, event.value["taken"], event.value["port"]) for event in book.events if event.f == "store.retried"
    ]
    assert notes == [(0, [40000], 40001), (1, [40001], 40002)]
    assert book.events[-1].value["outcome"] == "finished"


def test_a_run_that_was_cut_off_is_closed_with_the_nodes_as_they_are_and_injects_nothing_any_more() -> None:
    """The journal ends after the decision to act, before the order; meanwhile n2 was healed: it has another incarnation."""
    trial, bed, book = world.trial(world.crash(2)), world.bed(), world.Memory()
    plan = world.plan(trial)
    decided = _cut_after(trial, plan, bed, book, "fault.target")
    nodes = {n.name: {"incarnation": n.incarnation, "ordinal": n.ordinal} for n in bed.nodes.values()}
    own = Source(writer="ctl", n=0)
    book.append(Event(type="note", f="run.interrupted", at=bed.now(), source=own, value={"nodes": nodes}))
    state = world.loop(trial, plan, bed, book).run()
    assert state.stage == "suspended"
    later = book.events[decided:]
    assert [event.type for event in later if event.f == "fault.act"] == ["invoke", "fail"]
    assert bed.nodes["n2"].alive, "the fault was never sent"
    assert world.resume(trial, plan, bed, book).stage == "done"
    assert book.events[-1].value["outcome"] == "finished"


def _cut_after(trial: Any, plan: Any, bed: FakeBed, book: world.Memory, name: str) -> int:
    """Run until ``name`` stands in the journal and nothing more can be written; its length."""

    class Full(world.Memory):
        def append(self, event: Event) -> Event | None:
            if any(event.f == name for event in self.events):
                raise world.Killed
            return super().append(event)

    full = Full()
    try:
        world.loop(trial, plan, bed, full).run()
    except world.Killed:
        book.events, book.identities, book.own = full.events, full.identities, full.own
    assert fold.open_commands(trial, plan, book.events)[1][-1].f == "fault.act"
    return len(book.events)
