"""ccbed itself needs neither torch nor matplotlib: a machine that only drives hosts, or reads bundles, has neither."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.store import seal

from .collectives import collective_runs

ROOT = Path(__file__).parents[2]
#: Hides the modules of the first argument, as if they were not installed, then runs ccbed.
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
from orchestrator.cli.main import main
sys.argv[0:2] = ["ccbed"]
sys.exit(main())
"""


def ccbed(state: Path, *args: str, hidden: str = "torch,matplotlib") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, hidden, *args],
        cwd=ROOT, env={**os.environ, "XDG_STATE_HOME": str(state)}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed run of collectives, whose report has pictures. Of format 1: its plan lists no checks."""
    run = collective_runs.reference()
    about: dict[str, object] = {**run.extras["bundle.json"], "format": 1}
    run = replace(run, extras={**run.extras, "bundle.json": about})
    directory = collective_runs.write(run, tmp_path_factory.mktemp("runs") / "r")
    seal.seal(directory)
    return directory


@pytest.mark.parametrize(
    "words", [("list",), ("plan", "inventories/local.yml"), ("size", "--model", "gpt2-124m"),
              ("run", "dp-ring", "--help"), ("status",)]
)  # fmt: skip
def test_what_needs_no_rank_works_without_torch(words: tuple[str, ...], tmp_path: Path) -> None:
    code, output, errors = ccbed(tmp_path, *words)
    assert (code, errors) == (0, ""), output


def test_a_bundle_is_judged_and_reported_without_torch_and_its_plots_need_matplotlib(
    bundle: Path, tmp_path: Path
) -> None:
    code, _, errors = ccbed(tmp_path, "check", str(bundle))
    assert (code, "Traceback" in errors) == (1, False), errors
    verdicts = (bundle / "verdicts.json").read_bytes()
    page = (bundle / "report/index.html").read_text()
    assert 'data-chart="times"' in page
    code, _, errors = ccbed(tmp_path, "report", str(bundle), "--plots")
    assert code == 3 and "--plots: matplotlib is not installed" in errors
    assert not list(bundle.glob("report/plots/*"))
    assert not list(bundle.glob("report/*-failed.txt"))
    assert importlib.util.find_spec("matplotlib"), "the control: with it there are plots, and the verdicts are the same"
    ccbed(tmp_path, "report", str(bundle), hidden="none")
    assert (bundle / "report/index.html").read_text() == page
    assert not list(bundle.glob("report/plots/*"))
    ccbed(tmp_path, "report", str(bundle), "--plots", hidden="none")
    assert list(bundle.glob("report/plots/*.png"))
    assert (bundle / "verdicts.json").read_bytes() == verdicts


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (
            ("size", "--model", "torch.nn:Identity"),
            3,
            "reading a torch module needs torch, which is not installed here",
        ),
        (("size", "--model", "transformer"), 3, "--layers"),
    ],
)
def test_what_needs_torch_says_so_with_the_next_step(
    words: tuple[str, ...], code: int, problem: str, tmp_path: Path
) -> None:
    result, _, errors = ccbed(tmp_path, *words)
    assert (result, "Traceback" in errors) == (code, False)
    assert problem in errors
    assert ("ccbed[local]" in errors) == ("torch module" in problem)
