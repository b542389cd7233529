"""Redone steps and saved keys: what is compared at each of them, and which differences a restart explains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.model import watch
from orchestrator.model.run import Control, Twin
from orchestrator.views import training
from orchestrator.views.training import completeness, rounding, state_parts

from .test_watched_jobs import outcomes, rows
from .verdicts import ask
from .watched_jobs import Job, digest, right, wrong


def changed(job: Job, change: Callable[[watch.WatchFile, watch.Line], watch.Line]) -> Job:
    job.files = [dataclasses.replace(f, lines=tuple(change(f, line) for line in f.lines)) for f in job.files]
    return job


def scheduled(*, late: int) -> Job:
    """A schedule of the job's own: the rate follows from the step, ``late`` steps too late after the failure."""

    def change(file: watch.WatchFile, line: watch.Line) -> watch.Line:
        if isinstance(line, watch.State | watch.Step):
            n = line.n - isinstance(line, watch.Step)
            step = n + (15 if file.attempt else 0)
            lag = late if file.attempt and n else 0
            fields: Any = {"lr": ((0.1 / (1 + max(step - lag, 0))).hex(),), "rng": {}}
            fields |= {"scheduler": None, "rng": line.rng} if isinstance(line, watch.State) else {}
            return dataclasses.replace(line, **fields)
        return line

    return changed(right(k=100), change)


def test_a_schedule_that_is_none_of_torchs_is_judged_by_the_rates_of_redone_steps() -> None:
    text = ask(scheduled(late=0).run(), "resume-complete").evidence["rows"]["attempt 1"]["scheduler"]
    assert text == {"result": "pass", "text": "not of torch: the learning rates of 2 redone steps are as before"}
    failed = [name for name, result in rows(scheduled(late=3)).items() if result == "fail"]
    assert failed == ["learning rate", "scheduler"], "the first state has the right rate, and the next steps have not"
    assert "learning rate: of step 17 is 0.00" in ask(scheduled(late=3).run(), "resume-complete").text


def copied(*, until: int) -> Job:
    """An average of the weights that no checkpoint holds: after the failure it is another one until step ``until``."""

    def change(file: watch.WatchFile, line: watch.Line) -> watch.Line:
        if not isinstance(line, watch.State):
            return line
        step = line.n + (15 if file.attempt else 0)
        is_other = file.attempt and step < until
        return dataclasses.replace(line, copies={"EMA 0": f"{step + (100 if is_other else 0):016x}"}, full=True)

    return changed(right(), change)


def test_an_average_that_nobody_saved_fails_unless_the_job_makes_it_again() -> None:
    assert rows(copied(until=0))["copies of the model"] == "pass"
    assert rows(copied(until=99))["copies of the model"] == "fail"
    assert (
        "EMA differs from before, until step 17, and no known checkpoint holds it"
        in ask(copied(until=99).run(), "resume-complete").text
    )
    assert rows(copied(until=17))["copies of the model"] == "pass"


def test_of_two_copies_the_one_that_differs_is_named() -> None:
    def change(file: watch.WatchFile, line: watch.Line) -> watch.Line:
        if not isinstance(line, watch.State):
            return line
        return dataclasses.replace(
            line, copies={"Average 0": "a" * 16, "Teacher 1": ("b" if file.attempt else "c") * 16}, full=True
        )

    text = ask(changed(right(), change).run(), "resume-complete").text
    assert "Teacher differs" in text and "Average" not in text


def test_weights_that_differ_after_an_equal_step_are_something_outside_of_the_state() -> None:
    def change(file: watch.WatchFile, line: watch.Line) -> watch.Line:
        if isinstance(line, watch.State) and file.attempt and line.n >= 2:
            line = dataclasses.replace(line, weights=f"{line.n:016x}")
        if isinstance(line, watch.State):
            return dataclasses.replace(line, full=True, optimizer={"m": "1" * 16}, rng={"torch": "same"})
        return line

    job = changed(right(dropout=False), change)
    assert outcomes(job)["replay-equal"] == "fail"
    assert (
        "began step 17 with the same weights, optimizer and random states, and ended it with other"
        in ask(job.run(), "replay-equal").text
    )


def facts(saves: dict[str, dict[str, str]]) -> training.KeptFacts:
    return training.KeptFacts(losses={}, digests={}, steps=40, base=20, undisturbed=20, saves=saves)


