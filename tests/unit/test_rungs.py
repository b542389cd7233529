"""A training is judged by three rungs; what a trial requires and accepts decides, and a loss that is hidden is never green."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator import views
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import ladder_lines, summary_lines, terminal
from orchestrator.core.verdict import fixes, judge, ladder, rungs
from orchestrator.model import launch, watch
from orchestrator.model.event import History
from orchestrator.model.run import Control, Run
from orchestrator.model.trial import CheckSpec, Trial
from orchestrator.model.verdict import Outcome, Rung, Verdict
from orchestrator.views import training
from orchestrator.views.training import state_parts

from . import run_builder
from .catalogue import CATALOGUE
from .test_script_twins import control, diverging, restored, twin
from .watched_jobs import Job, right, wrong

NAMES = (
    "resumed-from", "resumed-newest", "resume-complete", "no-step-lost", "replay-equal", "replicas-identical", "bit-exact",
)  # fmt: skip


def judged(
    job: Job, restarted: Control | None = None, *, has_twin: bool = True, accept: tuple[str, ...] = ("rng",)
) -> Run:
    """The verdicts of a job, with its reference runs."""
    run = job.run()
    other = dataclasses.replace(twin(), control=restarted) if has_twin else None
    trial = dataclasses.replace(run.trial, require="whole", accept=accept)
    run = dataclasses.replace(run, trial=trial, twin=other)
    names = NAMES if has_twin else NAMES[:-1]
    return dataclasses.replace(run, verdicts=judge.judge(run, CATALOGUE, [CheckSpec(name=name) for name in names]))


def shown(run: Run) -> dict[str, Rung]:
    view = run_builder.view(failovers=(run_builder.failover(lost_steps=()),))
    return {rung.name: rung for rung in ladder.ladder(run, view)}


def outcome(run: Run, require: str = "whole") -> str:
    return rungs.overall(run.verdicts, "finished", require=require)


def states(run: Run) -> tuple[str, ...]:
    return tuple(ladder.WORDS[rung.state] for rung in shown(run).values())


def test_a_job_that_resumed_rightly_reaches_the_top() -> None:
    run = judged(right(), control(right()))
    assert (states(run), outcome(run, "exact")) == (("yes", "yes", "yes"), "pass")


@pytest.mark.parametrize("part", ["weights", "optimizer", "scheduler", "lr", "scaler", "data"])
def test_a_lost_part_is_named_with_its_fix_and_fails_what_requires_the_whole(part: str) -> None:
    run = judged(wrong(part), restored(wrong(part)))
    rung = shown(run)["resumed whole"]
    name = {"lr": "learning rate", "data": "data position"}.get(part, part)
    assert (rung.state, outcome(run)) == ("does not hold", "fail")
    assert name in rung.lost
    assert rung.text.startswith(f"{ladder.PARTS[next(iter(rung.lost))]}: ")
    assert rung.fix


def test_the_worst_loss_comes_first() -> None:
    run = judged(wrong("rng", "data", "optimizer"), restored(wrong("data", "optimizer")), accept=())
    assert [*shown(run)["resumed whole"].lost] == ["optimizer", "data position", "RNG"]


def test_lost_random_states_are_accepted_with_a_note_and_a_fix() -> None:
    run = judged(wrong("rng"), restored(right()))
    ladder_of_run = shown(run)
    whole, exact = ladder_of_run["resumed whole"], ladder_of_run["exact"]
    assert (states(run), outcome(run), outcome(run, "exact")) == (("yes", "yes", "yes"), "pass", "pass")
    assert "accepted: random states (not restored on ranks 0-1)" in whole.text
    assert "torch.get_rng_state()" in whole.fix
    assert "with random states put back, a restart by itself equals the reference run" in exact.text
    complete = next(verdict for verdict in run.verdicts if verdict.check == "resume-complete")
    assert "accepted: RNG (not restored on ranks 0-1)" in complete.text
    assert "RNG" not in complete.text.partition(" as before")[0]


def test_random_states_of_one_rank_are_named_by_their_rank() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 15, 30, forgets=["rng"], ranks=[1], ends=True)
    accepted = shown(judged(job, restored(right())))["resumed whole"].accepted
    assert accepted == {"RNG": "not restored on rank 1 (n1)"}


def test_without_acceptance_lost_random_states_fail() -> None:
    run = judged(wrong("rng"), restored(right()), accept=())
    assert (states(run)[1:], outcome(run)) == (("no", "no"), "fail")
    assert [*shown(run)["resumed whole"].lost] == ["RNG"]


@pytest.mark.parametrize("part", ["weights", "optimizer", "scheduler", "lr", "scaler", "data"])
def test_accepted_random_states_hide_no_other_part(part: str) -> None:
    run = judged(wrong("rng", part), restored(wrong(part)))
    assert (states(run)[1], outcome(run)) == ("no", "fail")


def test_what_only_the_restarted_reference_shows_is_lost_although_random_states_are() -> None:
    run = judged(wrong("rng"), restored(wrong("hidden")))
    assert (states(run)[1], outcome(run)) == ("no", "fail")
    assert "with random states put back, other state still differs" in shown(run)["resumed whole"].text


def test_a_restarted_reference_that_lost_what_the_run_has_leaves_it_open() -> None:
    run = judged(wrong("rng"), restored(wrong("optimizer")))
    assert (states(run)[1], outcome(run)) == ("unknown", "unknown")


def test_random_states_that_could_not_be_put_back_leave_it_unknown_what_else_was_lost() -> None:
    run = judged(wrong("rng"), restored(right(), parts={}))
    assert (states(run), outcome(run), outcome(run, "exact")) == (("yes", "unknown", "unknown"), "unknown", "unknown")


def test_without_a_reference_run_lost_random_states_hide_what_the_checkpoint_never_held() -> None:
    run = judged(wrong("rng"), has_twin=False)
    assert (states(run), outcome(run)) == (("yes", "unknown", "unknown"), "unknown")
    assert shown(run)["resumed whole"].text.startswith("random states were lost, and what else differs is not known")
    assert "--reference" in shown(run)["resumed whole"].text


def test_without_a_reference_run_a_job_that_lost_nothing_is_whole() -> None:
    run = judged(right(), has_twin=False)
    assert (states(run), outcome(run)) == (("yes", "yes", "yes"), "pass")


def test_data_that_are_drawn_from_lost_random_states_are_a_lost_data_position() -> None:
    """Also where the restarted reference, which had its random states, has the right data."""
    job = Job(loader=False).attempt(0, 0, 18).attempt(1, 15, 30, forgets=["rng"], ends=True)
    for inputs, rung, word in (("drawn", "no", "fail"), ("same", "yes", "pass"), ("", "unknown", "unknown")):
        run = judged(_with_inputs(job, inputs), restored(right()))
        assert (states(run)[1], outcome(run)) == (rung, word), shown(run)["resumed whole"].text
    lost = judged(_with_inputs(job, "drawn"), restored(right()))
    assert shown(lost)["resumed whole"].fix == fixes.TORCH["RNG"]
    accepted = judged(_with_inputs(job, "drawn"), restored(right()), accept=("rng", "data-position"))
    assert (states(accepted)[1], outcome(accepted)) == ("yes", "pass")
    assert (
        "data position (not restored), random states (not restored on ranks 0-1)"
        in shown(accepted)["resumed whole"].text
    )


def test_inputs_with_other_noise_are_no_lost_data_position() -> None:
    """They are near those from before; other samples are not."""
    job = Job(loader=False).attempt(0, 0, 18).attempt(1, 15, 30, forgets=["rng"], ends=True)
    for shift, word in ((0, "pass"), (4, "fail")):

        def line(item: watch.Line, attempt: int, shift: int = shift) -> watch.Line:
            if not isinstance(item, watch.Step):
                return item
            step = 15 * attempt + item.n + shift * attempt
            signal = [[math.sin(100 * (step + row) * (column + 1)) for column in range(8)] for row in range(8)]
            noise = [[0.1 * math.cos(7 * attempt + row * column) for column in range(8)] for row in range(8)]
            rows = tuple(tuple(map(sum, zip(*both, strict=True))) for both in zip(signal, noise, strict=True))
            return dataclasses.replace(item, inputs=(f"{attempt} {step}",), values=rows)

        files = [dataclasses.replace(f, lines=tuple(line(x, f.attempt) for x in f.lines)) for f in job.files]
        run = judged(dataclasses.replace(job, files=files), restored(right()))
        assert outcome(run) == word, shown(run)["resumed whole"].text


@pytest.mark.parametrize(("accept", "lost"), [(("rng",), set[str]()), ((), {"RNG"})])
def test_batches_of_the_samples_that_were_due_are_in_their_place_whatever_crops_they_have(
    accept: tuple[str, ...], lost: set[str]
) -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 15, 30, forgets=["rng"], ends=True)

    def line(item: watch.Line, attempt: int) -> watch.Line:
        if not isinstance(item, watch.Step):
            return item
        return dataclasses.replace(item, batches=(f"{attempt} {item.n}",), samples=(f"{15 * attempt + item.n}",))

    files = [dataclasses.replace(f, lines=tuple(line(x, f.attempt) for x in f.lines)) for f in job.files]
    run = judged(dataclasses.replace(job, files=files), restored(right()), accept=accept)
    assert {*shown(run)["resumed whole"].lost} == lost


def test_data_that_differ_with_random_states_put_back_are_not_drawn_from_them() -> None:
    job = Job(loader=False).attempt(0, 0, 18).attempt(1, 15, 30, forgets=["rng"], ends=True)
    still = {"RNG": ("pass", ""), "data position": ("fail", "step 16 has other inputs than before")}
    rung = shown(judged(_with_inputs(job, "drawn"), restored(right(), parts=still)))["resumed whole"]
    assert rung.text.startswith("data position: step 16 has other inputs than before, and with random states put back")
    assert (rung.state, rung.fix) == ("does not hold", fixes.TORCH["data position"])


def _with_inputs(job: Job, how: str) -> Job:
    """``drawn``: with the random states; ``same``: they do not depend on them; empty: not recorded."""

    def line(item: watch.Line, attempt: int) -> watch.Line:
        if not how or not isinstance(item, watch.Step):
            return item
        return dataclasses.replace(item, inputs=(f"{attempt if how == 'drawn' else ''} {15 * attempt + item.n}",))

    files = [dataclasses.replace(f, lines=tuple(line(item, f.attempt) for item in f.lines)) for f in job.files]
    return dataclasses.replace(job, files=files)


def test_an_accepted_data_position_explains_that_all_later_steps_differ() -> None:
    run = judged(wrong("data"), control(right()), accept=("data-position",))
    assert (states(run), outcome(run), outcome(run, "exact")) == (("yes", "yes", "no"), "pass", "fail")


def _changed(job: Job, change: Callable[[int, watch.Line], watch.Line]) -> Job:
    """The job with ``change(step, line)`` in place of each line of the second attempt."""
    files = [
        dataclasses.replace(f, lines=tuple(change(15 + getattr(x, "n", 0), x) for x in f.lines)) if f.attempt else f
        for f in job.files
    ]
    return dataclasses.replace(job, files=files)


def test_an_accepted_data_position_explains_no_difference_before_it() -> None:
    """Steps 16 and 17 differ with the batches that were due; only step 18 has another one."""

    def change(step: int, line: watch.Line) -> watch.Line:
        is_late = isinstance(line, watch.Step) and step >= 18
        return dataclasses.replace(line, batches=("0" * 16,)) if is_late else line  # type: ignore[call-arg]

    run = judged(_changed(wrong("hidden"), change), control(right()), accept=("data-position",))
    assert "accepted: data position" in shown(run)["resumed whole"].text
    assert (states(run)[1], outcome(run)) == ("unknown", "unknown")


def test_accepted_copies_of_the_model_explain_no_other_weights() -> None:
    def with_copies(job: Job) -> Job:
        def line(attempt: int, item: watch.Line) -> watch.Line:
            if not isinstance(item, watch.State):
                return item
            return dataclasses.replace(item, copies={"AveragedModel 0": f"{attempt} {15 * attempt + item.n}"})

        files = [dataclasses.replace(f, lines=tuple(line(f.attempt, x) for x in f.lines)) for f in job.files]
        return dataclasses.replace(job, files=files)

    for job, word in ((right(), "pass"), (wrong("hidden"), "unknown")):
        run = judged(with_copies(job), control(right()), accept=("ema",))
        assert "accepted: copies (EMA)" in shown(run)["resumed whole"].text
        assert outcome(run) == word, shown(run)["resumed whole"].text


def test_a_rung_that_is_missed_and_not_required_stands_in_the_headline() -> None:
    run = judged(wrong("optimizer"), control(right()))
    run = dataclasses.replace(run, trial=dataclasses.replace(run.trial, require="survived"))
    view = run_builder.view(failovers=(run_builder.failover(lost_steps=()),))
    assert outcome(run, "survived") == "pass"
    assert ladder.headline(run, view, ladder.ladder(run, view)).endswith("; not required: resumed whole and exact.")


def verdict(check: str, result: Outcome, **evidence: Any) -> Verdict:
    return Verdict(check=check, outcome=result, text=f"text of {check}", evidence=evidence)


@pytest.mark.parametrize("result", ["fail", "unknown"])
def test_a_difference_that_no_part_explains_leaves_the_whole_unknown(result: Outcome) -> None:
    verdicts = (
        verdict("finished", "pass"),
        verdict("resume-complete", "pass"),
        verdict("bit-exact", result, unexplained=True),
    )
    assert [rungs.overall(verdicts, "finished", require=rung) for rung in ("survived", "whole", "exact")] == [
        "pass", "unknown", result,
    ]  # fmt: skip
    explained = (*verdicts[:2], verdict("bit-exact", result))
    assert rungs.overall(explained, "finished", require="whole") == "pass"


def test_a_difference_of_a_run_that_no_part_explains_is_told_at_the_whole() -> None:
    assert outcome(judged(wrong("hidden", ranks=None), control(right()))) != "pass"


@pytest.mark.parametrize("require", ["survived", "whole", "exact"])
def test_a_check_of_no_rung_always_counts(require: str) -> None:
    verdicts = (verdict("fault-verified", "fail"), verdict("resume-complete", "pass"), verdict("bit-exact", "pass"))
    assert rungs.overall(verdicts, "finished", require=require) == "fail"


def test_a_built_in_training_is_whole_by_equal_bits_only() -> None:
    verdicts = (verdict("finished", "pass"), verdict("replay-equal", "fail"))
    assert rungs.overall(verdicts, "finished", require="whole") == "fail"
    assert rungs.overall(verdicts, "finished", require="survived") == "pass"


def test_a_saved_bundle_without_a_rung_is_judged_as_before() -> None:
    trial = Trial(name="t", workload="script")
    assert (trial.require, trial.accept) == ("exact", ())


def test_what_is_no_training_has_no_ladder() -> None:
    run = run_builder.run()
    measured = dataclasses.replace(
        run, trial=dataclasses.replace(run.trial, workload="collective"), verdicts=(verdict("results-exact", "pass"),)
    )
    assert ladder.ladder(measured, run_builder.view()) == ()
    assert rungs.counted(measured.verdicts, "survived") == measured.verdicts


def test_each_part_has_words_and_advice() -> None:
    names = {*state_parts.PARTS, "saved state"}
    assert names == set(ladder.PARTS)
    assert names - {"learning rate"} == set(fixes.TORCH)


def test_parts_that_are_as_before_are_counted_where_they_are_many() -> None:
    text = shown(judged(right(), control(right())))["resumed whole"].text
    assert text == "weights, buffers and 6 more parts as before"


def test_a_part_that_is_not_known_is_named_as_people_name_it() -> None:
    text = shown(judged(wrong("rng"), restored(wrong("optimizer"))))["resumed whole"].text
    assert text.startswith("own state: with random states put back, ")


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("it fits", "it fits"),
        ("node n2 lost at step 26; back in 0.55 s; 5 steps", "node n2 lost at step 26 … (-v)"),
        ("one clause without any end in sight, for too long", "one clause without any end in … (-v)"),
        ("a checkpoint differs in ema.0 (4.25727, 4.1) there", "a checkpoint differs in ema.0 … (-v)"),
        ("one short and another equals: everything in it", "one short and another equals … (-v)"),
        ("a, short clause and then a long text without any", "a, short clause and then a long … (-v)"),
    ],
)
def test_a_text_that_is_too_long_ends_after_a_clause(text: str, row: str) -> None:
    assert ladder_lines.clipped(text, indent=ladder_lines.WIDTH - 38, rows=1) == row


def test_what_several_checks_say_is_said_once() -> None:
    text = "the run was interrupted"
    verdicts = (
        Verdict(check="finished", outcome="unknown", text=f"{text} (and 1 more)"),
        Verdict(check="membership", outcome="unknown", text=text),
    )
    assert shown(run_builder.run(verdicts=(*verdicts, verdict("bit-exact", "skipped"))))["survived"].text == text


LONG = "step 21 of rank 2 (n2) has another batch than before, by the digest of each sample, " * 4


@pytest.mark.parametrize("result", ["pass", "fail", "unknown"])
@pytest.mark.parametrize("outcome", ["finished", "failed"])
def test_a_run_ends_with_at_most_twelve_lines(
    result: Outcome, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(summary_lines, "_failed_log", lambda run, lines: ["log       rank 1", *["its line"] * lines])
    checks = (*NAMES, "finished", "fault-verified", "evidence-agrees", "planned-faults-only")
    rows = {"attempt 1": {part: {"result": result, "text": LONG} for part in state_parts.PARTS}}
    made = tuple(Verdict(check=name, outcome=result, text=LONG, evidence={"rows": rows}) for name in checks)
    out = ended(run_builder.run(verdicts=made), outcome, tmp_path / "runs" / "r")
    lines = out[out.index("recovery ") :].splitlines()
    assert len(lines) <= 12, out
    assert [line.split()[0] for line in lines if line.startswith(("survived", "resumed", "exact"))] == [
        "survived",
        "resumed",
        "exact",
    ]
    assert max(len(line) for line in lines[:-1]) <= 100, out


def test_the_verdict_lines_are_those_of_verbose(tmp_path: Path) -> None:
    run = run_builder.run(verdicts=(verdict("finished", "pass"), verdict("bit-exact", "fail")))
    assert "text of finished" not in ended(run, "finished", tmp_path)
    text = ended(run, "finished", tmp_path, verbosity=1)
    assert "fail    bit-exact: text of bit-exact" in text and "finished (text of finished)" in text
    assert "exact          no        text of bit-exact" in text


def ended(run: Run, outcome: str, directory: Path, verbosity: int = 0) -> str:
    """What is printed at the end of a run, on a terminal of 100 columns."""
    out = io.StringIO()
    shown_on = terminal.Terminal(out=out, err=out, width=100, verbosity=verbosity)
    end = dataclasses.replace(run.history.events[-1], value={"outcome": outcome, "reason": "", "kind": ""})
    run = dataclasses.replace(run, history=History((*run.history.events[:-1], end)))
    code = judge.exit_code(run.verdicts, outcome)
    result = launch.Result(run="r", directory=str(directory), code=code, verdicts=run.verdicts, judged=run)
    assert summary_lines.show(Session(state=directory, terminal=shown_on), result) == code
    return out.getvalue()


@pytest.mark.parametrize(
    ("batches", "rung", "word"), [("same", "yes", "pass"), ("other", "unknown", "unknown"), ("", "unknown", "unknown")]
)
def test_random_states_that_change_later_are_accepted_if_the_batches_after_them_are_known_to_be_due(
    batches: str, rung: str, word: str
) -> None:
    """For example those that workers of a loader draw anew in the first epoch after a restart."""
    job = diverging(23, 20)
    other = dataclasses.replace(twin(), control=control(job), digests=_with_batches(twin().digests, batches))
    run = dataclasses.replace(job.run(), twin=other)
    run = dataclasses.replace(run, trial=dataclasses.replace(run.trial, require="whole", accept=("rng",)))
    run = dataclasses.replace(run, verdicts=judge.judge(run, CATALOGUE, [CheckSpec(name=name) for name in NAMES]))
    assert (states(run)[1:], outcome(run)) == ((rung, "no"), word), shown(run)["resumed whole"].text
    assert (
        "random states (others than undisturbed on rank 0 from step 20 on)" in shown(run)["resumed whole"].text
    ) is (word == "pass")


def _with_batches(digests: Mapping[str, Mapping[str, str]], how: str) -> dict[str, dict[str, str]]:
    """Those of the reference run, others after step 22, or none."""

    def batch(name: str, value: str) -> str:
        return "0" * 16 if how == "other" and training.step_of(name) > 22 else value

    return {
        rank: {
            name: batch(name, value) if name.startswith("batch@") else value
            for name, value in own.items()
            if how or not name.startswith("batch@")
        }
        for rank, own in digests.items()
    }


def test_of_ranks_that_do_not_step_together_the_one_that_lost_an_accepted_part_is_told() -> None:
    """The verdict on a run is that on one of its ranks: what was accepted on another must not be silent."""
    accepted = Verdict(
        check="c", outcome="pass", text="accepted", evidence={"accepted": {"RNG": "not restored on rank 1"}}
    )
    by_number = {0: Verdict(check="c", outcome="pass", text="whole"), 1: accepted}
    judge_rank = training.by_rank(lambda run: by_number[run.files.rank])  # type: ignore[attr-defined]
    run = Job(sharded=True).attempt(0, 0, 18).attempt(1, 15, 30, ends=True).run()
    assert judge_rank(_uneven(run)).evidence == accepted.evidence


def _uneven(run: Run) -> Run:
    """The run, whose rank 1 saves a step later than rank 0 each time."""
    files: Any = run.files
    later = [
        dataclasses.replace(
            file,
            lines=tuple(
                dataclasses.replace(x, n=x.n + file.rank) if isinstance(x, watch.Save) else x for x in file.lines
            ),
        )
        for file in files.processes
    ]
    return dataclasses.replace(run, files=dataclasses.replace(files, processes=later))


def test_a_job_that_fails_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception and its place, in the headline and in the line of the log."""
    tail = ('  File "/jobs/broken.py", line 3, in <module>', "    foo(3)", "NameError: name 'foo' is not defined")
    failed = views.FailedRank(rank=2, node="n2", epoch=0, tail=tail)
    monkeypatch.setattr(views, "failed_rank", lambda run, lines: failed)
    bad = Verdict(
        check="finished", outcome="fail", text="rank 2 (n2) left with exit code 1: NameError: name 'foo' is not defined"
    )
    text = ended(run_builder.run(verdicts=(bad, verdict("resume-complete", "unknown"))), "failed", tmp_path)
    assert "log       rank 2 on n2, first start at broken.py:3, last lines:" in text
    assert "FAIL      Your job did not come back: rank 2 (n2) left with exit code 1: NameError" in text
    assert "resumed whole  unknown   the job did not come back" in text


