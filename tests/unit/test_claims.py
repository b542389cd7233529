"""What a script says itself: its word fills what the watcher cannot see, never overrules a digest, and a lie fails."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from orchestrator.core.verdict import run_metrics
from orchestrator.model import watch
from orchestrator.model.event import Clock, History, Source, event
from orchestrator.model.events import FaultInjected
from orchestrator.model.run import Run
from orchestrator.views import training
from orchestrator.views.training.attempts import TICK_S

from .verdicts import ask
from .watched_jobs import Job, right


def with_lines(job: Job, attempt: int, *lines: watch.Line, rank: int | None = None) -> Job:
    """The job whose processes of an attempt say this as they begin."""
    for index, file in enumerate(job.files):
        if file.attempt == attempt and rank in (None, file.rank):
            begin, *rest = file.lines
            job.files[index] = dataclasses.replace(file, lines=(begin, *lines, *rest))
    return job


def resumed(step: int, **about: object) -> watch.Claim:
    return watch.Claim(t=0.0, id=1, what="resumed", step=step, **about)  # type: ignore[arg-type]


def saves(number: int, n: int, t: float, path: str = "") -> tuple[watch.Line, ...]:
    """The lines of ``ccbed_events.saved``."""
    digest = hashlib.sha256(path.encode()).hexdigest() if path else None
    return (
        watch.Save(t=t, id=900 + number, n=n, step=number, api="script", path=path),
        watch.Saved(t=t, id=900 + number),
        watch.Committed(t=t, id=900 + number, path=path, sha256=digest, how="script", t_committed=t),
    )


def talking(resumes: int | None = 15, begins: int = 15, saved: tuple[int, ...] = (5, 10, 15), every: int = 1) -> Job:
    """A job with an update loop of its own: nothing is known but what it says. Killed in step 18, it goes on with ``begins``."""
    job = Job()
    for number, first, last, says in ((0, 0, 18, None), (1, begins, 30, resumes)):
        for rank in range(2):
            t = 100.0 * (number + 1)
            lines: list[watch.Line] = [
                watch.Begin(t=t, format=1, rank=rank, pid=10 * number + rank, world=2, attempt=number, wall=t)
            ]
            if says is not None:
                lines.append(dataclasses.replace(resumed(says), t=t))
            for step in range(first + every, last + 1, every):
                t += 0.1
                lines.append(watch.Claim(t=t, id=step + 1, what="step", step=step, loss=(1 / step).hex()))
                if number == 0 and step in saved:
                    lines += saves(step, 0, t)
            if number:
                lines.append(watch.End(t=t, n=0, code=0))
            name = f"watch-r{rank}-{number}{rank}.jsonl"
            file = watch.WatchFile(
                path=name, node=f"n{rank}", attempt=number, rank=rank, pid=10 * number + rank, lines=tuple(lines)
            )
            job.files.append(file)
    return job


def test_a_true_word_changes_no_verdict() -> None:
    job = with_lines(right(), 1, resumed(15))
    assert (ask(job.run(), "resumed-from").outcome, ask(job.run(), "resumed-from").text) == (
        "pass",
        "step 15 on 2 ranks",
    )
    assert ask(job.run(), "resumed-newest").outcome == "pass"


@pytest.mark.parametrize(("number", "shown"), [(10, "step 15"), (30, "step 15")])
def test_a_script_that_lies_about_the_resumed_step_fails_with_both_values(number: int, shown: str) -> None:
    verdict = ask(with_lines(right(), 1, resumed(number), rank=1).run(), "resumed-from")
    assert verdict.outcome == "fail"
    assert f"the script says that rank 1 (n1) resumed from step {number}" in verdict.text and shown in verdict.text


def test_a_script_that_says_it_resumed_and_begins_from_scratch_fails() -> None:
    job = with_lines(Job(saves=False).attempt(0, 0, 18).attempt(1, 0, 30, loaded=0, ends=True), 1, resumed(15))
    verdict = ask(job.run(), "resumed-from")
    assert verdict.outcome == "fail" and "the weights of the initial state" in verdict.text


def test_a_number_that_the_script_gave_to_its_save_means_that_save() -> None:
    job = with_lines(right(), 0, *saves(14, 15, 100.0))  # the last index of a loop that counts from 0
    assert ask(with_lines(job, 1, resumed(14)).run(), "resumed-from").outcome == "pass"


def test_a_job_that_goes_on_from_an_earlier_run_counts_on() -> None:
    job = with_lines(with_lines(right(), 0, resumed(100)), 1, resumed(115))
    assert ask(job.run(), "resumed-from").outcome == "pass"
    assert ask(with_lines(right(), 0, resumed(100)).run(), "resumed-from").outcome == "pass"


def test_the_file_that_the_script_names_must_be_that_of_the_step_that_it_says() -> None:
    job = right()
    true = resumed(15, path="/ckpt/15.pt", sha256=job._sum(15))
    assert ask(with_lines(right(), 1, true).run(), "resumed-from").outcome == "pass"
    verdict = ask(with_lines(right(), 1, resumed(15, path="/ckpt/10.pt", sha256=job._sum(10))).run(), "resumed-from")
    assert verdict.outcome == "fail" and "/ckpt/10.pt is the checkpoint of step 10 (SHA-256)" in verdict.text


def test_an_own_update_loop_that_names_another_file_is_not_believed() -> None:
    job = talking(resumes=15)
    job.files = [
        dataclasses.replace(
            file,
            lines=tuple(
                dataclasses.replace(x, path="/out/10", sha256=hashlib.sha256(b"/out/10").hexdigest())
                if isinstance(x, watch.Claim) and x.what == "resumed"
                else x
                for x in file.lines
            ),
        )
        for file in job.files
    ]
    run = with_lines(job, 0, *saves(10, 0, 100.0, "/out/10")).run()
    verdict = ask(run, "resumed-from")
    assert verdict.outcome == "fail" and "/out/10 is the checkpoint of step 10 (SHA-256)" in verdict.text
    assert {ask(run, name).outcome for name in ("resumed-newest", "no-step-lost")} == {"unknown"}


def test_a_word_does_not_replace_a_digest_of_no_recorded_step() -> None:
    job = with_lines(
        Job().attempt(0, 0, 18).attempt(1, 15, 30, forgets=("weights",), loaded=0, ends=True), 1, resumed(15)
    )
    job.files = [
        dataclasses.replace(
            file,
            lines=tuple(
                dataclasses.replace(x, weights="ff" * 8, counter=3.0)
                if file.attempt and isinstance(x, watch.State) and x.n == 0
                else x
                for x in file.lines
            ),
        )
        for file in job.files
    ]
    verdict = ask(job.run(), "resumed-from")
    assert verdict.outcome == "unknown" and "the script says step 15" in verdict.text


def test_an_own_update_loop_is_known_by_the_scripts_own_word() -> None:
    run = talking().run()
    word = ", by the script's own word"
    assert ask(run, "resumed-from").text == f"step 15 on 2 ranks{word}"
    assert ask(run, "resumed-newest").text == f"resumed 15{word}, the newest"
    assert ask(run, "no-step-lost").text == f"steps 1 to 30 once on 2 ranks, 3 redone{word}"
    assert [ask(run, name).outcome for name in ("resumed-from", "resumed-newest", "no-step-lost")] == ["pass"] * 3
    assert ask(run, "resume-complete").outcome == "unknown"
    assert {step.step for step in training.steps(run)} == set(range(1, 31))


def test_an_own_update_loop_that_resumes_one_checkpoint_early_is_not_the_newest() -> None:
    verdict = ask(talking(resumes=10, begins=10).run(), "resumed-newest")
    assert (
        verdict.outcome == "fail" and "resumed from step 10, and the script says that it saved step 15" in verdict.text
    )


def test_an_own_update_loop_that_begins_anew_fails_where_it_had_saved() -> None:
    run = talking(resumes=None, begins=0).run()
    assert ask(run, "resumed-from").outcome == "fail"
    assert ask(talking(resumes=None, begins=0, saved=()).run(), "resumed-from").outcome == "unknown"


def test_a_script_that_does_not_say_what_it_resumed_is_unknown() -> None:
    verdict = ask(talking(resumes=None).run(), "resumed-from")
    assert verdict.outcome == "unknown" and "reports steps from 16 on, and not what it resumed" in verdict.text


def test_a_script_that_resumes_and_counts_its_steps_from_one_contradicts_itself() -> None:
    job = talking(begins=0)
    assert {ask(job.run(), name).outcome for name in ("resumed-from", "no-step-lost")} == {"unknown"}
    assert "resumed from step 15, and then reports step 1" in ask(job.run(), "resumed-from").text


def test_a_rank_that_reports_saves_and_no_step_has_lost_none() -> None:
    job = talking()
    for index, file in enumerate(job.files):
        if file.rank:
            lines = tuple(x for x in file.lines if not (isinstance(x, watch.Claim) and x.what == "step"))
            claim = watch.Claim(t=file.lines[0].t, id=0, what="saved", step=0)
            job.files[index] = dataclasses.replace(file, lines=(*lines[:1], claim, *lines[1:]))
    verdict = ask(job.run(), "no-step-lost")
    assert verdict.outcome == "unknown" and "reports no step of rank 1" in verdict.text


def test_steps_that_a_script_does_not_report_are_not_lost() -> None:
    verdict = ask(talking(every=3, saved=(15,)).run(), "no-step-lost")
    assert verdict.outcome == "unknown" and "the script reports" in verdict.text


def test_saves_that_only_the_script_knows_make_the_newest_known() -> None:
    """The framework's own checkpoints: the watcher sees steps and weights, but no save."""
    job = Job(saves=False).attempt(0, 0, 18).attempt(1, 15, 30, loaded=0, ends=True)
    assert ask(job.run(), "resumed-newest").outcome == "unknown"
    assert ask(with_lines(job, 0, *saves(15, 15, 100.0)).run(), "resumed-newest").outcome == "pass"
    late = Job(saves=False).attempt(0, 0, 18).attempt(1, 10, 30, loaded=0, ends=True)
    verdict = ask(with_lines(late, 0, *saves(10, 10, 100.0), *saves(15, 15, 100.0)).run(), "resumed-newest")
    assert verdict.outcome == "fail" and "the script says that it saved step 15" in verdict.text


