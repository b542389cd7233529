"""For all tests: CCBED_REQUIRE=all turns a skipped test into a failed one, and files that share the machine run on one worker."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

#: Fixtures of what a machine has once: its container engine, the image on it, the lab of hosts.
SHARED = {"engine", "image", "lab"}
#: Files that use them, or network namespaces with fixed names, beside those in tests/lab.
MACHINE = {
    "tests/contract/test_providers.py", "tests/e2e/test_create_requests.py", "tests/e2e/test_dial.py",
    "tests/e2e/test_docker_bed.py",
    "tests/e2e/test_docker_refused.py", "tests/e2e/test_fabric.py", "tests/e2e/test_fabric_faults.py", "tests/e2e/test_image.py",
    "tests/e2e/test_modes.py", "tests/e2e/test_mpi.py", "tests/e2e/test_podman_bed.py",
    "tests/e2e/test_prepare.py", "tests/e2e/test_proxies.py", "tests/e2e/test_registry.py", "tests/e2e/test_remote_bed.py",
    "tests/e2e/test_slurm_bed.py", "tests/e2e/test_systemd_host.py",
}  # fmt: skip
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


def _uses_machine(nodeid: str) -> bool:
    file = nodeid.split("::", maxsplit=1)[0]
    return file in MACHINE or file.startswith("tests/lab/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers, the tests of a file run on one of them, because they share beds, and those that use the machine's
    engine, lab or network on the same one.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "machine" if _uses_machine(nodeid) else nodeid.split("::", maxsplit=1)[0]

    return Scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raises UsageError for files that use the machine and are not in the list."""
    users = {item.nodeid for item in items if not SHARED.isdisjoint(getattr(item, "fixturenames", ()))}
    missing = sorted({str(nodeid.split("::")[0]) for nodeid in users if not _uses_machine(nodeid)})
    if missing:
        raise pytest.UsageError(f"add to MACHINE in {__file__}, for they use its engine or lab: {', '.join(missing)}")
