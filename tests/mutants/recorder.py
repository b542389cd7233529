"""A pytest plugin that writes the coverage map: for each file of tests, which lines of the product each test function runs.

Loaded by ``-p tests.mutants.recorder`` in a copy of the tree; CCBED_MUTANTS_MAP is the directory that it writes to. All
parameters of a test are one function, with its fixtures. One of which any item failed or was skipped is left out.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).parents[2]


def function_of(nodeid: str) -> str:
    """``tests/unit/test_a.py::test_b[c]`` -> ``tests/unit/test_a.py::test_b``."""
    return nodeid.partition("[")[0]


class Recorder:
    """A context of coverage.py for each test function, and its CPU seconds: a busy machine makes none of them longer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: dict[str, float] = defaultdict(float)
        self.unusable: set[str] = set()
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=[f"{ROOT}/orchestrator/*"])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        test, begin = function_of(item.nodeid), sum(os.times()[:4])
        self.coverage.switch_context(test)
        try:
            return (yield)
        finally:
            self.seconds[test] += sum(os.times()[:4]) - begin

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.unusable.add(function_of(report.nodeid))

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        lines = self._lines()
        files: dict[str, dict[str, object]] = defaultdict(dict)
        for test, seconds in self.seconds.items():
            tests = files[test.partition("::")[0]]
            if test not in self.unusable:
                tests[test] = {"seconds": round(seconds, 3), "lines": lines[test]}
        for file, tests in files.items():
            (self.folder / f"{file.replace('/', '.')}.json").write_text(json.dumps(tests))

    def _lines(self) -> dict[str, dict[str, list[int]]]:
        """Test -> file of the product -> lines."""
        data = self.coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for file in data.measured_files():
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    lines[test][str(Path(file).relative_to(ROOT))].append(line)
        return lines


def pytest_configure(config: pytest.Config) -> None:
    """With several workers, only these record."""
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Recorder(Path(os.environ["CCBED_MUTANTS_MAP"])))