def test_an_upload_that_is_reported_late_is_no_newer_checkpoint() -> None:
    job = with_lines(
        Job(saves=False).attempt(0, 0, 18).attempt(1, 15, 30, loaded=0, ends=True), 0, *saves(15, 17, 100.0)
    )
    assert ask(job.run(), "resumed-newest").outcome == "pass"


def test_epochs_are_no_steps() -> None:
    """Saves of epochs 2 and 3 after 10 and 15 steps: without its word on what it resumed, epoch 3 is not known to be older."""
    job = with_lines(
        Job(saves=False).attempt(0, 0, 18).attempt(1, 10, 30, loaded=0, ends=True), 0, *saves(3, 15, 100.0)
    )
    assert ask(job.run(), "resumed-newest").outcome == "unknown"
    job = with_lines(with_lines(job, 0, *saves(2, 10, 100.0)), 1, resumed(2))
    assert (ask(job.run(), "resumed-from").outcome, ask(job.run(), "resumed-newest").outcome) == ("pass", "fail")


def test_a_file_of_another_writer_counts_when_it_was_last_written() -> None:
    def with_file(begin: int, after: int) -> Job:
        job = Job(saves=False).attempt(0, 0, 18).attempt(1, begin, 30, loaded=0, ends=True)
        times = {step.n: step.end for step in job.files[0].lines if isinstance(step, watch.Step)}
        t = times[after] + 0.0002 - TICK_S
        return with_lines(
            job, 0, watch.Save(t=t + 1, id=7, n=18, api="file", path="/out/a.bin"), watch.Saved(t=t + 1, id=7),
            watch.Committed(t=t + 1, id=7, path="/out/a.bin", how="return", t_committed=t), rank=0,
        )  # fmt: skip

    assert ask(with_file(15, 15).run(), "resumed-newest").outcome == "pass"
    verdict = ask(with_file(10, 15).run(), "resumed-newest")
    assert verdict.outcome == "unknown" and "/out/a.bin was complete after step 15" in verdict.text


