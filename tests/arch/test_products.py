"""The test-bed imports no product, and products do not import each other: what two of them need lies in the test-bed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

from orchestrator.model.plugin import PRODUCTS

from . import import_graph

ROOT = Path(__file__).parents[2]


def room_of(file: str) -> str:
    """The product of a file below ``orchestrator/``; empty for the test-bed."""
    return PurePath(file).parts[0] if PurePath(file).parts[0] in PRODUCTS else ""


def crossings() -> Iterator[tuple[str, str, str]]:
    """Importing product, importing file, imported file: of each import into another product."""
    folder = ROOT / "orchestrator"
    files = [file for file in folder.rglob("*.py") if "packages" not in file.parts]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    _, every = import_graph.graphs(texts)
    paths = {import_graph.name_of(file): file.partition("/")[2] for file in texts}
    for name, targets in every.items():
        for target in targets:
            if room_of(paths[target]) not in ("", room_of(paths[name])):
                yield room_of(paths[name]), paths[name], paths[target]


@pytest.fixture(scope="module")
def crossing_imports() -> list[tuple[str, str, str]]:
    return list(crossings())


def test_the_test_bed_imports_no_product(crossing_imports: list[tuple[str, str, str]]) -> None:
    assert [f"{file} -> {target}" for room, file, target in crossing_imports if not room] == []


def test_products_do_not_import_each_other(crossing_imports: list[tuple[str, str, str]]) -> None:
    assert [f"{file} -> {target}" for room, file, target in crossing_imports if room] == []


def test_the_rooms_are_told_apart() -> None:
    assert [room_of(file) for file in ("nightly/suite.py", "run/loop.py")] == ["nightly", ""]


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_page_of_a_product_lists_its_files(product: str) -> None:
    folder = ROOT / "orchestrator" / product
    files = {str(file.relative_to(folder)) for file in folder.rglob("*.py") if file.name != "__init__.py"}
    listed = set(re.findall(r"^\| \[([^\]]+)\]", (folder / "README.md").read_text(), re.MULTILINE))
    assert files - listed == set()
