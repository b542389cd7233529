"""For all tests: CCBED_TESTS_REQUIRE=all turns a skipped test into a failed one."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

REQUIRED = "CCBED_TESTS_REQUIRE=all, but this was skipped: "


def _reason(longrepr: Any) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Expected failures (xfail) count as skipped for pytest; they stay what they are."""
    if os.environ.get("CCBED_TESTS_REQUIRE") == "all" and report.skipped and not hasattr(report, "wasxfail"):
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