def test_figures_that_a_script_reports_are_metrics() -> None:
    def figure(what: str, value: float, number: int) -> watch.Claim:
        return watch.Claim(t=1.0, id=number, what=what, name=what, value=value.hex(), unit="tokens")

    job = with_lines(
        right(), 1, figure("point", 1.5, 1), figure("point", 2.5, 2), figure("point", float("nan"), 3), rank=0
    )
    with_lines(job, 1, figure("final", 3.0, 4), figure("final", 4.0, 5), rank=1)
    figures = [(m.metric, m.rank, m.value, m.rep, m.unit) for m in run_metrics.of(job.run()) if m.unit == "tokens"]
    assert figures == [("point", 0, 1.5, 0, "tokens"), ("point", 0, 2.5, 1, "tokens"), ("final", 1, 4.0, 0, "tokens")]


def torn(job: Job, path: str = "/ckpt/15.pt") -> Run:
    """The run of the job, in which a planned fault damaged this file."""
    injected = event(
        FaultInjected(id="f1", evidence={"path": path}, began=1e6), at=Clock(boot="b", mono=1e6, wall=1e6),
        source=Source(writer="ctl", n=1), epoch=0,
    )  # fmt: skip
    return dataclasses.replace(job.run(), history=History((injected,)))


def test_peer_memory_is_a_source_of_its_own() -> None:
    """No rank reads the damaged file, and all of them have the state of its step."""
    run = torn(Job().attempt(0, 0, 18).attempt(1, 15, 30, loaded=0, ends=True))
    assert [item.newest for item in training.lineage_of(run).resumptions] == [10]
    verdict = ask(run, "resumed-from")
    assert verdict.text == "step 15 from peer memory on 2 ranks" or "run has not ended" in verdict.text
    assert verdict.evidence["sources"] == {"attempt 1": {"rank 0 (n0)": "memory", "rank 1 (n1)": "memory"}}
    assert "damaged" not in ask(run, "resumed-newest").text


