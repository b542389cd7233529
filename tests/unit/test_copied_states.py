"""Verdicts on jobs that save a copy of their state later, that go back within a process, or that change their optimizer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.model import watch
from orchestrator.model.run import Twin
from orchestrator.views import training
from orchestrator.views.training import completeness

from .test_rungs import judged, shown
from .test_unusual_jobs import changed, dropping, setting
from .test_watched_jobs import outcomes, rows, verdicts
from .verdicts import ask
from .watched_jobs import Job, digest, right


def saved_later(job: Job, *, thread: str, counter: bool, states: bool = False) -> Job:
    """Each save is called two steps after its contents were copied; ``states``: the states of all steps are recorded."""

    def change(line: watch.Line) -> watch.Line | None:
        if isinstance(line, watch.Save):
            return dataclasses.replace(line, n=line.n + 2, thread=thread)
        if isinstance(line, watch.Saved) and counter:
            return dataclasses.replace(line, counter=float(line.id))
        if isinstance(line, watch.State) and line.n and not states:
            return dataclasses.replace(line, full=line.n % 5 == 2) if line.n % 5 == 2 else None
        return line

    return changed(job, change, attempt=0)


@pytest.mark.parametrize("thread", ["", "saver"])
@pytest.mark.parametrize("evidence", ["counter", "states"])
def test_a_copy_that_is_saved_later_is_the_checkpoint_of_the_step_that_was_copied(thread: str, evidence: str) -> None:
    job = saved_later(right(), thread=thread, counter=evidence == "counter", states=evidence == "states")
    given = verdicts(job)
    assert given["resumed-from"].outcome == "pass" and "step 15 " in given["resumed-from"].text
    assert given["resumed-newest"].outcome == "pass"
    assert "fail" not in outcomes(job).values()


def test_an_older_copy_that_was_saved_later_is_not_the_newest() -> None:
    older = Job().attempt(0, 0, 18).attempt(1, 10, 30, ends=True)
    assert outcomes(saved_later(older, thread="saver", counter=True))["resumed-newest"] == "fail"


@pytest.mark.parametrize("thread", ["", "saver"])
def test_a_copy_of_which_no_step_is_known_is_unknown(thread: str) -> None:
    job = saved_later(right(momentum=False), thread=thread, counter=False)
    assert {outcomes(job)[name] for name in ("resumed-from", "resumed-newest", "no-step-lost")} == {"unknown"}
    assert "fail" not in outcomes(job).values()


# --- back to a checkpoint within a process ----------------------------------------------------------------------------------


def going_back(attempt: int, n: int) -> Job:
    """The ranks load the checkpoint of step 10 after ``n`` steps of the attempt, and train on with it."""
    job = right()
    for index, file in enumerate(job.files):
        if file.attempt == attempt:
            t = next(line.t for line in file.of(watch.State) if line.n == n)
            load = watch.Load(t=t, called=t, id=99, n=n, path="/ckpt/10.pt", weights=digest("weights", 10), matched=1.0)
            job.files[index] = dataclasses.replace(file, lines=(*file.lines, load))
    return changed(job, setting(watch.State, n=n, weights=digest("weights", 10)), attempt=attempt)


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_job_that_goes_back_within_a_process_is_not_judged_by_its_count_of_steps(attempt: int) -> None:
    given = verdicts(going_back(attempt, 7))
    assert given["no-step-lost"].outcome == "unknown"
    assert "loaded /ckpt/10.pt after 7 steps" in given["no-step-lost"].text


def test_a_script_that_makes_a_step_before_it_loads_did_not_begin_from_scratch() -> None:
    """Some make a step without gradients, because optimizers create their state then."""
    job = Job().attempt(0, 0, 18).attempt(1, 0, 12, ends=True)
    at = digest("weights", 15)
    job = changed(job, dropping(watch.Load), attempt=1)
    for index, file in enumerate(job.files):
        if file.attempt:
            load = watch.Load(t=file.lines[-1].t, called=file.lines[-1].t, id=9, n=1, path="/ckpt/15.pt", weights=at)
            job.files[index] = dataclasses.replace(file, lines=(*file.lines, load))
    job = changed(job, setting(watch.State, n=1, weights=at), attempt=1)
    assert {outcomes(job)[name] for name in ("resumed-from", "resumed-newest")} == {"unknown"}


def test_a_checkpoint_that_is_read_back_as_it_was_saved_changes_nothing() -> None:
    job = right()
    for index, file in enumerate(job.files):
        if not file.attempt:
            load = watch.Load(t=file.lines[-1].t, id=99, n=10, path="/ckpt/10.pt", weights=digest("weights", 10))
            job.files[index] = dataclasses.replace(file, lines=(*file.lines, load))
    assert {*outcomes(job).values()} == {"pass"}


# --- other settings, averages without a module --------------------------------------------------------------------------------


def test_another_setting_of_the_optimizer_is_named() -> None:
    job = changed(right(), setting(watch.State, groups=({"weight_decay": "0.0"},)))
    assert rows(job)["optimizer"] == "pass"
    other = changed(job, setting(watch.State, groups=({"weight_decay": "0.1"},)), attempt=1)
    assert "its weight_decay is 0.1, it was 0.0" in verdicts(other)["resume-complete"].text


@pytest.mark.parametrize(("is_module", "result"), [(True, "pass"), (False, "unknown")])
def test_an_average_in_the_checkpoint_that_no_module_holds_is_unknown(is_module: bool, result: str) -> None:
    average = {"copies": ["ema"], "tensors.ema": digest("ema", 15)}
    job = changed(right(), setting(watch.Saved, contents=average))
    if is_module:
        job = changed(job, setting(watch.State, copies={"Net 0": digest("ema", 15)}))
    assert rows(job)["copies of the model"] == result


@pytest.mark.parametrize("attempts", [(0, 1), (1,)])
def test_an_average_in_the_checkpoint_that_a_list_holds_needs_no_reference_run(attempts: tuple[int, ...]) -> None:
    """A rank that saves nothing seeks lists at its start only."""
    job = changed(right(), setting(watch.Saved, contents={"copies": ["ema"], "tensors.ema": digest("ema", 15)}))
    for attempt in attempts:
        job = changed(job, setting(watch.State, copies={"kept ema 0 0": f"{digest('ema', 15)} 20 -7"}), attempt=attempt)
    assert rows(job).get("copies of the model", "pass") == "pass"


def _keeping(own: str, *, sums: int = 0, weights: int = 0, changes: bool = True) -> Job:
    """Rank 0 keeps an average in a list; ``own``: of which state it is after the restart. ``sums``: by how much those of it differ then."""

    def line(attempt: int, item: watch.Line) -> watch.Line:
        if not isinstance(item, watch.State):
            return item
        step, far = 15 * attempt + item.n, attempt and item.n
        name = digest("average", step if changes else "still", own * attempt)
        value = f"{name} {1000 + far * sums} {2000 + far * sums}"
        moved = digest("weights", step, "rounded") if far and weights else item.weights
        return dataclasses.replace(
            item,
            full=True,
            copies={"kept ema 0 0": value},
            sums=(500 + weights * far, 700 + weights * far),
            weights=moved,
        )

    job = right()
    files = [dataclasses.replace(f, lines=tuple(line(f.attempt, x) for x in f.lines)) for f in job.files]
    return dataclasses.replace(job, files=files)


@pytest.mark.parametrize(
    ("job", "result"),
    [
        (_keeping(""), "pass"),
        (_keeping("anew", sums=300), "fail"),
        (_keeping("anew", sums=300, weights=1), "fail"),  # more than the weights are rounded
        (_keeping("anew", sums=5, weights=1), "pass"),  # made again by a step, which is rounded
        (_keeping("anew", sums=300, changes=False), "unknown"),  # a best state, perhaps
    ],
    ids=("loaded", "lost", "lost-and-rounded", "made-again", "still"),
)
def test_an_average_in_a_list_is_judged_by_what_it_is_after_the_restart(job: Job, result: str) -> None:
    assert rows(job)["copies of the model"] == result


def test_an_average_in_a_list_that_is_lost_is_named() -> None:
    text = verdicts(_keeping("anew", sums=300))["resume-complete"].text
    assert "a list of tensors with the model's shapes (ema) differs from before, until step 17" in text


def _copying(job: Job, *, own: str = "", keeps_all: bool = False, moved: int = 0, rounds: int = 0) -> Job:
    """Rank 0 copies its weights every 7 steps, and ranks seek lists every 5; a restart has no copies but one that it makes as it begins.

    ``own``: what differs in copies after the restart. ``keeps_all``: it keeps earlier copies. ``moved``, ``rounds``: by how much sums of
    weights and of copies differ then.
    """

    def line(attempt: int, item: watch.Line) -> watch.Line:
        if not isinstance(item, watch.State):
            return item
        base, is_later = 15 * attempt, attempt and item.n
        step, far = base + item.n, item.n if is_later else 0
        taken = [n for n in range(7, step + 1, 7) if n > base or not attempt][0 if keeps_all else -1 :]
        taken += [base] * bool(attempt and (keeps_all or not taken))
        lists = {n: f"{digest('w', n, own * attempt)} {9000 * n + rounds * far}" for n in taken}
        copies = {f"kept teacher {n} 0": value for n, value in lists.items() if n > step - 5 or not item.n}
        if item.n % 5 == 0:
            copies["again"] = "; ".join(value for n, value in lists.items() if n <= step - 5 and item.n)
        return dataclasses.replace(item, full=True, copies=copies, sums=(step * 100_000 + moved * far,))

    files = [dataclasses.replace(f, lines=tuple(line(f.attempt, x) for x in f.lines)) for f in job.files]
    return dataclasses.replace(job, files=files)


@pytest.mark.parametrize(
    ("about", "result"),
    [
        ({}, "pass"),
        ({"own": "lost"}, "unknown"),
        ({"own": "rounded", "moved": 1, "rounds": 5}, "pass"),
        ({"own": "lost", "moved": 1, "rounds": 50}, "unknown"),  # by more than the weights are rounded
        ({"own": "lost", "moved": 200, "rounds": 50}, "unknown"),  # the weights differ by more than rounding
        ({"keeps_all": True}, "unknown"),  # those of earlier steps are lost
    ],
    ids=("made-again", "lost", "rounded", "lost-and-rounded", "other-weights", "older-lost"),
)
def test_a_copy_that_is_taken_every_few_steps_is_whole_where_a_later_one_is_that_of_the_reference_run(
    about: dict[str, Any], result: str
) -> None:
    job = _copying(Job(every=5).attempt(0, 0, 18).attempt(1, 15, 30, ends=True), **about)
    undisturbed = _copying(Job().attempt(0, 0, 30, ends=True), keeps_all="keeps_all" in about)
    facts = training.kept_facts(training.lineage_of(undisturbed.run()))
    other = Twin(
        key="k", run="r-twin", losses=facts.losses, digests=facts.digests, steps=30, faults=0, restarts=0, final_loss=0.0,
        generators=facts.generators, lists=facts.lists,
    )  # fmt: skip
    for known, expected in ((other, result), (dataclasses.replace(other, lists={}), "unknown"), (None, "unknown")):
        evidence: Any = ask(dataclasses.replace(job.run(), twin=known), "resume-complete").evidence
        assert evidence["rows"]["attempt 1"]["copies of the model"]["result"] == expected


def test_a_list_in_the_checkpoint_that_only_an_earlier_search_found_is_not_observed() -> None:
    """The one that was restored does not stand for the one that was not."""
    job = changed(right(), setting(watch.State, copies={"kept ema 0 0": "e1 5", "again": "b1 7"}))
    contents = {"copies": ["ema", "best"], "tensors.ema": "e1", "tensors.best": "b1"}
    resumption = training.lineage_of(changed(job, setting(watch.Saved, contents=contents)).run()).resumptions[-1]
    states = [state for process in resumption.attempt.ranks.values() for state in process.states.values()]
    assert completeness._unobserved_copy(resumption, *states) == "best"


def test_an_average_of_a_part_of_the_model_is_a_copy_that_a_trial_may_accept_to_lose() -> None:
    names = {"body.weight": ["float32", [4, 4]], "head.weight": ["float32", [2, 4]], "head.bias": ["float32", [2]]}
    tensors = {
        "ema": ("weight", "bias"), "avg.net": ("head.weight", "head.bias"), "stats": ("mean", "var"), "alone": ("head.bias",),
    }  # fmt: skip
    contents = {f"tensors.{path}": digest(path) for path in tensors}
    contents |= {f"norms.tensors.{path}.{name}": "=1.0" for path, own in tensors.items() for name in own}
    job = changed(right(), setting(watch.Saved, contents=contents))
    job = changed(job, setting(watch.Owner, parameters=names))
    assert completeness.saved_copies(training.lineage_of(job.run()).resumptions[-1]) == {"ema", "avg.net"}


def test_a_generator_that_no_attempt_drew_from_needs_not_be_restored_in_a_short_one() -> None:
    """Two attempts were killed in their first step: they do not show whether steps draw from it."""
    job = Job(dropout=False).attempt(0, 0, 18).attempt(1, 15, 16).attempt(2, 15, 16)
    job = changed(job, setting(watch.State, rng={"torch": "other"}), attempt=2)
    assert rows(job, "attempt 2")["RNG"] == "not applicable"


# --- a newest checkpoint that was lost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "outcome", "text"),
    [
        ({"10.pt": 4000}, "unknown", "/ckpt/15.pt was no longer there when /ckpt/10.pt was read"),
        ({"10.pt": 4000, "15.pt": 17}, "unknown", "/ckpt/15.pt had 17 bytes instead of 4000 when /ckpt/10.pt was read"),
        ({"10.pt": 4000, "15.pt": 4000}, "fail", "resumed from step 10 although step 15 was committed"),
        (None, "fail", "resumed from step 10 although step 15 was committed"),
    ],
)
def test_a_newest_checkpoint_that_was_lost_is_no_failure_of_the_script(
    folder: dict[str, int] | None, outcome: str, text: str
) -> None:
    job = changed(Job().attempt(0, 0, 18).attempt(1, 10, 30, ends=True), setting(watch.Committed, bytes=4000))
    verdict = verdicts(changed(job, setting(watch.Load, folder=folder), attempt=1))["resumed-newest"]
    assert verdict.outcome == outcome
    assert text in verdict.text


@pytest.mark.parametrize(
    ("until", "has_twin", "advice"), [(18, False, "run it with --reference"), (15, True, "--at step=N"), (18, True, "")]
)
def test_a_part_that_is_not_known_says_what_makes_it_known(until: int, has_twin: bool, advice: str) -> None:
    job = Job().attempt(0, 0, until).attempt(1, 15, 30, ends=True)
    average = {"copies": ["ema"], "tensors.ema": digest("ema", 15)}
    rung = shown(judged(changed(job, setting(watch.Saved, contents=average)), has_twin=has_twin))["resumed whole"]
    assert rung.state == "unknown" and ("no module" in rung.text or until == 15)
    assert advice in rung.fix and bool(advice) == bool(rung.fix)
