"""What sums in another order explain, and what they do not: losses, the moves of weights, and tensors that a job saves."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.model.run import Control
from orchestrator.views import training
from orchestrator.views.training import rounding
from orchestrator.views.training.redone_steps import Replay, share

from .test_redone_steps import facts, keys, reference
from .test_script_twins import restored, twin
from .watched_jobs import digest, right, wrong


def series(*pairs: tuple[float, float]) -> dict[int, tuple[float, float]]:
    return dict(enumerate(pairs, 21))


@pytest.mark.parametrize(
    ("losses", "least", "step"),
    [
        (series((1.0, 1.0), (1.0, 1.0 + 1e-7), (1.0, 1.0 + 5e-7)), rounding.LEAST, None),
        (series(*((1.0, 1.0 + 1e-7 * 3**k) for k in range(14))), rounding.LEAST, None),
        (series((1.0, 1.0), (1.0, 1.001)), rounding.LEAST, 22),
        (series((1.0, 1.0 + 1e-7), (1.0, 1.0 + 1e-7), (1.0, 1.01)), rounding.LEAST, 23),
        (series((1e-4, 1e-4), (1e-6, 1.1e-6)), rounding.LEAST, None),
        (series((1.0, 1.004), (1.0, 1.02)), rounding.LEAST_MIXED, None),
        ({}, rounding.LEAST, None),
    ],
    ids=["rounding", "a growth without a jump", "a jump", "a later jump", "near 0", "16 bits", "nothing"],
)
def test_a_jump_of_the_loss_is_no_rounding(
    losses: dict[int, tuple[float, float]], least: float, step: int | None
) -> None:
    assert rounding.jump(losses, least) == step


def moving(*errors: float, at: int = 20) -> dict[str, str]:
    """Sums of weights that move by 1000 in each step after ``at``, and by ``errors`` of that beside it."""
    digests = {f"weights@{at}": "same", f"sums@{at}": "5000000 7000000"}
    for n, error in enumerate(errors, 1):
        moved = round(1e6 * n * (1 + error))
        digests |= {f"weights@{at + n}": digest(moved), f"sums@{at + n}": f"{5000000 + moved} {7000000 - moved}"}
    return digests


@pytest.mark.parametrize(
    ("errors", "least", "step"),
    [
        ((1e-6, 2e-6, 5e-5), rounding.LEAST, None),
        ((1e-6, 2e-4, 1e-2), rounding.LEAST, None),
        ((0.5, 0.4, 0.3), rounding.LEAST, 21),
        ((1e-6, 1e-6, 0.02), rounding.LEAST, 23),
        ((0.01, 0.02, 0.05), rounding.LEAST_MIXED, None),
        ((0.28, 0.2, 0.2), rounding.LEAST_MIXED, 21),
    ],
    ids=["rounding", "a growth without a jump", "lost", "lost, acts later", "16 bits", "lost in 16 bits"],
)
def test_weights_that_differ_by_a_share_of_what_the_steps_changed_are_no_rounding(
    errors: tuple[float, ...], least: float, step: int | None
) -> None:
    """However small a rate makes the difference of a loss."""
    own = dataclasses.replace(facts({}), digests={"0": moving(*errors)})
    twin = dataclasses.replace(reference({}), digests={"0": moving(0.0, 0.0, 0.0)})
    beyond = rounding.beyond(own, twin, least)
    assert (beyond[0] if beyond else None) == step
    base, *moves = [[int(x) for x in v.split()] for n, v in moving(0.0, 0.0, 0.0).items() if n.startswith("sums@")]
    others = [[int(x) for x in v.split()] for n, v in moving(*errors).items() if n.startswith("sums@")][1:]
    shares = [share(base, first, second) for first, second in zip(moves, others, strict=True)]
    known: dict[str, Any] = {"rank": "r", "before": "a", "after": "b", "loss": None, "weights": None, "batches": True}
    replays = [Replay(step=n, share=value, **known) for n, value in enumerate(shares, 21)]
    why = rounding.unexplained(replays, least, repeats=False)
    assert bool(why) == (step is not None) and (not why or f"after step {step} differ on r by" in why)


def test_a_few_sums_of_noise_and_weights_that_do_not_move_show_nothing() -> None:
    assert share([0, 0, 0], [10, 20, 9], [10, 20, 1]) == 0.0
    assert share([5, 5], [5, 5], [5, 5]) == 0.0
    assert share([], [1], [1]) is None


@pytest.mark.parametrize(
    ("run", "control", "more", "result"),
    [
        (1e-6, 2e-6, {}, True),
        (1e-6, 0.0, {}, False),
        (1e-6, 0.5, {}, False),
        (0.5, 2e-6, {}, False),
        (1e-6, 2e-6, {"batch@21": "another"}, False),
        (None, 2e-6, {}, False),
    ],
    ids=["both round", "a restart changes nothing", "not the control", "not the run", "another batch", "no sums"],
)
def test_a_run_and_its_restart_control_may_round_in_different_ways(
    run: float | None, control: float, more: dict[str, str], result: bool
) -> None:
    """Sums depend on where the memory of a process lies: the bits of two restarts need not be equal."""
    own = moving(run or 1e-6, 2e-6, 2e-6) | more
    own = {name: value for name, value in own.items() if run is not None or not name.startswith("sums@")}
    restarted = Control(
        run="c", base=20, losses={}, digests={"0": moving(control, control, control) | {"batch@21": "b"}}
    )
    twin = dataclasses.replace(
        reference({}), digests={"0": moving(0.0, 0.0, 0.0) | {"batch@21": "b"}}, control=restarted
    )
    assert rounding.is_as_restarted(dataclasses.replace(facts({}), digests={"0": own}), twin, rounding.LEAST) is result


@pytest.mark.parametrize(
    ("norm", "sampler", "result"), [("1.50000012", "s", "pass"), ("0.9", "s", "fail"), ("1.5", "t", "fail")]
)
def test_where_an_optimizer_has_no_states_tensors_beside_it_may_round(norm: str, sampler: str, result: str) -> None:
    """A momentum that the job keeps by itself, at a rate that loses its last bits in the weights."""
    own = keys("b", tensors__momentum="m", norms__tensors__momentum__0=f'"={norm}"', other__sampler=sampler)
    other = keys("b", tensors__momentum="n", norms__tensors__momentum__0='"=1.5"', other__sampler="s")
    row = training.saved_state.row(facts({"30": own}), reference({"30": other}), rounds=True)
    assert row is not None and row.result == result
    exact = training.saved_state.row(facts({"30": own}), reference({"30": other}), rounds=False)
    assert exact is not None and exact.result == "fail"


@pytest.mark.parametrize(
    ("ema", "weight", "result"),
    [(1.00001, 2.0, "fail"), (1.0000201, 2.0, "pass"), (1.00001, 2.00001, "pass")],
    ids=["began anew", "rounding", "as the weights"],
)
def test_an_average_that_began_anew_shows_however_small_the_rate_is(ema: float, weight: float, result: str) -> None:
    """Its norms went from 1 to 1.00002 in the reference run, in a checkpoint whose optimizer rounds."""

    def saved(step: int, ema: float, weight: float, moment: str) -> dict[str, dict[str, str]]:
        norms = {f"norms__tensors__ema__{n}": f'"={ema}"' for n in range(3)} | {"norms__weights__w": f'"={weight}"'}
        digests = {"tensors__ema": moment, "optimizer__exp_avg": moment}
        return {str(step): keys("b", **digests, **norms)}

    start = saved(20, 1.0, 2.0, "m")
    twin = reference({**start, **saved(30, 1.00002, 2.0, "n")})
    row = training.saved_state.row(facts({**start, **saved(30, ema, weight, "o")}), twin, rounds=True)
    assert row is not None and row.result == result


def test_a_job_that_draws_other_data_in_each_run_shows_nothing_with_its_random_states_put_back() -> None:
    """Unseeded jobs begin otherwise each time: the restarted reference differs from the undisturbed one whatever was lost."""
    other, job = twin(), wrong("rng")
    digests = {
        rank: {name: f"other {value}" if name.startswith("batch@") else value for name, value in own.items()}
        for rank, own in other.digests.items()
    }
    for undisturbed, outcome in ((other, "pass"), (dataclasses.replace(other, digests=digests), "unknown")):
        lines, control_of = training.lineage_of(job.run()), dataclasses.replace(undisturbed, control=restored(right()))
        result, why, _ = training.saved_state.put_back(lines, training.kept_facts(lines), control_of)
        assert (result, "does not repeat its own steps" in why) == (outcome, outcome == "unknown")
