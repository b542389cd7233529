"""Checkers pass what is right, and each has a negative control that it must not pass."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from orchestrator.core import judge
from orchestrator.model.event import Clock, Event
from orchestrator.model.run import Run
from orchestrator.model.trial import CheckSpec, Recovery
from orchestrator.model.verdict import Verdict
from orchestrator.views import order

from . import history
from .catalogue import CATALOGUE

NAMES = tuple(CATALOGUE.checkers)


def ask(run: Run, name: str, **params: Any) -> Verdict:
    (verdict,) = judge.judge(run, CATALOGUE, [CheckSpec(name=name, params=params)])
    return verdict


def outcomes(run: Run) -> dict[str, str]:
    return {v.check: v.outcome for v in judge.judge(run, CATALOGUE, [CheckSpec(name=name) for name in NAMES])}


def not_passed(run: Run) -> set[str]:
    return {name for name, outcome in outcomes(run).items() if outcome != "pass"}


@pytest.mark.parametrize(
    "run",
    [history.reference(), history.reference("restart"), history.twice(), history.paused()],
    ids=["spare", "restart", "twice", "paused"],
)
def test_a_run_that_recovered_as_it_should_passes_everything(run: Run) -> None:
    assert not_passed(run) == set()


def test_a_clean_run_passes_everything_that_needs_no_fault() -> None:
    run = dataclasses.replace(history.clean(), twin=history.twin())
    assert not_passed(run) == {"detected-within", "recovered-within"}
    assert "no failover" in ask(run, "bit-exact").text


# --- finished ---------------------------------------------------------------------------------------------------------


def test_a_script_that_left_with_a_code_fails_and_the_rank_and_code_are_named() -> None:
    run = history.clean()
    run = dataclasses.replace(run, trial=history.trial(workload="script"))
    run = history.changed(run, "rank.exit", 2, value={"code": 3})
    first_stop = next(e.seq for e in run.history.events if e.f == "gang.stop")
    assert first_stop > next(e.seq for e in run.history.events if e.value.get("code") == 3)
    for ended in (run, history.changed(run, "run.end", value={"outcome": "failed", "reason": "rank 2 failed"})):
        verdict = ask(ended, "finished")
        assert (verdict.outcome, verdict.text) == ("fail", "rank 2 (n2) left with exit code 3")


def test_a_script_needs_no_word_of_its_own_to_have_finished() -> None:
    run = dataclasses.replace(history.without(history.clean(), "rank.finished"), trial=history.trial(workload="script"))
    assert ask(run, "finished").outcome == "pass"


def test_a_workload_of_ours_that_left_early_has_not_finished() -> None:
    run = history.changed(history.reference(), "rank.finished", value={"steps": 55})
    assert ask(run, "finished").outcome == "fail"


def test_a_failed_run_gives_its_reason() -> None:
    run = history.changed(history.clean(), "run.end", value={"outcome": "failed", "reason": "not finished after 600 s"})
    assert ask(run, "finished").text == "the run failed: not finished after 600 s"


# --- fault-verified -----------------------------------------------------------------------------------------------------


def test_a_disarmed_fault_is_unknown_and_never_a_pass() -> None:
    bed = history.Bed(trial=history.trial(history.crash_at(30)))
    bed.begin()
    bed.start()
    bed.train(29)
    node = bed.act(bed.trial.faults[0])
    bed.say("keeper", "fault.act", {"reason": "not verified"}, type="fail", key="f/f0/act", node=node, epoch=0)
    bed.train(60)
    bed.finish()
    run = bed.run(history.twin())
    verdict = ask(run, "fault-verified")
    assert verdict.outcome == "unknown"
    assert "fault not proved" in verdict.text
    assert outcomes(run)["bit-exact"] == "unknown"


@pytest.mark.parametrize(
    "name", ["fault.planned", "rank.held", "fault.target", "lease.armed", "fault.injected", "fault.verified"]
)
def test_a_proof_with_a_missing_link_is_unknown(name: str) -> None:
    verdict = ask(history.without(history.reference(), name), "fault-verified")
    assert verdict.outcome == "unknown"
    assert "fault not proved" in verdict.text


def test_a_fault_that_was_planned_and_left_no_trace_at_all_is_unknown() -> None:
    run = dataclasses.replace(history.clean(), trial=history.trial(history.crash_at(30)))
    assert ask(run, "fault-verified").outcome == "unknown"


def test_a_fault_that_was_not_reached_is_unknown() -> None:
    run = history.clean()
    run = dataclasses.replace(run, trial=history.trial(history.crash_at(30)))
    note = dataclasses.replace(
        run.history.events[-2], type="note", f="fault.unreached", value={"id": "f0", "reason": "ended"}
    )
    run = history.with_events(run, [*run.history.events[:-1], note, run.history.events[-1]])
    assert "not reached" in ask(run, "fault-verified").text


def test_a_kill_inside_a_collective_needs_another_rank_inside_of_it() -> None:
    verdict = ask(history.without(history.reference(), "rank.inside"), "fault-verified")
    assert verdict.outcome == "unknown"
    assert "mid-collective not shown" in verdict.text


def test_a_rank_that_came_inside_after_the_kill_shows_nothing() -> None:
    run = history.reference()
    after = next(e for e in run.history.events if e.f == "fault.injected").at.mono + 0.001
    for nth in range(3):
        run = history.changed(run, "rank.inside", nth, at=Clock(boot=history.BOOT, mono=after, wall=after))
    assert "mid-collective not shown" in ask(run, "fault-verified").text


def test_an_expired_hold_is_unknown() -> None:
    run = history.reference()
    held = next(e for e in run.history.events if e.f == "rank.held")
    expired = dataclasses.replace(held, f="hold.expired", value={"rank": 2, "hold": "f0", "held_s": 10.0})
    events = list(run.history.events)
    at = next(i for i, e in enumerate(events) if e.f == "lease.armed")
    assert ask(history.with_events(run, [*events[:at], expired, *events[at:]]), "fault-verified").outcome == "unknown"


def test_an_injection_that_nobody_asked_for_fails() -> None:
    run = history.reference()
    events = [e for e in run.history.events if not (e.f == "fault.act" and e.type == "invoke")]
    assert ask(history.with_events(run, events), "fault-verified").outcome == "fail"


def test_a_fault_on_another_node_than_the_target_fails() -> None:
    assert ask(history.changed(history.reference(), "fault.injected", node="n1"), "fault-verified").outcome == "fail"
    run = history.changed(history.reference(), "fault.target", node="n1", value={"node": "n1"})
    assert ask(run, "fault-verified").outcome == "fail"


def test_a_fault_that_acted_twice_fails() -> None:
    run = history.reference()
    (act,) = [e for e in run.history.events if e.f == "fault.injected"]
    assert (
        ask(history.with_events(run, [*run.history.events[:-1], act, run.history.events[-1]]), "fault-verified").outcome
        == "fail"
    )


def test_a_bed_that_was_not_seen_to_be_healed_fails() -> None:
    assert ask(history.without(history.reference(), "heal.verified"), "fault-verified").outcome == "fail"


# --- planned-faults-only, membership, no-orphans ----------------------------------------------------------------------------


def test_a_node_killed_by_hand_is_a_finding() -> None:
    run = history.reference()
    keep = [e for e in run.history.events if not e.f.startswith(("fault.", "lease.", "heal."))]
    bare = dataclasses.replace(history.with_events(run, keep), trial=history.trial())
    verdict = ask(bare, "planned-faults-only")
    assert (verdict.outcome, verdict.text) == ("fail", "n2 exited, which nothing planned")


def test_another_node_than_the_planned_one_is_a_finding() -> None:
    assert ask(history.changed(history.reference(), "node.exit", node="n3"), "planned-faults-only").outcome == "fail"


def test_a_planned_loss_does_not_excuse_a_second_one_after_the_node_was_back() -> None:
    run = history.reference("restart")
    events = list(run.history.events)
    exit_ = next(e for e in events if e.f == "node.exit")
    at = next(i for i, e in enumerate(events) if e.f == "rank.finished")
    late = dataclasses.replace(exit_, source=dataclasses.replace(exit_.source, n=99), epoch=1)
    assert ask(history.with_events(run, [*events[:at], late, *events[at:]]), "planned-faults-only").outcome == "fail"


def test_a_recovery_without_a_detection_is_a_finding() -> None:
    run = history.reference()
    events = [e for e in run.history.events if e.f != "node.exit" and not (e.f == "rank.exit" and e.epoch == 0)]
    assert ask(history.with_events(run, events), "planned-faults-only").outcome == "fail"


def test_a_rank_that_is_given_out_twice_fails() -> None:
    run = history.changed(history.reference(), "gang.start", 1, value={"ranks": [0], "group_rank": 0})
    assert ask(run, "membership").outcome == "fail"


def test_an_old_epoch_that_commits_after_a_new_one_began_fails() -> None:
    run = history.reference()
    late = next(e for e in reversed(run.history.events) if e.f == "checkpoint.commit" and e.epoch == 0)
    begun = next(e for e in run.history.events if e.f == "gang.start" and e.epoch == 1)
    after = dataclasses.replace(late, at=dataclasses.replace(late.at, mono=begun.at.mono + 1.0))
    events = [after if e is late else e for e in run.history.events]
    assert ask(history.with_events(run, events), "membership").outcome == "fail"


def test_a_line_of_an_old_epoch_that_only_arrived_late_is_no_act_of_it() -> None:
    run = history.reference()
    events = list(run.history.events)
    late = next(e for e in reversed(events) if e.f == "rank.inside")
    events.remove(late)
    at = next(i for i, e in enumerate(events) if e.f == "rank.start" and e.epoch == 1)
    assert ask(history.with_events(run, [*events[:at], late, *events[at:]]), "membership").outcome == "pass"


def test_on_another_host_an_old_epoch_is_judged_by_arrival() -> None:
    run = history.reference()
    events = list(run.history.events)
    late = next(e for e in reversed(events) if e.f == "checkpoint.commit" and e.epoch == 0)
    events.remove(late)
    late = dataclasses.replace(late, at=Clock(boot="boot-b", mono=1.0, wall=1.0))
    at = next(i for i, e in enumerate(events) if e.f == "rank.start" and e.epoch == 1)
    assert ask(history.with_events(run, [*events[:at], late, *events[at:]]), "membership").outcome == "fail"


def test_a_node_that_nothing_happened_to_is_not_started_again() -> None:
    run = history.changed(history.reference("restart"), "node.apply", 0, node="n1")
    assert ask(run, "membership").outcome == "fail"


def test_more_recoveries_than_were_allowed_fail() -> None:
    run = history.twice()
    trial = dataclasses.replace(run.trial, recovery=Recovery(max_restarts=1))
    assert ask(dataclasses.replace(run, trial=trial), "membership").outcome == "fail"


def test_a_stranger_among_the_incarnations_fails() -> None:
    run = history.reference()
    event = next(e for e in run.history.events if e.f == "rank.joined")
    source = dataclasses.replace(event.source, incarnation="beef")
    assert ask(history.changed(run, "rank.joined", source=source), "membership").outcome == "fail"


def test_a_repeated_answer_is_excused_by_a_resume_only() -> None:
    run = history.reference()
    events = list(run.history.events)
    at = next(i for i, e in enumerate(events) if e.f == "gang.start" and e.type == "ok")
    writer = dataclasses.replace(events[at].source, n=50)
    again = dataclasses.replace(events[at], source=writer)
    keep = [e for e in events if e.source.node != "n0" or e.source.writer != "agent" or e.seq <= at + 1]
    del keep  # numbering is another matter: only the count of answers is looked at here
    doubled = history.with_events(run, [*events[: at + 1], again, *events[at + 1 :]])
    texts = [one["text"] for one in ask(doubled, "membership").evidence["findings"]]
    assert any("2 times in the history" in text for text in texts)
    resumed = dataclasses.replace(events[0], f="run.resumed", value={"pid": 2, "torn_bytes": 0})
    excused = history.with_events(run, [*events[: at + 1], resumed, again, *events[at + 1 :]])
    texts = [one["text"] for one in ask(excused, "membership").evidence["findings"]]
    assert not any("2 times in the history" in text for text in texts)


def test_a_process_that_was_left_behind_fails() -> None:
    run = history.reference()
    last = max(i for i, e in enumerate(e for e in run.history.events if e.f == "gang.stop"))
    assert ask(history.changed(run, "gang.stop", last, value={"left": 1}), "no-orphans").outcome == "fail"


def test_a_node_that_nobody_counted_is_unknown() -> None:
    run = history.reference()
    stops = [i for i, e in enumerate(e for e in run.history.events if e.f == "gang.stop") if e.epoch == 1]
    assert ask(history.without(run, "gang.stop", stops[-1]), "no-orphans").outcome == "unknown"


# --- bundle-complete ----------------------------------------------------------------------------------------------------


def altered(run: Run, change: Callable[[dict[str, str]], None]) -> Run:
    texts = {path: run.files.log(*place) if place else "" for path, place in _places(run)}
    change(texts)
    return dataclasses.replace(run, files=history.Files(records=list(run.files.steps()), texts=texts))


def _places(run: Run) -> Iterable[tuple[str, tuple[str, int, int] | None]]:
    for path in run.files.paths():
        _, node, directory, name = path.split("/")
        log = name.startswith("rank-")
        yield path, (node, int(name[5:-4]), int(directory.split("-e")[1])) if log else None


def test_two_nodes_logs_swapped_fail() -> None:
    def swap(texts: dict[str, str]) -> None:
        one, two = "nodes/n0/i1-e0/rank-0.log", "nodes/n1/i1-e0/rank-1.log"
        texts[one], texts[two] = texts[two], texts[one]

    verdict = ask(altered(history.reference(), swap), "bundle-complete")
    assert verdict.outcome == "fail"
    assert "is the log of rank" in verdict.text


def test_two_nodes_directories_swapped_fail() -> None:
    def swap(texts: dict[str, str]) -> None:
        old = dict(texts)
        texts.clear()
        names = {"n0": "n1", "n1": "n0"}
        texts.update({_renamed(path, names): text for path, text in old.items()})

    assert ask(altered(history.reference(), swap), "bundle-complete").outcome == "fail"


def _renamed(path: str, names: dict[str, str]) -> str:
    root, node, rest = path.split("/", 2)
    return f"{root}/{names.get(node, node)}/{rest}"


def test_step_records_of_two_ranks_swapped_between_epochs_fail() -> None:
    run = history.reference()
    records = [dataclasses.replace(r, epoch=1 - r.epoch) if r.rank == 1 else r for r in run.files.steps()]
    assert ask(history.with_records(run, records), "bundle-complete").outcome == "fail"


@pytest.mark.parametrize("name", ["rank-2.log", "steps-r2.jsonl", "chunks-r2.bin", "env-r2.json"])
def test_a_file_that_is_missing_without_a_word_fails_and_one_that_was_reported_is_lost_data(name: str) -> None:
    path = f"nodes/n2/i1-e0/{name}"
    run = altered(history.reference(), lambda texts: texts.__delitem__(path))
    assert ask(run, "bundle-complete").outcome == "fail"
    missing = [{"node": "n2", "path": f"i1-e0/{name}", "reason": "no space"}]
    reported = history.changed(run, "gather", 1, value={"missing": missing})
    assert ask(reported, "bundle-complete").outcome == "unknown"


def test_a_log_that_does_not_say_whose_it_is_is_unknown() -> None:
    run = altered(history.reference(), lambda texts: texts.update({"nodes/n0/i1-e0/rank-0.log": "hello\n"}))
    assert ask(run, "bundle-complete").outcome == "unknown"


# --- lineage and equality -------------------------------------------------------------------------------------------------


def test_resuming_one_checkpoint_early_fails() -> None:
    verdict = ask(history.reference(resume=20), "resumed-newest")
    assert verdict.outcome == "fail"
    assert verdict.text == "epoch 1 resumed from 20 although 25 was committed"


def test_an_earlier_checkpoint_is_right_when_the_newest_was_damaged() -> None:
    run = history.reference(resume=20)
    events = list(run.history.events)
    at = next(i for i, e in enumerate(events) if e.f == "resume.chosen" and e.epoch == 1)
    skipped = dataclasses.replace(events[at], f="checkpoint.skipped", value={"name": "e0-s25", "reason": "truncated"})
    run = history.with_events(run, [*events[:at], skipped, *events[at:]])
    assert ask(run, "resumed-newest").outcome == "pass"


def test_a_checkpoint_that_nobody_committed_is_not_to_be_resumed_from() -> None:
    run = history.changed(history.reference(), "resume.chosen", 1, value={"name": "e0-s26", "step": 26})
    assert ask(run, "resumed-newest").outcome == "fail"


def test_a_checkpoint_with_another_hash_is_not_the_one_that_was_committed() -> None:
    run = history.changed(history.reference(), "resume.chosen", 1, value={"sha256": "0" * 64})
    assert ask(run, "resumed-newest").outcome == "fail"
    assert ask(run, "same-resume-step").outcome == "fail"


@pytest.mark.parametrize("value", [{"step": 20}, {"sha256": "0" * 64}])
def test_one_rank_that_restored_something_else_fails(value: dict[str, object]) -> None:
    assert (
        ask(history.changed(history.reference(), "rank.restored", 6, value=value), "same-resume-step").outcome == "fail"
    )


def test_ranks_with_different_weights_fail() -> None:
    run = history.changed(history.reference(), "rank.restored", 6, value={"weights": "0" * 64})
    assert ask(run, "replicas-identical").outcome == "fail"


def test_ranks_with_different_weights_after_one_step_fail() -> None:
    run = history.reference()
    records = [
        dataclasses.replace(r, digest="0" * 64) if (r.rank, r.step, r.epoch) == (3, 40, 1) else r
        for r in run.files.steps()
    ]
    assert ask(history.with_records(run, records), "replicas-identical").outcome == "fail"


def test_ranks_that_finished_with_a_different_optimizer_or_a_missing_tensor_fail() -> None:
    run = history.reference()
    end = next(e for e in run.history.events if e.f == "rank.finished")
    other = {**end.value["digest"], "optimizer.0.exp_avg": "0" * 64}
    assert ask(history.changed(run, "rank.finished", value={"digest": other}), "replicas-identical").outcome == "fail"
    fewer = {k: v for k, v in end.value["digest"].items() if k != "model.0.bias"}
    assert ask(history.changed(run, "rank.finished", value={"digest": fewer}), "replicas-identical").outcome == "fail"


def test_a_step_that_is_missing_doubled_or_beyond_fails() -> None:
    run = history.reference()
    records = list(run.files.steps())
    gone = [r for r in records if (r.rank, r.step) != (1, 17)]
    one = next(r for r in records if (r.rank, r.step) == (1, 60))
    for changed in (gone, [*records, one], [*records, dataclasses.replace(one, step=61)], []):
        assert ask(history.with_records(run, changed), "no-step-lost").outcome != "pass"


def test_a_gap_between_two_epochs_fails() -> None:
    run = history.reference()
    records = [r for r in run.files.steps() if not (r.epoch == 1 and r.step == 26)]
    assert ask(history.with_records(run, records), "no-step-lost").outcome == "fail"


@pytest.mark.parametrize("change", [{"loss": (0.5).hex()}, {"digest": "0" * 64}])
def test_a_replayed_step_that_came_out_differently_fails(change: dict[str, str]) -> None:
    run = history.reference()
    where = (2, 27, 1)
    records = [dataclasses.replace(r, **change) if (r.rank, r.step, r.epoch) == where else r for r in run.files.steps()]  # type: ignore[arg-type]
    assert ask(history.with_records(run, records), "replay-equal").outcome == "fail"


def test_a_twin_of_another_seed_is_not_equal() -> None:
    run = dataclasses.replace(history.reference(), twin=history.twin(seed=8))
    assert ask(run, "bit-exact").outcome == "fail"


@pytest.mark.parametrize("name", ["optimizer.0.exp_avg", "rng.generator", "rng.torch", "model.0.weight"])
def test_state_that_was_not_restored_or_is_missing_is_not_equal(name: str) -> None:
    run = history.reference()
    end = next(e for e in run.history.events if e.f == "rank.finished")
    other = {**end.value["digest"], name: "0" * 64}
    fewer = {k: v for k, v in end.value["digest"].items() if k != name}
    more = {**end.value["digest"], "model.9.weight": "0" * 64}
    for digest in (other, fewer, more, {}):
        assert ask(history.changed(run, "rank.finished", value={"digest": digest}), "bit-exact").outcome == "fail"


def test_a_loss_that_differs_in_the_last_bit_is_not_equal() -> None:
    run = history.reference()
    records = list(run.files.steps())
    last = records[-1]
    records[-1] = dataclasses.replace(last, loss=(float.fromhex(last.loss) * (1 + 2**-52)).hex())
    assert ask(history.with_records(run, records), "bit-exact").outcome == "fail"


def test_a_resume_from_the_start_shows_nothing_of_a_checkpoint() -> None:
    run = history.reference(resume=0)
    assert ask(run, "bit-exact").outcome == "unknown"


def test_a_twin_that_was_disturbed_is_no_measure() -> None:
    run = dataclasses.replace(history.reference(), twin=history.twin(faults=1, restarts=1))
    assert ask(run, "baseline-clean").outcome == "fail"
    assert ask(run, "bit-exact").outcome == "unknown"


def test_without_a_twin_nothing_is_said() -> None:
    run = dataclasses.replace(history.reference(), twin=None)
    assert {ask(run, name).outcome for name in ("bit-exact", "baseline-clean")} == {"unknown"}


# --- time -------------------------------------------------------------------------------------------------------------------


def test_a_detection_or_recovery_that_took_too_long_fails() -> None:
    run = history.reference()
    assert ask(run, "detected-within", seconds=0.0001).outcome == "fail"
    assert ask(run, "recovered-within", seconds=0.001).outcome == "fail"


def test_the_detector_is_named_and_can_be_demanded() -> None:
    run = history.reference()
    assert "node.exit 1.0 ms" in ask(run, "detected-within").text
    assert ask(run, "detected-within", detector="node.exit").outcome == "pass"
    assert ask(run, "detected-within", detector="node.silent").outcome == "fail"


def test_a_fault_that_nobody_noticed_was_not_detected() -> None:
    bed = history.Bed(trial=history.trial(history.crash_at(30)))
    bed.begin()
    bed.start()
    bed.train(29)
    node = bed.act(bed.trial.faults[0])
    bed.say("keeper", "fault.verified", {"id": "f0"}, node=node, epoch=0)
    bed.answer("keeper", "fault.act", "f/f0/act", node)
    bed.train(60)
    bed.finish()
    assert ask(bed.run(), "detected-within").outcome == "fail"


def test_a_recovery_that_was_refused_or_never_came_fails() -> None:
    bed = history.bed_at_fault()
    bed.ctl("run.end", {"outcome": "failed", "reason": "x", "kind": "finding"})
    events = [e for e in bed.events if not (e.f == "rank.step" and e.epoch == 1)]
    assert ask(history.with_events(bed.run(), events), "recovered-within").outcome == "fail"
    keep = [e for e in bed.events if e.epoch != 1]
    keep.insert(-1, dataclasses.replace(bed.events[-1], f="recovery.refused", value={"reason": "the policy is none"}))
    assert ask(history.with_events(bed.run(), keep), "recovered-within").outcome == "fail"


def test_an_answer_after_its_deadline_an_open_command_and_an_unrecovered_stall_are_hangs() -> None:
    run = history.clean()
    late = history.changed(run, "store.open", 0, value={"deadline_s": -2.0})
    assert ask(late, "no-hang").outcome == "fail"
    answer = next(i for i, e in enumerate(e for e in run.history.events if e.f == "gang.start") if e.type == "ok")
    assert ask(history.without(run, "gang.start", answer), "no-hang").outcome == "fail"
    none = history.changed(run, "gang.start", answer, type="info", value={"reason": "no answer within 10 s"})
    assert ask(none, "no-hang").outcome == "fail"
    stall = dataclasses.replace(run.history.events[-2], type="note", f="gang.stalled", value={"since_s": 12.0})
    assert (
        ask(history.with_events(run, [*run.history.events[:-1], stall, run.history.events[-1]]), "no-hang").outcome
        == "fail"
    )


def test_silence_of_a_node_that_was_lost_is_no_hang() -> None:
    bed = history.bed_at_fault()
    bed.ask("gang.stop", "e0/stop/n2", "n2", epoch=0)
    bed.ctl("gang.stop", {"reason": "the node exited"}, type="info", key="e0/stop/n2", node="n2", epoch=0)
    bed.train(60)
    bed.finish(heal=["n2"])
    assert ask(bed.run(), "no-hang").outcome == "pass"


def test_a_spare_that_was_started_anew_or_had_to_import_torch_was_not_warm() -> None:
    run = history.reference()
    start = next(i for i, e in enumerate(e for e in run.history.events if e.f == "rank.start") if e.node == "n4")
    assert ask(history.changed(run, "rank.start", start, value={"ppid": 1}), "spare-warm").outcome == "fail"
    cold = {"preloaded": ["torch", "torch.distributed"]}
    assert ask(history.changed(run, "rank.start", start, value=cold), "spare-warm").outcome == "fail"
    event = [e for e in run.history.events if e.f == "rank.start"][start]
    source = dataclasses.replace(event.source, incarnation="other")
    assert ask(history.changed(run, "rank.start", start, source=source), "spare-warm").outcome == "fail"
    assert ask(history.changed(run, "rank.start", start, value={"ppid": None}), "spare-warm").outcome == "unknown"


# --- a history that was tampered with -----------------------------------------------------------------------------------------

Renumber = Callable[[Run, list[Event]], Run]


def in_the_journal(run: Run, events: list[Event]) -> Run:
    """Somebody edited the file."""
    return history.with_events(run, events, number=False)


def before_the_journal(run: Run, events: list[Event]) -> Run:
    """A line of a node got lost, or came twice, or late: the journal numbers what it gets."""
    return history.with_events(run, events)


def by_the_engine(run: Run, events: list[Event]) -> Run:
    """The orchestrator did not do its work: its own numbers have no hole either."""
    numbers = itertools.count(1)
    own = [
        dataclasses.replace(e, source=dataclasses.replace(e.source, n=next(numbers))) if e.source.writer == "ctl" else e
        for e in events
    ]
    return history.with_events(run, own)


#: The last words of a writer that was killed or replaced may be lost without a trace; they prove nothing that is missed:
#: two other ranks were inside, and a node that answers was ready. A node may be suspected as often as one likes.
HARMLESS = {
    ("dropped", "rank.inside"), ("dropped", "agent.ready"),
    ("dropped", "node.suspect"), ("doubled", "node.suspect"), ("doubled", "node.silent"),
}  # fmt: skip


@pytest.mark.parametrize("renumber", [in_the_journal, before_the_journal, by_the_engine])
@pytest.mark.parametrize(
    "run", [history.reference(), history.twice(), history.paused()], ids=["once", "twice", "paused"]
)
def test_an_event_dropped_doubled_or_reordered_is_caught_wherever_it_stands(run: Run, renumber: Renumber) -> None:
    assert not caught(renumber(run, list(run.history.events)))
    missed = {(how, e.f) for how, e, events in _apt(run, renumber) if not caught(renumber(run, events))}
    assert missed <= (set() if renumber is in_the_journal else HARMLESS)


def _apt(run: Run, renumber: Renumber) -> Iterator[tuple[str, Event, list[Event]]]:
    """The engine speaks for itself only, and may take two decisions of one moment in either order."""
    for how, event, events in mutants(run.history.events):
        if renumber is not by_the_engine or (event.source.writer == "ctl" and how != "swapped"):
            yield how, event, events


def mutants(events: Sequence[Event]) -> Iterator[tuple[str, Event, list[Event]]]:
    """Every event dropped, doubled, and swapped with the next one of its writer."""
    for index, event in enumerate(events):
        yield "dropped", event, [*events[:index], *events[index + 1 :]]
        yield "doubled", event, [*events[: index + 1], *events[index:]]
        same = (i for i in range(index + 1, len(events)) if order.writer(events[i]) == order.writer(event))
        other = next(same, None)
        if other is not None:
            swapped = list(events)
            swapped[index], swapped[other] = swapped[other], swapped[index]
            yield "swapped", event, swapped


def caught(mutant: Run) -> bool:
    """Whether some verdict is not a pass; the checkers that see most are asked first."""
    first = ("membership", "no-hang", "finished", "no-orphans", "fault-verified", *NAMES)
    return any(ask(mutant, name).outcome != "pass" for name in first)
