"""The controller waits for its own disk, or its machine stands still, for longer than any limit: nothing is lost by that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from orchestrator.core.engine import liveness
from orchestrator.model.event import Command
from orchestrator.model.events import GangQuiet
from orchestrator.model.trial import Liveness

from ..fakes.fake import FakeBed
from . import world

#: Longer than the deadline of any command, and than a gang may stand still.
SLOW_S = 70.0


@dataclass
class SlowDisk(world.Memory):
    """A journal that takes its time to be on disk, while the bed goes on."""

    bed: FakeBed = field(default_factory=world.bed)
    syncs: int = 0

    def sync(self) -> None:
        self.syncs += 1
        world.wait(self.bed, SLOW_S)


@pytest.mark.parametrize("for_s", [None, 0.5])
def test_a_disk_that_is_slow_to_sync_makes_no_reply_late_and_no_gang_stalled(for_s: float | None) -> None:
    """The training goes on while a fault is healed in its midst: the sync before that is none of its steps."""
    trial = world.trial(world.crash(2), policy=("spare", "restart"))
    trial = replace(trial, liveness=replace(trial.liveness, hold_s=600.0))
    acts = None if for_s is None else {"f0": world.pause(for_s)}
    disk = SlowDisk()
    state = world.loop(trial, world.plan(trial, acts), disk.bed, disk).run()
    assert state.over and disk.events[-1].value["outcome"] == "finished"
    assert disk.syncs > 1
    assert world.names(disk, "gang.stalled", "node.silent") == []
    assert [e.value for e in disk.events if e.type == "info" and "no reply" in str(e.value.get("reason"))] == []


def test_a_command_that_takes_long_to_send_is_no_late_reply() -> None:
    """As a fault whose process on this machine must be started first. The reply takes nearly as long as it may."""
    trial = world.trial(world.crash(2), policy=("spare", "restart"))
    trial = replace(trial, liveness=replace(trial.liveness, hold_s=600.0))
    bed, book = world.bed(), world.Memory()
    perform = bed.perform

    def perform_late(command: Command) -> None:
        if command.f == "fault.act":
            world.wait(bed, SLOW_S)
            bed.cluster.later(command.deadline_s - 1.0, lambda: perform(command))
        else:
            perform(command)

    bed.perform = perform_late  # type: ignore[method-assign]
    state = world.loop(trial, world.plan(trial), bed, book).run()
    assert state.over and book.events[-1].value["outcome"] == "finished"
    assert [e.value for e in book.events if e.type == "info" and "no reply" in str(e.value.get("reason"))] == []


def test_time_in_which_the_controller_was_late_is_no_standstill() -> None:
    limits, pace = Liveness(), liveness.advance(liveness.Pace(), 7, 100.0)
    assert liveness.stalled(pace, 115.0, limits) == 15.0
    assert liveness.stalled(liveness.delayed(pace, 14.5, 115.0), 115.0, limits) is None
    assert liveness.stalled(liveness.delayed(pace, 14.5, 115.0), 125.0, limits) == 10.5


def test_a_limit_that_a_user_has_set_does_not_count_the_time_in_which_the_controller_was_late() -> None:
    pace = liveness.started(liveness.Pace(), 100.0)
    assert liveness.quiet(pace, 106.0, Liveness(), 5.0) is not None
    late = liveness.delayed(pace, 5.5, 106.0)
    assert liveness.quiet(late, 106.0, Liveness(), 5.0) is None
    assert liveness.quiet(late, 112.0, Liveness(), 5.0) == GangQuiet(since_s=6.5, limit_s=5.0, is_strict=True)


def test_what_was_seen_while_the_controller_was_late_is_not_in_the_future() -> None:
    pace = liveness.advance(liveness.Pace(), 7, 114.0)
    assert liveness.delayed(pace, 14.5, 115.0).at == 115.0
    assert liveness.delayed(liveness.Pace(), 14.5, 115.0) == liveness.Pace()
