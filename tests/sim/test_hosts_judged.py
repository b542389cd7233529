"""What the checkers say of runs in which hosts were lost: nothing is blamed on anybody, and nothing is overlooked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import pytest

from orchestrator import views
from orchestrator.core.engine.state import State
from orchestrator.core.verdict import judge, sentence
from orchestrator.model.errors import KeeperGoneError
from orchestrator.model.event import REPEATED, Command, Event, History
from orchestrator.model.events import KEEPER_COMMANDS
from orchestrator.model.payload import EventType
from orchestrator.model.plan import HostClock
from orchestrator.model.run import Run
from orchestrator.model.trial import CheckSpec, Trial
from orchestrator.model.verdict import Verdict

from ..fakes.fake import FakeBed
from ..fakes.fake_cluster import FakeCluster
from ..fakes.fake_ranks import FakeGang
from ..unit.catalogue import CATALOGUE
from ..unit.synthetic import Files
from . import world

#: Those that need nothing but the history.
CHECKS = (
    "finished",
    "fault-verified",
    "planned-faults-only",
    "membership",
    "no-orphans",
    "no-hang",
    "recovered-within",
)
FAULTS = ("power-off", "cut-link", "stop-ssh", "stop-engine")
SHARED = {"n0": "h0", "n1": "h1", "n2": "h2", "n3": "h2", "n4": "h0", "n5": "h1"}


def judged(trial: Trial, book: world.Memory, *more: CheckSpec) -> dict[str, Verdict]:
    run = Run(directory="r", trial=trial, history=History(tuple(book.events)), files=Files())
    chosen = (*(CheckSpec(name=name) for name in CHECKS), *more)
    return {verdict.check: verdict for verdict in judge.judge(run, CATALOGUE, chosen)}


def bad(verdicts: dict[str, Verdict]) -> list[str]:
    return [f"{v.outcome} {v.check}: {v.text}" for v in verdicts.values() if v.outcome != "pass"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("for_s", [None, 3.0])
@pytest.mark.parametrize("hosts", [world.HOSTS, SHARED], ids=["one node a host", "two on one"])
def test_a_host_that_is_lost_on_purpose_and_given_back_passes(
    fault: str, for_s: float | None, hosts: dict[str, str]
) -> None:
    trial = world.trial(world.crash(2))
    _, book = world.run(trial, world.bed(hosts, steps=300), {"f0": world.host_act(fault, for_s=for_s)})
    assert bad(judged(trial, book)) == []


def _lost_and_back(fault: str, seed: int) -> tuple[Trial, FakeBed, world.Memory]:
    """What reached the host in the second before it was lost is sent there again once it is back, before anybody is missed."""
    trial, bed = world.trial(world.crash(2)), world.bed(world.HOSTS, steps=300, seed=seed, unacknowledged_s=1.0)
    _, book = world.run(trial, bed, {"f0": world.host_act(fault, for_s=1.5)})
    return trial, bed, book


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", ["cut-link", "stop-ssh"])
def test_what_is_sent_again_because_its_acknowledgement_was_lost_is_done_and_answered_once(
    fault: str, seed: int
) -> None:
    trial, bed, book = _lost_and_back(fault, seed)
    repeated = [event for event in book.events if event.f == "command.repeated"]
    assert {event.node for event in repeated} == {"n2"}
    assert {count for node in bed.nodes.values() for count in node.done.values()} == {1}
    assert bad(judged(trial, book)) == ["unknown recovered-within: no node was lost"]


def test_what_was_answered_twice_without_saying_so_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deed that was done twice gives two answers as well."""
    respond = FakeCluster.respond

    def unmarked(
        cluster: FakeCluster, command: Command, type: EventType, value: Mapping[str, object], writer: str = "agent"
    ) -> None:
        respond(cluster, command, type, {name: item for name, item in value.items() if name != REPEATED}, writer)

    monkeypatch.setattr(FakeCluster, "respond", unmarked)
    trial, _, book = _lost_and_back("cut-link", 0)
    verdict = judged(trial, book)["membership"]
    assert verdict.outcome == "fail"
    assert "occurs 2 times in the history" in verdict.text


