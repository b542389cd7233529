"""Every checker passes what is right; whether the run finished, and in time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator import views
from orchestrator.cli.render.run_lines import RunLines
from orchestrator.model.run import Run
from orchestrator.reports import summary

from . import history, synthetic
from .verdicts import ask, not_passed


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


def test_a_rank_that_ended_because_of_another_one_blames_it() -> None:
    """As in a measurement: every rank raises, the first to leave is not the one with the wrong result."""
    bed = history.Bed(trial=history.trial())
    bed.begin()
    bed.start()
    for rank in (3, 2):
        bed.rank(rank, "rank.error", kind="wrong result", message="rank 2, element 5: expected 34, got 35", culprit=2)
    bed.rank(3, "rank.exit", code=1, pid=7)
    bed.ctl("run.end", {"outcome": "failed", "reason": "rank 2, element 5: expected 34, got 35; no", "kind": "finding"})
    run = bed.run()
    assert ask(run, "finished").text.startswith("wrong result of n2: rank 2, element 5: expected 34, got 35")
    assert ask(run, "planned-faults-only").text.startswith("wrong result of rank 2 on n2 was not planned")
    failed = views.failed_rank(run, 1)
    assert failed is not None and (failed.rank, failed.node) == (2, "n2"), "its log is shown"
    story = RunLines(trial=run.trial, slots=("n0", "n1", "n2", "n3"))
    messages = [line for event in run.history.events for line in story.feed(event) if line.label == "error"]
    assert [line.text for line in messages] == ["n2: wrong result: rank 2, element 5: expected 34, got 35"]


def test_a_rank_that_was_stopped_before_it_reported_its_error_is_blamed_for_that_error() -> None:
    bed = history.Bed(trial=history.trial())
    bed.begin()
    bed.start()
    bed.rank(3, "rank.error", kind="wrong result", message="rank 2, element 5: expected 34, got 35", culprit=2)
    bed.rank(3, "rank.exit", code=1, pid=7)
    bed.ask("gang.stop", "e0/stop/n2", "n2", {"epoch": 0, "dump": False})
    bed.rank(2, "rank.exit", code=-9, pid=8)
    bed.ctl("gang.stop", {"killed": [8], "left": 0}, type="ok", key="e0/stop/n2", node="n2", epoch=0)
    bed.ctl("run.end", {"outcome": "failed", "reason": "rank 2, element 5: expected 34, got 35; no", "kind": "finding"})
    run = bed.run()
    assert ask(run, "finished").text == "wrong result of n2: rank 2, element 5: expected 34, got 35"
    assert ask(run, "planned-faults-only").text.startswith("wrong result of rank 2 on n2 was not planned")
    files = synthetic.Files(texts={"nodes/n3/i1-e0/rank-3.log": "rank 2, element 5"})
    failed = views.failed_rank(dataclasses.replace(run, files=files), 1)
    assert failed and (failed.rank, failed.tail) == (3, ("rank 2, element 5",)), (
        "it wrote no line: the log that names it"
    )


def _failed_with(log: str, message: str = "no luck") -> Run:
    """Rank 3 on n3 raised, and has this log."""
    bed = history.Bed(trial=history.trial())
    bed.begin()
    bed.start()
    bed.rank(3, "rank.error", kind="RuntimeError", message=message)
    bed.rank(3, "rank.exit", code=1, pid=7)
    bed.ctl("run.end", {"outcome": "failed", "reason": "rank 3 failed", "kind": "finding"})
    return dataclasses.replace(bed.run(), files=synthetic.Files(texts={"nodes/n3/i1-e0/rank-3.log": log}))


def test_the_log_of_a_failed_rank_is_shown_as_a_terminal_leaves_it() -> None:
    bar = "\r".join(f" {part}% done" for part in range(100))
    log = f"ccbed: run 1\n\x1b[1;31mred\x1b[0m\tand \u202eplain\x07\n{bar}\r\n{'x' * 10**6}\n"
    failed = views.failed_rank(_failed_with(log), 40)
    assert failed is not None
    red, done, long = failed.tail
    assert (red, done) == ("red\tand \ufffdplain\ufffd", " 99% done")
    assert long == f"{'x' * 1000} … 998,000 characters … {'x' * 1000}"
    empty = views.failed_rank(_failed_with("ccbed: run 1\n"), 40)
    assert empty is not None and empty.tail == ()
    text = summary.render(_failed_with("ccbed: run 1\n"))["summary.md"].decode()
    assert "\nIt wrote nothing into `nodes/n3/i1-e0/rank-3.log`.\n" in text


def test_a_traceback_has_all_lines_of_its_error() -> None:
    lines = [
        "[rank3]: Traceback (most recent call last):", '[rank3]:   File "train.py", line 4, in <module>',
        "[rank3]: RuntimeError: Error(s) in loading state_dict for Net:", '[rank3]: \tMissing key(s) in state_dict: "head".',
        "[rank3]: \tUnexpected key(s): none.", "the next step",
    ]  # fmt: skip
    failed = views.failed_rank(_failed_with("\n".join(lines)), 2)
    assert failed is not None
    assert [f"[rank3]: {line}" for line in failed.traceback] == lines[:-1]
    whole = views.failed_rank(_failed_with("\n".join(lines[:-1])), 40)
    assert whole is not None
    assert (list(whole.tail), whole.traceback) == (lines[:-1], ()), "the last lines show it already"


def test_a_long_error_is_cut_in_a_finding() -> None:
    finding = ask(_failed_with("", "Error(s) in loading state_dict:\n\t" + "a.weight, " * 900), "finished").text
    assert finding.startswith(
        "rank 3 (n3) left with exit code 1: RuntimeError: Error(s) in loading state_dict: a.weight"
    )
    assert "\n" not in finding and len(finding) < 420 and " characters … " in finding


def test_a_lost_node_is_blamed_for_the_end_of_a_run_and_not_the_rank_that_lost_its_peer() -> None:
    def ended(lost: list[str], exited_before: bool = False) -> str:
        bed = history.Bed(trial=history.trial())
        bed.begin()
        if exited_before:
            bed.say("keeper", "node.exit", {"code": -9, "pid": 5}, node="n2")
        bed.start()
        bed.rank(3, "rank.error", kind="RuntimeError", message="Connection closed by peer [127.0.0.1]:5190")
        bed.rank(3, "rank.exit", code=1, pid=7)
        if not exited_before:
            bed.say("keeper", "node.exit", {"code": -9, "pid": 5}, node="n2")
        bed.ctl(
            "recovery.refused",
            {"reason": "no policy can replace n2", "lost": lost, "failed": [3]},
            key="e0/refused",
            epoch=0,
        )
        bed.ctl("run.end", {"outcome": "failed", "reason": "lost n2; no policy can replace n2", "kind": "finding"})
        return ask(bed.run(), "finished").text

    assert ended(["n2"]) == "the run failed: lost n2; no policy can replace n2"
    assert ended([]).startswith("rank 3 (n3) left with exit code 1")
    assert ended(["n2"], exited_before=True).startswith("rank 3 (n3) left"), "its exit was before this start"


@pytest.mark.parametrize(
    ("loss", "is_cause"),
    [
        ([("node.exit", 0.5, {"code": -9, "pid": 5})], True),
        ([("node.silent", 1.9, {"silent_s": 2.0, "seen": "unreachable"})], True),
        ([("node.exit", 3.0, {"code": -9, "pid": 5})], False),
        ([("node.silent", 5.0, {"silent_s": 2.0, "seen": "dead"})], False),
        ([("node.kill", 0.2, {}), ("node.exit", 0.1, {"code": -9, "pid": 5})], False),
    ],
    ids=["exit", "silence", "exit in the stop", "silence in the stop", "killed by ccbed"],
)
def test_a_node_that_is_lost_after_a_rank_failed_does_not_hide_the_rank(
    loss: list[tuple[str, float, dict[str, Any]]], is_cause: bool
) -> None:
    bed = history.Bed(trial=history.trial())
    bed.begin()
    bed.start()
    bed.rank(3, "rank.error", kind="ValueError", message="no luck")
    bed.rank(3, "rank.exit", code=1, pid=7)
    for name, after_s, value in loss:
        writer = "keeper" if name == "node.exit" else "ctl"
        command = {"type": "invoke", "key": "e0/kill/n2"} if name == "node.kill" else {}
        bed.say(writer, name, value, node="n2", dt=after_s, **command)  # type: ignore[arg-type]
    refused = {"reason": "the recovery policy is none", "lost": ["n2"], "failed": [3]}
    bed.ctl("recovery.refused", refused, key="e0/refused", epoch=0)
    reason = "lost n2; the recovery policy is none"
    bed.ctl("run.end", {"outcome": "failed", "reason": reason, "kind": "infrastructure"})
    rank = "rank 3 (n3) left with exit code 1: ValueError: no luck"
    assert ask(bed.run(), "finished").text == (f"the run failed: {reason} (infrastructure)" if is_cause else rank)


def test_weights_that_another_rank_holds_after_the_broadcast_are_found_and_those_of_whom_nothing_is_known() -> None:
    run = history.reference()
    assert ask(run, "weights-received").text == "4 replicas identical at 2 states"
    other = history.changed(run, "rank.restored", nth=-1, value={"weights": "0" * 64})
    assert ask(other, "weights-received").text == ("restart 1: rank 3 and rank 0 have different weights as it begins")
    none = history.changed(run, "rank.restored", nth=-1, value={"weights": None})
    assert ask(none, "weights-received").outcome == "unknown"


def test_replicas_of_which_no_step_was_compared_are_not_said_to_have_been() -> None:
    run = history.with_records(history.clean(), [])
    verdict = ask(run, "replicas-identical")
    assert "0 steps" not in verdict.text and "and at the end" in verdict.text


def test_a_detection_that_no_recovery_followed_has_its_figure() -> None:
    fault = history.crash_at(30)
    bed = history.Bed(trial=history.trial(fault))
    bed.begin()
    bed.start()
    bed.train(29)
    bed.crash(fault)
    bed.ctl("run.end", {"outcome": "failed", "reason": "lost n2; the recovery policy is none", "kind": "finding"})
    run = bed.run()
    exit_, injected = run.history.first("node.exit"), run.history.first("fault.injected")
    assert exit_ is not None and injected is not None
    figure = f"node.exit {(exit_.t - injected.t) * 1000:.1f} ms, limit 2 s"
    assert ask(run, "detected-within").text == figure
    assert ask(run, "detected-within", seconds=0.0001).outcome == "fail"


def test_a_finished_run_says_how_many_checkpoints_were_lost() -> None:
    run = history.reference()
    lost = dataclasses.replace(
        run.history.of("checkpoint.commit")[0],
        f="checkpoint.failed",
        value={"rank": 0, "name": "e0-s7", "reason": "EIO"},
    )
    verdict = ask(history.with_events(run, [*run.history.events[:-1], lost, run.history.events[-1]]), "finished")
    assert verdict.outcome == "pass" and verdict.text.endswith("60/60 steps, 1 checkpoint could not be written")
