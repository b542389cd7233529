"""Paths in a script's arguments that each run has for itself, and that reference runs have in place of the user's."""

from __future__ import annotations

import pytest

from orchestrator.core.spec import own_paths
from orchestrator.workloads import script

PARAMS = {"args": ("--out", "{out}/a", "--log={out}"), "map": ("/ckpt=/scratch/", "/data/out=/scratch")}


def test_each_run_has_outputs_of_its_own_and_a_reference_run_has_the_mapped_paths_as_well() -> None:
    run = own_paths.of_run(PARAMS, "/runs/r1/out", "r1", is_reference=False)
    assert run == {"{out}": "/runs/r1/out"}
    assert own_paths.applied(PARAMS, run)["args"] == ("--out", "/runs/r1/out/a", "--log=/runs/r1/out")
    reference = own_paths.of_run(PARAMS, "/runs/r2/out", "r2", is_reference=True)
    assert reference == {"/ckpt": "/scratch/r2", "/data/out": "/scratch/r2", "{out}": "/runs/r2/out"}
    assert own_paths.of_run({"args": ("x",)}, "/runs/r1/out", "r1", is_reference=True) == {}


@pytest.mark.parametrize(
    ("word", "mapped"),
    [
        ("/ckpt", "/s/r2"), ("/ckpt/a.pt", "/s/r2/a.pt"), ("--out=/ckpt/a", "--out=/s/r2/a"), ("+dir='/ckpt'", "+dir='/s/r2'"),
        ("/ckpt2/a", "/ckpt2/a"), ("/my/ckpt", "/my/ckpt"), ("ckpt/a", "ckpt/a"), ("~/ckpt", "~/ckpt"),
        ("/ckpt-old", "/ckpt-old"), ("a:/ckpt:/b", "a:/s/r2:/b"),
    ],
)  # fmt: skip
def test_a_path_is_mapped_with_what_is_below_it(word: str, mapped: str) -> None:
    assert own_paths.applied({"args": (word,), "exec_": ()}, {"/ckpt": "/s/r2"})["args"] == (mapped,)


@pytest.mark.parametrize("text", ["ckpt=/scratch", "/ckpt", "/ckpt=scratch"])
def test_a_mapping_names_two_absolute_paths(text: str) -> None:
    params = script.Params(file="/a.py", map=(text,))
    assert script.check(params) == [f"map: must be /PATH=/DIRECTORY (got {text!r})"]