@pytest.mark.parametrize(
    ("last", "text"),
    [
        ("rank.step", "no node was lost"),
        ("fault.injected", "n2 was lost, and no recovery followed"),
        ("node.exit", "n2 was lost, and no recovery followed"),
    ],
)
def test_a_run_that_is_interrupted_after_a_kill_names_the_lost_node(last: str, text: str) -> None:
    trial, bed, book = world.trial(world.crash(2)), world.bed(steps=300), world.Memory()
    stops: dict[str, bool | Callable[[], bool]] = {
        "is_interrupted": lambda: last in world.names(book), "ends_by_interrupt": True,
    }  # fmt: skip
    world.loop(trial, world.plan(trial), bed, book, **stops).run()
    assert world.names(book, "run.end", "recovery.decided") == ["run.end"]
    assert judged(trial, book)["recovered-within"].text == f"{text} (and 1 more)"


def test_a_fault_whose_effect_is_not_recorded_leaves_open_whether_a_node_was_lost() -> None:
    trial, bed, book = world.trial(world.crash(2)), world.bed(steps=300), world.Memory()
    world.loop(trial, world.plan(trial), bed, book, is_interrupted=lambda: "fault.injected" in world.names(book)).run()
    kept = [event for event in book.events if event.f not in ("node.exit", "node.ended", "rank.exit")]
    text = judged(trial, world.Memory(events=kept))["recovered-within"].text
    assert text == "crash-node was injected on n2; whether a node was lost is not known (and 1 more)"


def _own_clocks(bed: FakeBed, off_s: float = 0.0005) -> dict[str, HostClock]:
    """Each host booted at another time; as preflight would have measured it, half a millisecond wrong."""
    measured = {}
    for index, host in enumerate(bed.hosts.values(), start=1):
        host.boot, host.clock_offset_s = f"boot-{host.name}", -1000.0 * index
        measured[host.boot] = HostClock(host=host.name, offset_s=1000.0 * index + off_s, uncertainty_s=0.001)
    return measured


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("for_s", [None, 3.0])
def test_hosts_with_clocks_of_their_own_are_judged_by_what_was_measured(fault: str, for_s: float | None) -> None:
    trial, bed = world.trial(world.crash(2)), world.bed(world.HOSTS, steps=300)
    _, book = world.run(trial, bed, {"f0": world.host_act(fault, for_s=for_s)}, _own_clocks(bed))
    assert bad(judged(trial, book)) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_clocks_that_nobody_compared_convict_nobody(fault: str) -> None:
    trial, bed = world.trial(world.crash(2)), world.bed(world.HOSTS, steps=300)
    _own_clocks(bed)
    _, book = world.run(trial, bed, {"f0": world.host_act(fault, for_s=3.0)})
    assert [verdict for verdict in bad(judged(trial, book)) if verdict.startswith("fail")] == []


def test_what_a_host_tells_late_of_an_epoch_that_is_over_is_unknown_where_no_clock_was_compared() -> None:
    """n0 is cut off: what rank 0 said of epoch 0 arrives when epoch 1 trains."""
    trial, bed = world.trial(world.crash(0, after_s=0.2)), world.bed(world.HOSTS, steps=300)
    _own_clocks(bed)
    emit = functools.partial(bed.cluster.emit, "n0", "rank-0.e0", "progress", {"rank": 0, "step": 1}, epoch=0)
    bed.at(0.7, emit)
    act = {"f0": world.host_act("cut-link", for_s=3.0)}
    _, book = world.run(trial, bed, act)
    verdict = judged(trial, book)["membership"]
    assert verdict.outcome == "unknown"
    assert "no clock shows whether progress of first start came before restart 1" in verdict.text


@pytest.mark.parametrize(
    ("fault", "detectors"),
    [
        ("power-off", {"node.silent"}),
        ("cut-link", {"node.silent"}),
        ("stop-ssh", {"node.silent"}),
        ("stop-engine", {"node.exit", "rank.exit"}),
    ],
)
def test_each_fault_has_its_detector(fault: str, detectors: set[str]) -> None:
    """An exit is told by the keeper of the node and by its neighbours, whoever is first."""
    trial = world.trial(world.crash(2))
    _, book = world.run(trial, world.bed(world.HOSTS), {"f0": world.host_act(fault)})
    passed = set()
    for name in ("node.exit", "rank.exit", "node.silent", "gang.stalled"):
        spec = CheckSpec(name="detected-within", params={"seconds": 2.5, "detector": name})
        passed |= {name} if judged(trial, book, spec)["detected-within"].outcome == "pass" else set()
    assert passed
    assert passed <= detectors


