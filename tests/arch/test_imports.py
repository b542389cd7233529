"""Who may import whom, and what the orchestrator must never load."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import orchestrator

ROOT = Path(__file__).parents[2]
#: What runs inside a rank may import torch; workloads must not before they run, for the orchestrator reads their Params.
IN_A_RANK = ("orchestrator.rank", "orchestrator.collectives.rank")
HEAVY = ("torch", "numpy", "matplotlib", "ansible", "ansible_runner")

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
print(*sorted(set(sys.argv[1].split(",")) & set(sys.modules)))
"""


def modules() -> list[str]:
    names = (module.name for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."))
    return [name for name in names if not name.startswith(IN_A_RANK) and not name.endswith("__main__")]


def heavy_after(names: list[str], heavy: tuple[str, ...]) -> str:
    """Which of ``heavy`` are loaded after these modules were imported in a fresh interpreter."""
    command = [sys.executable, "-c", IMPORT_ALL, ",".join(heavy), *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_layers_hold() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program], capture_output=True, text=True, cwd=ROOT, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_orchestrator_imports_no_torch() -> None:
    assert heavy_after(modules(), HEAVY) == ""


def test_the_check_for_torch_can_fail() -> None:
    assert heavy_after(["json"], ("json",)) == "json"


def test_a_run_of_no_collectives_loads_none_of_their_views_and_no_library_of_them() -> None:
    names = [
        "orchestrator.cli.verbs.run_verb",
        "orchestrator.run",
        "orchestrator.reports.html",
        "orchestrator.reports.summary",
    ]
    assert (
        heavy_after(
            names,
            ("orchestrator.collectives.views", "orchestrator.collectives.rank.mpi", "orchestrator.cli.verbs.up_verb"),
        )
        == ""
    )