def test_a_damaged_file_that_a_rank_reads_is_no_peer_memory() -> None:
    read = ask(torn(Job().attempt(0, 0, 18).attempt(1, 15, 30, ends=True)), "resumed-newest")
    assert read.outcome == "fail" and "whose checkpoint was damaged" in read.text
    job = with_lines(
        Job().attempt(0, 0, 18).attempt(1, 15, 30, loaded=0, ends=True), 1,
        watch.NotObserved(t=0.0, what="loads", why="too many"),
    )  # fmt: skip
    blind = ask(torn(job), "resumed-newest")
    assert blind.outcome == "fail"


def test_a_rank_that_gets_its_weights_from_one_that_loaded_names_it() -> None:
    job = right()
    job.files = [
        dataclasses.replace(file, lines=tuple(x for x in file.lines if not (file.rank and isinstance(x, watch.Load))))
        for file in job.files
    ]
    verdict = ask(job.run(), "resumed-from")
    assert verdict.outcome == "pass"
    assert verdict.evidence["sources"] == {"attempt 1": {"rank 0 (n0)": "file", "rank 1 (n1)": "memory of rank 0 (n0)"}}


def test_ranks_of_a_script_resume_from_the_same_step() -> None:
    assert ask(right().run(), "same-resume-step").text == "step 15 on 2 ranks"
    apart = Job().attempt(0, 0, 18).attempt(1, 15, 30, forgets=("weights",), ranks=(1,), ends=True)
    assert ask(apart.run(), "same-resume-step").outcome == "fail"
    assert ask(talking().run(), "same-resume-step").text.endswith("by the script's own word")
    assert ask(Job().attempt(0, 0, 18, ends=True).run(), "same-resume-step").outcome == "unknown"
