"""A product can be removed: what is left is imported, and the command line says what is not there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.model.plugin import PRODUCTS

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, pkgutil, sys
import orchestrator
from orchestrator.cli import main
heavy = ("orchestrator.rank", "orchestrator.collectives.rank")
for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
    if not module.name.startswith(heavy) and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
sys.exit(main.run(sys.argv[1:]))
"""
#: Product -> a command that needs it, and what the error says.
NEEDS = {
    "jobs": (["judge", "."], "judge: tools for your own jobs are not installed"),
    "collectives": (["size"], "size: measurements of collectives are not installed"),
    "nightly": (["nightly", "quick"], "nightly: nights are not installed"),
    "slurm": (["plan", "inventories/slurm.yml"], "beds of Slurm are not installed"),
}


def without(directory: Path, *products: str) -> Path:
    """A copy of the package without these products."""
    left_out = {str(ROOT / "orchestrator" / product) for product in products}
    shutil.copytree(
        ROOT / "orchestrator", directory / "orchestrator",
        ignore=lambda folder, names: {name for name in names if name == "__pycache__" or f"{folder}/{name}" in left_out},
    )  # fmt: skip
    shutil.copytree(ROOT / "inventories", directory / "inventories")
    return directory


def ccbed(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *args], cwd=directory, capture_output=True, text=True, timeout=900, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(directory), "XDG_STATE_HOME": str(directory / "state")},
    )  # fmt: skip


@pytest.mark.parametrize("product", PRODUCTS)
def test_without_a_product_the_rest_is_whole_and_its_verbs_say_what_is_missing(product: str, tmp_path: Path) -> None:
    command, message = NEEDS[product]
    result = ccbed(without(tmp_path, product), *command)
    assert (result.returncode, message in result.stderr, "Traceback" in result.stderr) == (3, True, False), (
        result.stderr
    )


def test_without_any_product_help_shows_the_verbs_that_are_left(tmp_path: Path) -> None:
    result = ccbed(without(tmp_path, *PRODUCTS), "--help")
    assert result.returncode == 0, result.stderr
    assert "  resume " in result.stdout
    assert "  nightly " not in result.stdout