def test_a_host_lost_beside_the_one_that_was_meant_is_a_finding() -> None:
    trial, bed = world.trial(world.crash(2)), world.bed(world.HOSTS, steps=300)
    bed.at(1.5, functools.partial(bed.cluster.power_off, "h1"))
    bed.at(9.0, functools.partial(bed.cluster.power_on, "h1"))
    _, book = world.run(trial, bed, {"f0": world.host_act("power-off")})
    verdict = judged(trial, book)["planned-faults-only"]
    assert verdict.outcome == "fail"
    assert "n1 fell silent, which was not planned" in verdict.text


def test_a_node_that_exits_on_a_host_that_was_given_back_whole_is_a_finding() -> None:
    trial, bed = world.trial(world.crash(2)), world.bed(world.HOSTS, steps=600)
    bed.at(4.0, functools.partial(bed.kill, "n2"))
    _, book = world.run(trial, bed, {"f0": world.host_act("cut-link", for_s=1.2)})
    verdict = judged(trial, book)["planned-faults-only"]
    assert verdict.outcome == "fail"
    assert "n2 exited, which was not planned" in verdict.text


def test_an_engine_that_does_not_answer_is_no_proof_that_its_containers_have_ended() -> None:
    trial = world.trial(world.crash(2))
    _, book = world.run(trial, world.bed(world.HOSTS), {"f0": world.host_act("stop-engine")})
    uncounted = [_without_count(event) for event in book.events if event.f != "node.kill"]
    verdict = judged(trial, dataclasses.replace(book, events=uncounted))["no-orphans"]
    assert verdict.outcome == "unknown"
    assert "were not counted" in verdict.text


def _without_count(event: Event) -> Event:
    value = {name: item for name, item in event.value.items() if name != "left"}
    return dataclasses.replace(event, value=value) if event.f == "node.exit" else event


def _resumed_in_a_partition(for_s: float, reconnect_s: float = 0.0) -> world.Memory:
    """Killed once the link is cut; resumed while it is. Silence then counts from the resumption, as the fault's time does."""
    trial, bed, book = world.trial(world.crash(2)), world.bed(world.HOSTS, steps=1500), world.Memory()
    bed.cluster.reconnect_s = reconnect_s
    plan = world.plan(trial, {"f0": world.host_act("cut-link", for_s=for_s)}, world.HOSTS)
    append = book.append

    def until_injected(event: Event) -> Event | None:
        placed = append(event)
        if event.f == "fault.injected":
            raise world.Killed
        return placed

    book.append = until_injected  # type: ignore[method-assign]
    with pytest.raises(world.Killed):
        world.loop(trial, plan, bed, book).run()
    book.append = append  # type: ignore[method-assign]
    world.wait(bed, 0.5)
    world.resume(trial, plan, bed, book)
    return book


def _healed_and_silent(book: world.Memory) -> tuple[float, list[float]]:
    """When the partition was healed, and when n2 was found silent after that."""
    healed = next(event for event in book.events if event.f == "heal.verified")
    silent = [e.t for e in book.events if e.f == "node.silent" and e.node == "n2" and e.seq > healed.seq]
    return healed.t, silent


@pytest.mark.parametrize("for_s", [1.5, 1.9, 2.0, 2.2])
@pytest.mark.parametrize("reconnect_s", [0.4, 1.2, 3.2])
def test_after_a_resumption_a_silence_that_began_in_a_partition_belongs_to_it(for_s: float, reconnect_s: float) -> None:
    book = _resumed_in_a_partition(for_s, reconnect_s)
    assert _healed_and_silent(book)[1] == []
    assert book.events[-1].value["outcome"] == "finished"
    verdict = judged(world.trial(world.crash(2)), book)["planned-faults-only"]
    assert verdict.outcome == "pass", verdict.text


def test_a_host_that_stays_silent_after_its_heal_is_lost_when_the_grace_is_over() -> None:
    book = _resumed_in_a_partition(1.5, reconnect_s=60.0)
    healed, silent = _healed_and_silent(book)
    assert 5.0 < silent[0] - healed < 7.0
    assert judged(world.trial(world.crash(2)), book)["planned-faults-only"].outcome == "pass"
    for silent_s in (0.1, 1000.0, None):
        changed = [
            dataclasses.replace(e, value={**e.value, "silent_s": silent_s}) if e.t in silent else e for e in book.events
        ]
        verdict = judged(world.trial(world.crash(2)), world.Memory(events=changed))["planned-faults-only"]
        assert verdict.outcome == "fail", f"a silence of {silent_s} s did not begin under the fault"


