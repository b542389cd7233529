"""The test-bed imports no product, and products do not import each other: what two of them need lies in the test-bed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

from orchestrator.model.plugin import PRODUCTS

from . import import_graph

ROOT = Path(__file__).parents[2]
#: Files of products that lie in folders of the test-bed.
ELSEWHERE = {
    "nightly": (
        "app/nightly/*", "app/repeats.py", "app/nightly/spare_probe.py", "app/collectives/sweep*.py", "cli/render/night_lines.py",
        "cli/render/trend_view.py", "cli/render/sweep_view.py", "cli/render/repeats_view.py",
        *(f"cli/verbs/{verb}.py" for verb in ("accept", "baseline", "nightly", "quarantine", "trend", "runs", "sweep")),
    ),
    "slurm": ("app/slurm/*", "providers/slurm/*", "providers/reverse_link/*"),
    "collectives": (
        "app/collectives/*", "cli/render/collective.py", "cli/render/size_view.py", "cli/verbs/size.py", "core/sizing/*",
        "core/sizing/trace_readers/*", "views/collectives/*", "rank/collective/*", "rank/open_mpi/*", "rank/replay/*",
        "workloads/collective.py", "workloads/emulate.py", "checkers/results_exact.py", "checkers/times_possible.py",
        "checkers/gaps_kept.py", "reports/collectives.py", "reports/plots.py", "reports/page/plots/*",
        *(f"reports/page/{name}.py" for name in ("collective", "nccl", "nccl_table", "sheet")),
    ),
}  # fmt: skip
#: Files of the test-bed that lie in the folder of a product.
OF_TEST_BED = ("nightly/culprits/quarantine.py",)
#: The types of what follows a night.
EXCEPT = ("app/observers.py",)


def room_of(file: str) -> str:
    """The product of a file below ``orchestrator/``; empty for the test-bed."""
    path = PurePath(file)
    if file in OF_TEST_BED:
        return ""
    listed = (name for name, patterns in ELSEWHERE.items() if any(path.match(pattern) for pattern in patterns))
    return path.parts[0] if path.parts[0] in PRODUCTS else next(listed, "")


def crossings() -> Iterator[tuple[str, str, str]]:
    """Importing product, importing file, imported file: of each import into another product."""
    folder = ROOT / "orchestrator"
    files = [file for file in folder.rglob("*.py") if "packages" not in file.parts]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    _, every = import_graph.graphs(texts)
    paths = {import_graph.name_of(file): file.partition("/")[2] for file in texts}
    for name, targets in every.items():
        for target in targets:
            if room_of(paths[target]) not in ("", room_of(paths[name])) and paths[name] not in EXCEPT:
                yield room_of(paths[name]), paths[name], paths[target]


@pytest.fixture(scope="module")
def crossing_imports() -> list[tuple[str, str, str]]:
    return list(crossings())


def test_the_test_bed_imports_no_product(crossing_imports: list[tuple[str, str, str]]) -> None:
    assert [f"{file} -> {target}" for room, file, target in crossing_imports if not room] == []


def test_products_do_not_import_each_other(crossing_imports: list[tuple[str, str, str]]) -> None:
    assert [f"{file} -> {target}" for room, file, target in crossing_imports if room] == []


def test_the_rooms_are_told_apart() -> None:
    assert [room_of(file) for file in ("nightly/suite.py", "views/collectives/table.py", "run/loop.py")] == [
        "nightly",
        "collectives",
        "",
    ]