def reference(saves: dict[str, dict[str, str]], control: dict[str, dict[str, str]] | None = None) -> Twin:
    restarted = None if control is None else Control(run="c", base=20, losses={}, digests={}, saves=control)
    return Twin(
        key="k", run="t", losses={}, digests={}, steps=40, faults=0, restarts=0, final_loss=0.0, saves=saves, control=restarted
    )  # fmt: skip


def keys(weights: str, **more: str) -> dict[str, str]:
    return {
        "0 snap.pt weights": weights,
        **{f"0 snap.pt {name.replace('__', '.')}": value for name, value in more.items()},
    }


def test_a_key_that_the_first_of_two_restarts_lost_is_named() -> None:
    own, other = (
        {f"{step}": keys("abc"[step // 10 - 1], other__seen=f'"={n}.0"') for step, n in ((10, 3), (20, a), (30, b))}
        for a, b in ((1, 1), (6, 9))
    )
    restarted = dataclasses.replace(facts(own), restarts=(10, 20))
    row = training.saved_state.row(restarted, reference(other), rounds=True)
    assert row is not None and (
        row.result,
        "step 20 differs from the reference run's in seen (1, it is 6 there)" in row.text,
    ) == ("fail", True)
    equal = training.saved_state.row(
        dataclasses.replace(facts(other), restarts=(10, 20)), reference(other), rounds=True
    )
    assert equal is not None and equal.result == "pass"


def test_a_number_that_the_second_of_two_restarts_lost_is_named_although_weights_round() -> None:
    own = {"20": keys("b", other__seen='"=6.0"'), "50": keys("x", other__seen='"=1.0"')}
    other = {"20": keys("a", other__seen='"=6.0"'), "50": keys("y", other__seen='"=9.0"')}
    for restarts, result in (((10, 45), "fail"), ((10, 25), "pass")):
        restarted = dataclasses.replace(facts(own), base=restarts[-1], restarts=restarts)
        row = training.saved_state.row(restarted, reference(other), rounds=True)
        assert row is not None and row.result == result, "numbers may drift beyond the first steps after a restart"


def test_a_key_of_a_checkpoint_that_was_not_resumed_is_named() -> None:
    own = {"20": keys("a", tensors__ema="1", other__epoch="3"), "30": keys("b", tensors__ema="2", other__epoch="4")}
    row = training.saved_state.row(
        facts(own), reference({**own, "30": keys("b", tensors__ema="9", other__epoch="4")}), rounds=True
    )
    assert row is not None and (row.result, row.text.rpartition(" in ")[2]) == ("fail", "ema")
    equal = training.saved_state.row(facts(own), reference(own), rounds=True)
    assert equal is not None and (equal.result, equal.text) == (
        "pass",
        "3 keys of its checkpoints as in the reference run",
    )


@pytest.mark.parametrize(
    ("lost", "results"),
    [(("ema__0",), ("fail", "pass")), (("emails",), (None, "fail")), (("ema__0", "emails"), (None, "fail"))],
)
def test_a_difference_in_copies_of_the_model_alone_is_a_lost_copy(
    lost: tuple[str, ...], results: tuple[str | None, str]
) -> None:
    """(the result of copies, that of the saved state), where a trial accepts that copies are lost."""
    other = keys("b", tensors__ema__0="1", tensors__emails="1", other__epoch="4")
    own = other | keys("b", **{f"tensors__{key}": "2" for key in lost})
    judged = [
        training.saved_state.row(facts({"30": own}), reference({"30": other}), rounds=True, without=without)
        for without in ((), ("ema",))
    ]
    parts_of_run = training.saved_state.with_lost_copies({}, *judged)
    shown = [parts_of_run.get(part) for part in ("copies of the model", "saved state")]
    assert shown[0] is None or "in ema.0" in shown[0].text
    assert tuple(row and row.result for row in shown) == results


def test_a_list_that_began_anew_has_fewer_entries_than_that_of_the_reference() -> None:
    """As the scores of folds; entries that no reference has, and names that runs do not share, are not counted."""
    scores = {
        "other__scores__0": '"=1.5"',
        "other__scores__1": '"=1.25"',
        "other__times__0": '"=3"',
        "other__log__17": "a1",
    }
    whole, empty = keys("b", **scores), keys("b", other__scores__0='"=1.5"', other__log__18="a1")
    row = training.saved_state.row(facts({"30": empty}), reference({"30": whole}), rounds=True)
    assert row is not None and row.result == "fail" and "fewer entries scores.#" in row.text
    row = training.saved_state.row(facts({"30": empty}), reference({"30": whole}), rounds=True, same_size=False)
    assert row is not None and row.result == "pass"
    before = {"20": keys("a"), "30": empty}
    row = training.saved_state.row(facts(before), reference({"20": keys("a", **scores), "30": whole}), rounds=True)
    assert row is not None and row.result == "pass", "it differs without a failure as well"
    row = training.saved_state.row(facts({"30": whole}), reference({"30": empty}), rounds=True)
    assert row is not None and row.result == "pass"


@pytest.mark.parametrize(
    ("name", "is_left_out"),
    [("sentiment", False), ("mistimed", False), ("timesteps", False), ("validated", False), ("ghostly", False), ("startTime", True),
     ("wall_time", True), ("epoch.2.timestamps", True), ("walltime", True), ("run_id", True), ("resumed_from", True), ("hostname", True)],
)  # fmt: skip
def test_names_that_runs_do_not_share_are_words_and_no_parts_of_words(name: str, is_left_out: bool) -> None:
    own = {"30": {"0 snap.pt weights": "b", f"0 snap.pt other.{name}": '"=1"'}}
    other = {"30": {"0 snap.pt weights": "b", f"0 snap.pt other.{name}": '"=2"'}}
    row = training.saved_state.row(facts(own), reference(other), rounds=True)
    assert row is not None and row.result == ("pass" if is_left_out else "fail")


@pytest.mark.parametrize(
    ("norm", "of_weights", "result"),
    [("1.0004", "2.00001", "pass"), ("1.02", "2.00001", "fail"), ("1.02", "2.01", None), ("1.0", "2.01", None), ("1.02", "", None)],
)  # fmt: skip
def test_a_list_of_tensors_is_compared_by_norms_where_sums_round(
    norm: str, of_weights: str, result: str | None
) -> None:
    """As the slow weights of lookahead, a copy of the model that no module holds; not where the weights differ by more than rounding."""
    own, other = ({"30": {"0 snap.pt weights": x, "0 snap.pt tensors.la.slow": x}} for x in "bc")
    for saves, slow, weights in ((own, "1.0", "2.0"), (other, norm, of_weights)):
        saves["30"] |= {
            "0 snap.pt norms.tensors.la.slow.0": f'"={slow}"',
            "0 snap.pt norms.weights.0.bias": f'"={weights}"',
        }
    saved = training.saved_state.row(facts(own), reference(other), rounds=True)
    assert (saved.result if saved else None) == result
    copy = "copies of the model"
    unobserved = {copy: completeness.Row(part=copy, result="unknown", text=state_parts.UNOBSERVED.format("la.slow"))}
    after = training.saved_state.with_copies(unobserved, saved)[copy]
    assert after.result == ("pass" if result == "pass" else "unknown")
    own["30"] = {**own["30"], "0 snap.pt norms.tensors.ema.net.0.bias": '"=1.0"'}
    other["30"] |= {"0 snap.pt norms.tensors.ema.net.0.bias": '"=1.0"'}
    average = training.saved_state.row(facts(own), reference(other), rounds=True)
    unknown_average = {
        copy: completeness.Row(part=copy, result="unknown", text=state_parts.UNOBSERVED.format("ema.net"))
    }
    after = training.saved_state.with_copies(unknown_average, average)[copy]
    assert after.result == ("pass" if result == "pass" else "unknown")
    other_copy = {copy: completeness.Row(part=copy, result="unknown", text=state_parts.UNOBSERVED.format("em"))}
    assert training.saved_state.with_copies(other_copy, saved)[copy].result == "unknown"


def test_keys_that_differ_without_a_failure_and_keys_of_other_weights_prove_nothing() -> None:
    own = {"20": keys("a", other__spent="1"), "30": keys("b", other__spent="2", other__wall_time="1")}
    other = {"20": keys("a", other__spent="7"), "30": keys("b", other__spent="8", other__wall_time="2")}
    row = training.saved_state.row(facts(own), reference(other), rounds=True)
    assert row is not None and row.result == "pass" and row.text.endswith("without spent, wall_time")
    by_control = training.saved_state.row(
        facts({"30": own["30"]}), reference(other, {"20": keys("a", other__spent="6")}), rounds=True
    )
    assert by_control is not None and by_control.result == "pass"
    assert training.saved_state.row(facts({"30": keys("c", other__spent="1")}), reference(other), rounds=True) is None


def compared(jump: dict[str, float], *, steps: tuple[int, int] = (30, 30)) -> dict[str, tuple[str, str]]:
    """Outcome and text of checks on a job of 30 steps. The reference differs after the failure by rounding, and by ``jump``.

    A restart by itself computed what the job did. ``steps``: of the reference and of the restart.
    """
    facts = training.kept_facts(training.lineage_of(right().run()))
    factors = {str(n): 1 + 1e-8 * (n > 15) for n in range(31)} | jump
    losses = {
        rank: {step: (float.fromhex(loss) * factors[step]).hex() for step, loss in own.items()}
        for rank, own in facts.losses.items()
    }
    digests = {
        rank: {**own, **{f"weights@{n}": "0" * 16 for n in range(16, 31)}} for rank, own in facts.digests.items()
    }
    control = Control(run="c", base=15, losses=facts.losses, digests=facts.digests, steps=steps[1])
    twin = Twin(
        key="k", run="t", losses=losses, digests=digests, steps=steps[0], faults=0, restarts=0, final_loss=0.0, control=control
    )  # fmt: skip
    run = dataclasses.replace(right().run(), twin=twin)
    return {name: (ask(run, name).outcome, ask(run, name).text) for name in ("bit-exact", "no-step-lost")}


def test_a_flaw_that_a_restart_by_itself_has_as_well_is_no_rounding() -> None:
    assert {name: outcome for name, (outcome, _) in compared({}).items()} == {
        "bit-exact": "pass",
        "no-step-lost": "pass",
    }
    outcome, text = compared({"28": 1.01})["bit-exact"]
    assert outcome == "fail"
    assert "the loss of step 28" in text and "in another order explain; a restart by itself has the same flaw" in text


@pytest.mark.parametrize(
    ("optimizer", "is_explained"), [("21", True), ("26", False), (None, False)], ids=["at once", "later", "without"]
)
def test_the_rounding_of_a_first_step_may_show_in_the_optimizer_alone(
    optimizer: str | None, is_explained: bool
) -> None:
    """A small step loses the last bits of a moment: Adam's weights differed 5 steps later."""

    def digests(weights: str) -> dict[str, dict[str, str]]:
        moments = {f"optimizer.m@{n}": weights * (n >= int(optimizer)) for n in range(21, 31)} if optimizer else {}
        return {"0": {**{f"weights@{n}": weights * (n >= 26) for n in range(21, 31)}, **moments}}

    own = dataclasses.replace(facts({}), digests=digests("a"))
    twin = dataclasses.replace(reference({}), digests=digests("b"))
    text = "rank 0: weights and optimizer equal the reference run's until step 25 and differ from the next on"
    assert rounding.beyond(own, twin, rounding.LEAST) == (None if is_explained else (26, text))


def test_work_that_is_done_twice_is_a_failure_only_where_every_restart_does_it() -> None:
    outcome, text = compared({}, steps=(20, 30))["no-step-lost"]
    assert outcome == "fail" and "10 steps more than undisturbed (20), after a restart by itself as well" in text
    assert compared({}, steps=(20, 20))["no-step-lost"][0] == "pass"


def uneven() -> Job:
    """Rank 1 makes 22 steps where rank 0 makes 20, as with ``join``; each saves after its own ones."""
    lines: list[watch.WatchFile] = []
    for rank, scale in ((0, 10), (1, 11)):
        job = (
            Job(world=2, every=scale, sharded=True)
            .attempt(0, 0, 2 * scale + 3)
            .attempt(1, 2 * scale, 4 * scale, ends=True)
        )
        lines += [file for file in job.files if file.rank == rank]
    return Job(files=[changed_owner(file) for file in lines])


def changed_owner(file: watch.WatchFile) -> watch.WatchFile:
    whole = (dataclasses.replace(x, sharded=False, shards=()) if isinstance(x, watch.Owner) else x for x in file.lines)
    return dataclasses.replace(file, lines=tuple(whole))


def test_ranks_that_do_not_step_together_are_judged_by_their_own_steps() -> None:
    run = uneven().run()
    assert training.uneven_ranks(run) == (0, 1) and training.uneven_ranks(right().run()) == ()
    names = ("resumed-from", "resumed-newest", "resume-complete", "no-step-lost", "replay-equal")
    assert {name: ask(run, name).outcome for name in names} == dict.fromkeys(names, "pass")
    assert ask(run, "replicas-identical").outcome == "skipped"
    assert "each rank by its own steps" in ask(run, "no-step-lost").text


def test_ranks_that_save_more_or_other_files_step_together() -> None:
    def more(file: watch.WatchFile, line: watch.Line) -> watch.Line:
        return (
            dataclasses.replace(line, n=line.n - 2)
            if isinstance(line, watch.Save) and line.n == 10 and file.rank
            else line
        )

    assert training.uneven_ranks(changed(right(sharded=True), more).run()) == ()


def test_a_rank_that_forgets_a_part_is_found_among_ranks_that_do_not_step_together() -> None:
    job = uneven()
    wrong = Job(world=2, every=11, sharded=True).attempt(0, 0, 25).attempt(1, 22, 44, forgets=("optimizer",), ends=True)
    job.files[-1] = changed_owner(next(f for f in wrong.files if f.rank == 1 and f.attempt == 1))
    assert ask(job.run(), "resume-complete").outcome == "fail"
    assert "rank 1" in ask(job.run(), "resume-complete").text


def test_where_nothing_was_redone_the_batches_of_the_reference_show_the_position_in_the_data() -> None:
    """As after a preemption: the job saved within its notice, and went on at that step."""
    job = Job(every=5).attempt(0, 0, 15).attempt(1, 15, 30, ends=True)
    assert rows(job)["data position"] == "unknown"
    facts = training.kept_facts(training.lineage_of(right().run()))
    twin = dataclasses.replace(reference({}), digests=facts.digests)
    verdict: Any = ask(dataclasses.replace(job.run(), twin=twin), "resume-complete").evidence["rows"]["attempt 1"]
    assert verdict["data position"] == {"result": "pass", "text": "15 batches are those of the reference run"}
    weights = {rank: {k: v for k, v in own.items() if "weights@" in k} for rank, own in facts.digests.items()}
    same_weights = dataclasses.replace(job.run(), twin=dataclasses.replace(twin, digests=weights))
    verdict = ask(same_weights, "resume-complete").evidence["rows"]["attempt 1"]
    assert (
        verdict["data position"]["result"] == "pass"
        and "came out as in the reference" in verdict["data position"]["text"]
    )
    other = {
        rank: {name: "x" if name == "batch@20" else v for name, v in own.items()} for rank, own in facts.digests.items()
    }
    verdict = ask(
        dataclasses.replace(job.run(), twin=dataclasses.replace(twin, digests=other)), "resume-complete"
    ).evidence["rows"]["attempt 1"]
    assert (
        verdict["data position"]["result"] == "unknown"
        and "step 20 has another batch" in verdict["data position"]["text"]
    )


@pytest.mark.parametrize(
    ("own", "other", "result"),
    [
        ("=4.0", "=4.0001", "pass"),
        ("=1024.0", "=256.0", "fail"),
        ("=0.0003", "=0.0001", "fail"),
        ("=1e-06", "=-2e-06", "pass"),
        ("=3", "=4", "fail"),
        ("ab12", "cd34", None),
    ],
)
def test_where_weights_differ_by_rounding_only_numbers_compare(own: str, other: str, result: str | None) -> None:
    """A scale or a counter that was not resumed shows although no digest can be equal."""
    saves = {"30": keys("b", other__scale=f'"{own}"')}
    twin = reference({"30": keys("c", other__scale=f'"{other}"')})
    row = training.saved_state.row(facts(saves), twin, rounds=True)
    assert (row.result if row else None) == result
    assert training.saved_state.row(facts(saves), twin, rounds=False) is None
    late = training.saved_state.row(facts({"50": saves["30"]}), reference({"50": dict(twin.saves["30"])}), rounds=True)
    assert late is None, "after many steps a loss may have drifted far"


def test_a_number_near_0_is_as_exact_as_the_largest_that_the_job_saved_until_then() -> None:
    """A mean that has just changed its sign is rounded as the numbers that it was made of."""
    saves = {"20": keys("a", other__mean='"=5.0"'), "30": keys("b", other__mean='"=0.001"')}
    twin = reference({"20": saves["20"], "30": keys("c", other__mean='"=0.002"')})
    row = training.saved_state.row(facts(saves), twin, rounds=True)
    assert row is not None and row.result == "pass"


@pytest.mark.parametrize(("rounds", "result"), [(True, "pass"), (False, "fail")])
def test_rounding_that_only_the_optimizer_shows_is_no_loss_of_its_state(rounds: bool, result: str) -> None:
    """The last bits of a momentum are lost in weights that a small rate changes."""
    saves = {"30": keys("b", optimizer__momentum_buffer="m", tensors__sums="s", other__step='"=30"')}
    twin = reference({"30": keys("b", optimizer__momentum_buffer="n", tensors__sums="t", other__step='"=30"')})
    row = training.saved_state.row(facts(saves), twin, rounds=rounds)
    assert row is not None and row.result == result


# --- saved in the middle of an accumulation -----------------------------------------------------------------------------------


def accumulated(job: Job, *, norms: tuple[float, ...] | None, passes: int = 2, saved: bool = True) -> Job:
    """The checkpoint of step 15 was saved after two of four backward passes; attempt 1 began its first step with ``passes``."""

    def change(file: watch.WatchFile, line: watch.Line) -> watch.Line:
        if isinstance(line, watch.Save):
            return dataclasses.replace(line, passes=2)
        if isinstance(line, watch.Saved) and saved:
            return dataclasses.replace(line, contents={**line.contents, "gradients": ["grads"]})
        if isinstance(line, watch.State):
            is_first = bool(file.attempt) and not line.n
            return dataclasses.replace(line, gradients=norms if is_first else (3.0, 1.0))
        if isinstance(line, watch.Step):
            is_first = bool(file.attempt) and line.n == 1
            return dataclasses.replace(line, passes=passes if is_first else 4)
        return line

    return changed(job, change)


@pytest.mark.parametrize(
    ("about", "result", "text"),
    [
        ({"norms": (3.0, 1.001)}, "pass", ""),
        (
            {"norms": (2.1, 1.0)},
            "fail",
            "those of step 16 are of 2 of 4 backward passes: those in grads were not loaded",
        ),
        ({"norms": (2.1, 1.0), "saved": False}, "fail", "2 of 4 backward passes: the checkpoint holds none"),
        ({"norms": None}, "unknown", "after 2 backward passes of a step"),
        ({"norms": (2.1, 1.0), "passes": 4}, None, ""),
    ],
    ids=str,
)
def test_gradients_that_were_accumulated_before_the_checkpoint_are_a_part_of_the_state(
    about: dict[str, Any], result: str | None, text: str
) -> None:
    job = changed(accumulated(right(), **about), dropped_weights)
    row = resumed(job).get("accumulated gradients")
    assert (row["result"] if row else None) == result
    assert row is None or text in row["text"]


@pytest.mark.parametrize(
    ("passes", "is_equal", "result"), [(4, False, None), (2, False, "unknown"), (2, True, "pass"), (0, False, None)]
)
def test_without_a_redone_step_the_reference_shows_whether_gradients_were_lost(
    passes: int, is_equal: bool, result: str | None
) -> None:
    """Killed in the step in whose middle it had saved: nothing recorded what that step was to begin with. 0: saved after a whole step."""
    job = Job().attempt(0, 0, 15).attempt(1, 15, 30, ends=True)
    job = accumulated(job, norms=None, passes=passes) if passes else job
    known = {str(rank): {"weights@16": digest("weights", 16 if is_equal else 99)} for rank in range(2)}
    twin = dataclasses.replace(reference({}), digests=known)
    evidence: Any = ask(dataclasses.replace(job.run(), twin=twin), "resume-complete").evidence
    row = evidence["rows"]["attempt 1"].get("accumulated gradients")
    assert (row["result"] if row else None) == result


def test_gradients_that_differ_beside_lost_random_states_are_unknown() -> None:
    job = changed(accumulated(wrong("rng"), norms=(2.1, 1.0)), dropped_weights)
    assert resumed(job)["accumulated gradients"]["result"] == "unknown"


def dropped_weights(file: watch.WatchFile, line: watch.Line) -> watch.Line:
    """The weights after the first redone step are not recorded."""
    return dataclasses.replace(line, weights=None) if isinstance(line, watch.State) and line.n == 1 else line


def resumed(job: Job) -> dict[str, dict[str, str]]:
    evidence: Any = ask(job.run(), "resume-complete").evidence
    return evidence["rows"]["attempt 1"]  # type: ignore[no-any-return]