def test_a_host_that_falls_silent_after_the_grace_is_a_finding() -> None:
    trial, bed = world.trial(world.crash(2)), world.bed(world.HOSTS, steps=1500)
    bed.at(6.5, functools.partial(bed.cluster.cut, "h2"))
    bed.at(11.0, functools.partial(bed.cluster.join, "h2"))
    _, book = world.run(trial, bed, {"f0": world.host_act("cut-link", for_s=1.2)})
    verdict = judged(trial, book)["planned-faults-only"]
    assert verdict.outcome == "fail"
    assert "n2 fell silent, which was not planned" in verdict.text


@pytest.mark.parametrize(("works", "outcome"), [(True, "pass"), (False, "unknown")])
def test_a_power_switch_that_does_nothing_behind_a_link_that_is_cut_is_noticed(works: bool, outcome: str) -> None:
    """Nobody answers at the host's address either way; a node that lives on says so once its host is back."""
    trial, bed = world.trial(world.crash(2)), world.bed(world.HOSTS, steps=300)
    if not works:
        bed.cluster.power_off = lambda host: None  # type: ignore[method-assign]
    _, book = world.run(trial, bed, {"f0": world.host_act("power-off", for_s=3.0)})
    assert "fault.verified" in world.names(book)
    verdict = judged(trial, book)["fault-verified"]
    assert verdict.outcome == outcome, verdict.text
    assert works or "n2 still lived after f0 had cut its power" in verdict.text


def _run_until_the_job_ends(
    monkeypatch: pytest.MonkeyPatch, *, with_bed: bool, is_noticed: bool = True
) -> tuple[Trial, world.Memory]:
    """The ranks fail at each start; when recovery is refused, all nodes end, and nothing is left that could start them.

    ``is_noticed``: their exits are reported; else they only fall silent.
    """
    trial, bed, book = world.trial(), world.bed(steps=300), world.Memory()
    is_over: list[bool] = []
    join, perform = bed.ranks.join, bed.perform

    def joined(gang: FakeGang) -> None:
        join(gang)
        bed.at(0.005, lambda: bed.ranks.fail(gang, 0, "n0"))

    def refused(command: Command) -> None:
        if command.kind not in KEEPER_COMMANDS or not is_over:
            perform(command)
        else:
            raise KeeperGoneError("job 7: timed out (it reached its time limit)", with_bed=with_bed)

    def lose_all(event: Event, state: State) -> None:
        if event.f == "recovery.refused":
            is_over.append(True)
            for node in bed.nodes.values():
                if is_noticed:
                    bed.kill(node.name)
                node.paused = True

    monkeypatch.setattr(bed.ranks, "join", joined)
    monkeypatch.setattr(bed, "perform", refused)
    world.loop(trial, world.plan(trial), bed, book, on_event=lose_all).run()
    return trial, book


