"""Pytest plugin: CPU and wall seconds of each test, and the committed list of slow ones that `make durations` renews.

``durations.txt`` has a line for each function whose slowest test needs at least 0.1 s of CPU, its processes included, with the
fixtures that it alone would need (``0.43 tests/unit/test_x.py::test_y``), and one for each file of over a second of wall time
(``12.1 tests/e2e/test_z.py``).
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

SLOW_S = 0.1
LIST = Path(__file__).with_name("durations.txt")
_CALL = pytest.StashKey[float]()
_Row = tuple[str, float, float]


def function(nodeid: str) -> str:
    """``tests/unit/test_x.py::test_y`` of a test with parameters."""
    return nodeid.partition("[")[0]


@functools.cache
def _listed() -> Mapping[str, float]:
    lines = LIST.read_text().splitlines() if LIST.exists() else []
    return {name: float(seconds) for seconds, name in (line.split(" ", 1) for line in lines)}


def slow() -> set[str]:
    return {name for name in _listed() if "::" in name}


def walls() -> Mapping[str, float]:
    """Wall seconds by file, of those that take over one."""
    return {name: seconds for name, seconds in _listed().items() if "::" not in name}


def of_call(item: pytest.Item) -> float:
    """CPU seconds of the test's own body; 0 before it ended."""
    return item.stash.get(_CALL, 0.0)


def _cpu() -> float:
    """Of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


class _Record:
    """The rows of a worker, in a file of its own, so that a killed worker loses none."""

    def __init__(self) -> None:
        self._file = (
            None if (folder := os.environ.get("CCBED_DURATIONS")) is None else Path(folder) / f"{os.getpid()}.jsonl"
        )
        self._shared: dict[str, float] = {}

    def fixture(self, name: str, cpu_s: float) -> None:
        """Fixtures of a module or of the session are set up once, and all their tests need them."""
        self._shared[name] = max(cpu_s, self._shared.get(name, 0.0))

    def shared(self, names: Iterable[str]) -> float:
        return sum(self._shared.get(name, 0.0) for name in names)

    def add(self, row: _Row) -> None:
        if self._file:
            with self._file.open("a") as file:
                print(json.dumps(row), file=file)


_RECORD = _Record()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    before = _cpu()
    result = yield
    if fixturedef.scope != "function":
        _RECORD.fixture(f"{fixturedef.baseid}::{fixturedef.argname}", _cpu() - before)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    before = _cpu()
    try:
        return (yield)
    finally:
        item.stash[_CALL] = _cpu() - before


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    cpu, wall = _cpu(), time.monotonic()
    result = yield
    definitions = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    shared = [definition for several in definitions for definition in several if definition.scope != "function"]
    names = {f"{definition.baseid}::{definition.argname}" for definition in shared}
    _RECORD.add((item.nodeid, max(_cpu() - cpu, of_call(item) + _RECORD.shared(names)), time.monotonic() - wall))
    return result


def summarised(rows: Iterable[_Row]) -> str:
    """The content of the list, slowest first: functions by their slowest test, files by the sum of their tests."""
    cpu: dict[str, float] = defaultdict(float)
    wall: dict[str, float] = defaultdict(float)
    for nodeid, cpu_s, wall_s in rows:
        cpu[function(nodeid)] = max(cpu[function(nodeid)], cpu_s)
        wall[nodeid.split("::")[0]] += wall_s
    lines = [(seconds, name) for name, seconds in cpu.items() if seconds >= SLOW_S]
    lines += [(seconds, name) for name, seconds in wall.items() if seconds >= 1]
    return "".join(f"{seconds:.2f} {name}\n" for seconds, name in sorted(lines, key=lambda line: (-line[0], line[1])))


def renew(folder: Path) -> None:
    """Write the list from the records of a run."""
    rows = [tuple(json.loads(line)) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    root = LIST.parents[1]
    LIST.write_text(summarised(row for row in rows if (root / row[0].split("::")[0]).is_file()))


if __name__ == "__main__":
    import sys

    renew(Path(sys.argv[1]))
