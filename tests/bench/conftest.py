"""A warm bed of this machine's processes, up for the whole of the measurements and gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .bed import Bed


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    bench_bed = Bed(tmp_path_factory.mktemp("bed"))
    bench_bed.call("up", str(bench_bed.inventory))
    try:
        yield bench_bed
    finally:
        bench_bed.call("down", "local", expect=None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.bench)
            if item.get_closest_marker("timeout") is None:  # a marker of the item would count before that of its module
                item.add_marker(pytest.mark.timeout(1200))