@pytest.mark.parametrize("is_noticed", [True, False], ids=["exits", "silence"])
def test_the_end_of_the_whole_bed_is_named_before_what_followed_from_it(
    is_noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, book = _run_until_the_job_ends(monkeypatch, with_bed=True, is_noticed=is_noticed)
    end = book.events[-1].value
    assert end["reason"].startswith(
        "job 7: timed out (it reached its time limit); rank 0 failed; the budget of 3 restarts is spent"
    )
    assert end["reason"].count("job 7") == 1 and end["kind"] == "infrastructure"
    finished = judged(trial, book)["finished"]
    assert finished.text.startswith("the run failed: job 7: timed out (it reached its time limit); rank 0 failed")
    shown = views.view(trial, History(events=tuple(book.events)))
    text = sentence.sentence(trial, shown, [finished])
    assert text == "The run failed at step 1 of 300: job 7: timed out (it reached its time limit); finished fails."


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "slow"])
def test_a_keeper_that_ends_after_it_accepted_a_command_is_not_waited_for(
    is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n2 is lost, and its keeper ends before it starts the node again: the cause is known at once. A slow keeper has its deadline."""
    trial, bed, book = world.trial(policy=("restart",)), world.bed(steps=300), world.Memory()
    perform, accepted = bed.perform, []

    def accept(command: Command) -> None:
        if command.f == "node.apply":
            accepted.append(command.key)
        else:
            perform(command)

    def require(command: Command) -> None:
        if accepted and is_gone and command.kind in KEEPER_COMMANDS:
            raise KeeperGoneError("job 7: preempted (a job of higher priority took its nodes)", with_bed=True)

    monkeypatch.setattr(bed, "perform", accept)
    monkeypatch.setattr(bed, "require_performer", require)
    bed.at(1.0, lambda: bed.kill("n2"))
    world.loop(trial, world.plan(trial), bed, book).run()
    sent = next(event for event in book.events if event.type == "invoke" and event.key == accepted[0])
    reply = next(event for event in book.events if event.type == "info" and event.key == accepted[0])
    if is_gone:
        assert reply.t - sent.t < 2.0 and reply.value["reason"].startswith("no reply: job 7: preempted")
        assert book.events[-1].value["reason"].startswith("job 7: preempted (a job of higher priority took its nodes)")
    else:
        assert reply.value["reason"] == f"no reply within {reply.t - sent.t:.0f} s"
        assert "job 7" not in book.events[-1].value["reason"]


def test_a_command_that_its_host_refused_is_not_waited_for_and_the_history_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial, bed, book = world.trial(), world.bed(steps=30), world.Memory()
    perform, refused = bed.perform, []

    def accept(command: Command) -> None:
        if command.f == "gang.start" and command.node == "n1":
            refused.append(command.key)
        else:
            perform(command)

    def require(command: Command) -> None:
        if command.key in refused:
            raise OSError("host h1 did not take the command: No space left on device")

    monkeypatch.setattr(bed, "perform", accept)
    monkeypatch.setattr(bed, "require_performer", require)
    world.loop(trial, world.plan(trial), bed, book).run()
    sent, reply = (
        next(event for event in book.events if event.key == refused[0] and event.type == type)
        for type in ("invoke", "info")
    )
    assert reply.t - sent.t < 2.0
    assert reply.value["reason"] == "no reply: host h1 did not take the command: No space left on device"


def test_a_keeper_that_is_gone_alone_does_not_explain_ranks_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, book = _run_until_the_job_ends(monkeypatch, with_bed=False)
    assert book.events[-1].value["reason"].startswith("rank 0 failed; the budget of 3 restarts is spent")
    assert judged(trial, book)["finished"].text.startswith("rank 0 (n0) left with exit code 1")


def _run_with_a_failure_and_a_loss(
    monkeypatch: pytest.MonkeyPatch, lost_after_s: float, *policy: str
) -> tuple[Trial, world.Memory]:
    """Rank 1 fails, and n2 exits so much later, while the gang is being stopped."""
    trial, bed = world.trial(policy=policy), world.bed(steps=300)
    join = bed.ranks.join

    def joined(gang: FakeGang) -> None:
        join(gang)
        bed.at(0.1, lambda: bed.ranks.fail(gang, 1, "n1"))
        bed.at(0.1 + lost_after_s, lambda: bed.kill("n2"))

    monkeypatch.setattr(bed.ranks, "join", joined)
    world.delay(bed, "gang.stop", {"n2": 30.0})
    _, book = world.run(trial, bed)
    return trial, book


@pytest.mark.parametrize(("lost_after_s", "is_cause"), [(0.5, True), (2.5, False)], ids=["soon", "in the stop"])
def test_the_end_of_the_run_and_its_check_name_the_same_root_cause(
    lost_after_s: float, is_cause: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, book = _run_with_a_failure_and_a_loss(monkeypatch, lost_after_s, "none")
    end, finished = book.events[-1].value, judged(trial, book)["finished"].text
    if is_cause:
        assert (end["reason"], end["kind"]) == ("lost n2; the recovery policy is none", "infrastructure")
        assert finished == f"the run failed: {end['reason']} (infrastructure)"
    else:
        assert end["reason"] == "rank 1 failed; then n2 was lost; the recovery policy is none"
        assert end["kind"] == "finding" and finished.startswith("rank 1 (n1) left with exit code 1")


def test_a_later_loss_that_prevents_the_recovery_is_a_failure_of_the_infrastructure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, book = _run_with_a_failure_and_a_loss(monkeypatch, 2.5, "shrink")
    end = book.events[-1].value
    assert end["reason"].startswith("rank 1 failed; then n2 was lost; ")
    assert end["kind"] == "infrastructure"