def test_a_failed_rank_shows_its_error_and_not_the_stack_of_its_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever frames of libraries its log ends with, the place is the innermost line of the job."""
    error = (
        "Traceback (most recent call last):",
        '  File "/jobs/train.py", line 12, in <module>',
        '  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in backward',
        "RuntimeError: Connection reset by peer",
    )
    dump = ('  File "/jobs/train.py", line 7 in load', '  File "<frozen runpy>", line 198 in _run_module_as_main')
    failed = views.FailedRank(rank=1, node="n1", epoch=0, tail=dump, traceback=error)
    monkeypatch.setattr(views, "failed_rank", lambda run, lines: failed)
    bad = Verdict(check="finished", outcome="fail", text="stalled")
    text = ended(run_builder.run(verdicts=(bad, verdict("resume-complete", "unknown"))), "failed", tmp_path)
    assert "log       rank 1 on n1, first start at train.py:12, last lines:" in text
    assert "RuntimeError: Connection reset by peer" in text and "runpy" not in text


def test_a_built_in_training_whose_redone_steps_are_equal_resumed_whole_without_a_twin() -> None:
    """What was not asked is no doubt: an exact training cannot be one of which nobody knows whether it resumed whole."""
    proved = (verdict("replay-equal", "pass"), verdict("bit-exact", "skipped"))
    assert ladder._whole_by_bits(run_builder.run(verdicts=proved), ()).state == "holds"
    unproved = (verdict("replay-equal", "skipped"), verdict("bit-exact", "skipped"))
    assert ladder._whole_by_bits(run_builder.run(verdicts=unproved), ()).state == "unknown"
    doubtful = (verdict("replay-equal", "pass"), verdict("bit-exact", "unknown"))
    assert ladder._whole_by_bits(run_builder.run(verdicts=doubtful), ()).state == "unknown"
