"""What keeps a run from going on: a journal that cannot be written is one thing, a way that is cut another."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model.errors import InfrastructureError, Interrupted, KeeperGoneError
from orchestrator.model.event import Command, Event
from orchestrator.model.launch import Request
from orchestrator.model.plan import Placement, Plan
from orchestrator.model.provider import Cursors
from orchestrator.plugins import discover
from orchestrator.providers import abandoned_run, bed_commands
from orchestrator.providers.process.process_provider import ProcessProvider
from orchestrator.run import drive, lifecycle, twin_runs
from orchestrator.store import bed_files as bedfiles
from orchestrator.store import bundle
from orchestrator.store.journal import JournalError

from ..fakes import fake
from ..sim import world
from . import beds


class Bed(fake.FakeBed):
    """``poll`` and ``perform`` raise what they are given to raise."""

    polled: OSError | None = None
    performed: OSError | None = None
    but: tuple[str, ...] = ()

    def poll(self, cursors: Cursors, timeout_s: float) -> tuple[Sequence[Event], Cursors]:
        if self.polled:
            raise self.polled
        return super().poll(cursors, timeout_s)

    def perform(self, command: Command) -> None:
        if self.performed and command.f in self.but:
            raise self.performed
        super().perform(command)


TRIAL = world.trial(world.crash(2))
AWAY = OSError("host h2: not connected")


def _drive(tmp_path: Path, provider: Bed, plan: Plan | None = None) -> None:
    spec = replace(beds.local(), workdir=str(tmp_path / "bed"))
    (tmp_path / "bed").mkdir()
    (tmp_path / "run").mkdir()
    documents = {"trial.json": TRIAL, "plan.json": _plan(), "fingerprint.json": {}, "bundle.json": {"format": 2}}
    bundle.write_inputs(tmp_path / "run", documents)
    request = Request(
        trial=TRIAL, bed=spec, provider=provider, catalogue=discover(()), runs=str(tmp_path), state=str(tmp_path),
        command="ccbed run dp-ring",
    )  # fmt: skip
    drive.drive(request, TRIAL, plan or _plan(), tmp_path / "run")


def _plan() -> Plan:
    return world.plan(TRIAL)


@pytest.mark.parametrize("error", [AWAY, ConnectionResetError(errno.ECONNRESET, "reset")], ids=["away", "reset"])
def test_a_way_that_is_cut_is_no_journal_that_cannot_be_written(tmp_path: Path, error: OSError) -> None:
    provider = Bed(tuple(world.ONE_HOST), hosts=world.ONE_HOST)
    provider.polled = error
    with pytest.raises(InfrastructureError) as raised:
        _drive(tmp_path, provider)
    assert not isinstance(raised.value, JournalError)
    assert raised.value.problems[0] == str(error)
    assert "space" not in raised.value.hint and f"ccbed resume {tmp_path / 'run'}" in raised.value.hint
    left = bedfiles.open_run(tmp_path / "bed")
    assert left is not None and left.cut, "the run can be gone on with"


def test_a_run_whose_drained_node_left_the_bed_is_healed(tmp_path: Path) -> None:
    provider = Bed(tuple(world.ONE_HOST), hosts=world.ONE_HOST)
    provider.polled = AWAY
    with pytest.raises(InfrastructureError, match="host h2: not connected"):
        _drive(
            tmp_path, provider, replace(_plan(), placement=Placement(drained={"n9": "is on host h9, which is drained"}))
        )


def test_a_run_that_did_not_begin_is_resumed_after_its_drained_node_left_the_bed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended: list[set[str]] = []
    monkeypatch.setattr(abandoned_run, "mend", lambda *_, drained: mended.append(drained))
    monkeypatch.setattr(twin_runs, "resume", lambda *_: None)
    monkeypatch.setattr(lifecycle, "_start", lambda *_, fresh: None)
    bed, reason = beds.local(), "is on a host that is drained"
    request = Request(
        trial=TRIAL, bed=bed, provider=Bed(()), catalogue=discover(()), runs="", state="", command="ccbed resume"
    )
    plan = replace(_plan(), placement=Placement(drained={"n9": reason, "n1": reason}))
    lifecycle._resume_unstarted(request, plan, tmp_path)
    assert mended == [{bed.node("n1").host}]


@pytest.mark.parametrize(
    ("has_ended", "twin", "text"),
    [
        (True, "", "after the run had ended, before its report was complete"),
        (True, "the-twin", "at once; the ranks and faults on the bed stay"),
        (False, "", "at once; the ranks and faults on the bed stay"),
    ],
)
def test_a_second_interruption_tells_what_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ended: bool, twin: str, text: str
) -> None:
    monkeypatch.setattr(bundle, "has_ended", lambda directory: has_ended)
    bedfiles.begin_run(tmp_path, "r", tmp_path)
    bedfiles.change_run(tmp_path, "r", tmp_path, twin=twin)
    with pytest.raises(Interrupted, match=f"interrupted {text}") as raised, lifecycle._resumable(tmp_path, tmp_path):
        raise KeyboardInterrupt
    assert raised.value.hint == f"ccbed resume {tmp_path}"


def test_a_disk_that_is_full_is_told_as_that(tmp_path: Path) -> None:
    provider = Bed(tuple(world.ONE_HOST), hosts=world.ONE_HOST)
    provider.polled = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/where")
    with pytest.raises(JournalError, match="/some/where: No space left on device") as raised:
        _drive(tmp_path, provider)
    assert "free space" in raised.value.hint


def _run(provider: Bed) -> world.Memory:
    book = world.Memory()
    world.loop(TRIAL, _plan(), provider, book).run()
    return book


def test_what_cannot_be_sent_is_answered_at_once_and_the_run_goes_on() -> None:
    provider = Bed(tuple(world.ONE_HOST), hosts=world.ONE_HOST)
    provider.performed, provider.but = AWAY, ("fault.act",)
    book = _run(provider)
    invocation, reply = (event for event in book.events if event.f == "fault.act")
    assert (reply.type, reply.value["reason"]) == ("info", "not sent: host h2: not connected")
    assert reply.t - invocation.t < 0.1
    assert book.events[-1].value["outcome"] == "finished"


def test_what_cannot_be_written_into_an_inbox_here_is_raised() -> None:
    provider = Bed(tuple(world.ONE_HOST), hosts=world.ONE_HOST)
    provider.performed, provider.but = OSError(errno.ENOSPC, "No space left", "/bed/inbox"), ("fault.act",)
    with pytest.raises(OSError, match="/bed/inbox"):
        _run(provider)


def test_an_injection_that_nobody_is_there_to_make_ends_the_run_at_once_and_is_no_finding() -> None:
    provider = Bed(tuple(world.ONE_HOST), hosts=world.ONE_HOST)
    provider.performed, provider.but = KeeperGoneError("the keeper of this bed is gone"), ("fault.act", "fault.heal")
    book = _run(provider)
    (invocation, reply), end = (event for event in book.events if event.f == "fault.act"), book.events[-1]
    assert reply.type == "info" and end.t - invocation.t < 2.0
    assert (end.value["outcome"], end.value["kind"]) == ("failed", "infrastructure")
    assert "the keeper of this bed is gone; ccbed up brings it back" in end.value["reason"]


def test_who_is_asked_outside_of_a_run_is_not_waited_for_in_vain() -> None:
    provider = Bed(tuple(world.ONE_HOST), hosts=world.ONE_HOST)
    provider.performed, provider.but = KeeperGoneError("the keeper of this bed is gone"), ("node.kill",)
    order = Command(f="node.kill", key="k", node="n0", deadline_s=3600.0)
    answers = bed_commands.BedCommands(provider=provider, cursors={}).perform([order])
    assert bed_commands.problem(answers["k"], order) == "the keeper of this bed is gone"


def test_a_keeper_of_this_machine_that_is_gone_is_seen_at_once(tmp_path: Path) -> None:
    bed = replace(beds.local(), workdir=str(tmp_path / "bed"), hostdir=str(tmp_path / "bed"))
    provider = ProcessProvider(tmp_path)
    provider.open(bed, "R")
    with pytest.raises(KeeperGoneError):
        provider.perform(Command(f="fault.act", key="k", node="n0"))
    assert not list((tmp_path / "bed").rglob("*.json")), "and nothing is left for the next keeper to find"
    provider.close()


def test_a_bed_that_was_taken_down_is_not_healed(tmp_path: Path) -> None:
    """To heal it would start nodes that no bed file names; its run is open no longer."""
    provider = Bed(tuple(world.ONE_HOST), hosts=world.ONE_HOST)
    provider.polled = AWAY
    (tmp_path / "beds").mkdir()
    with pytest.raises(InfrastructureError, match="bed local was taken down while the run was open") as caught:
        _drive(tmp_path, provider)
    assert "the bed is healed" not in str(caught.value)
    assert caught.value.hint.startswith("ccbed up ")
    assert bedfiles.open_run(tmp_path / "bed") is None
