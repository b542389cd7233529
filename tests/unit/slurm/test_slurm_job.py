"""The Slurm job of a bed: its time limit, its options, its hosts, and the command line that submits it."""

from __future__ import annotations

import pytest

from orchestrator.model.bed import SlurmSpec
from orchestrator.slurm import cluster as slurm_job
from orchestrator.slurm import inventory_variables as slurm_options


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("30m", 1800), ("2h", 7200), ("1.5h", 5400), ("2d", 172800), ("90s", 90), ("30:00", 1800), ("1:30:00", 5400),
        ("12:00:00", 43200), ("1-06", 108000), ("1-06:30", 109800), ("1-06:30:15", 109815), ("100:00:00", 360000),
    ],
)  # fmt: skip
def test_a_time_limit_is_what_slurm_makes_of_it(text: str, expected_s: int) -> None:
    assert slurm_options.time_s(text) == expected_s
    assert slurm_options.time_s(slurm_options.format_time(expected_s)) == expected_s


@pytest.mark.parametrize(
    "value", [90, 90.5, "90", True, None, "", "1:60:00", "1-24:00", "1:2:3:4", "0:30", "366d", "2 weeks"]
)
def test_a_time_limit_that_could_mean_something_else_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match="must be a time"):
        slurm_options.time_s(value)


@pytest.mark.parametrize("name", [*slurm_options.RESERVED, "--nodes"])
def test_an_option_that_ccbed_sets_is_rejected_with_what_to_write_instead(name: str) -> None:
    with pytest.raises(ValueError, match=r"ccbed sets it or relies on it; (set ccbed_|remove it|the job is called)"):
        slurm_options.options({name: "1"})


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("commen", "comment"),
        ("no-s", "no-shell"),
        ("ui", "uid"),
        ("job-n", "job-name"),
        ("chdi", "chdir"),
        ("nod", "nodes"),
    ],
)
def test_an_abbreviation_of_an_option_that_ccbed_sets_is_rejected(name: str, option: str) -> None:
    with pytest.raises(
        ValueError, match=f"{name} is not allowed here: Slurm reads it as {option}: ccbed sets it or relies on it; "
    ):
        slurm_options.options({name: "1"})
    assert slurm_options.options({"mem": "1G", "exclusive": True, "time-min": "10:00", "nodes-per-x": "1"})


def test_options_keep_their_order_and_flags_have_no_value() -> None:
    spec = SlurmSpec(nodes=4, options={"partition": "gpu"} | slurm_options.options({"--mem": "64G", "exclusive": True}))
    assert slurm_job.job_options(spec, "lab", "c") == [
        "--job-name=ccbed-lab", "--comment=c", "--nodes=4", "--partition=gpu", "--mem=64G", "--exclusive",
    ]  # fmt: skip
