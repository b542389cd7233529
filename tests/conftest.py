"""For all tests: CCBED_REQUIRE=all turns a skipped test into a failed one, and files that share the machine run on one worker."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

#: Fixtures of what a machine has once: its container engine, the image on it, the lab of hosts.
SHARED = {"engine", "image", "lab"}
REQUIRED = "CCBED_REQUIRE=all, but this was skipped: "


def _reason(longrepr: Any) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Expected failures (xfail) count as skipped for pytest; they stay what they are."""
    if os.environ.get("CCBED_REQUIRE") == "all" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = REQUIRED + _reason(report.longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers, the tests of a file run on one of them: they share its beds. Files that use the machine's engine,
    lab or network namespaces (mark ``root``) run on the same worker, one after the other.
    """
    machine = {item.path for item in items if _uses_machine(item)}
    for item in items:
        item.add_marker(pytest.mark.xdist_group("machine" if item.path in machine else str(item.path)))


def _uses_machine(item: pytest.Item) -> bool:
    is_of_root = item.get_closest_marker("root") is not None or "lab" in item.path.parts
    return is_of_root or not SHARED.isdisjoint(getattr(item, "fixturenames", ()))
