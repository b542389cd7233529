"""Pytest plugin: which tests run on one worker, and in which order. The tests of a file share beds; those that use the machine's
engine, lab or network follow each other on one worker, and so do those of Slurm.
"""

from __future__ import annotations

from typing import Any

import pytest

from . import durations

#: Fixtures of what a machine has once: its container engine, the image on it, the lab of hosts.
SHARED = {"engine", "image", "lab"}
#: Files that use them, or network namespaces with fixed names, beside those in tests/lab.
MACHINE = {
    "tests/contract/test_providers.py", "tests/e2e/test_create_requests.py", "tests/e2e/test_engine_of_host.py",
    "tests/e2e/test_docker_bed.py",
    "tests/e2e/test_docker_refused.py", "tests/e2e/test_fabric.py", "tests/e2e/test_fabric_faults.py", "tests/e2e/test_image.py",
    "tests/e2e/test_modes.py", "tests/e2e/collectives/test_mpi.py", "tests/e2e/test_podman_bed.py",
    "tests/e2e/test_prepare.py", "tests/e2e/test_proxies.py", "tests/e2e/test_registry.py", "tests/e2e/test_remote_bed.py",
    "tests/e2e/test_systemd_host.py",
}  # fmt: skip


def _uses_machine(nodeid: str) -> bool:
    file = nodeid.split("::", maxsplit=1)[0]
    return file in MACHINE or file.startswith("tests/lab/")


def scope(nodeid: str) -> str:
    """What runs on one worker together."""
    file = nodeid.split("::", maxsplit=1)[0]
    if file.startswith("tests/e2e/test_slurm_"):
        return "slurm"
    return "machine" if _uses_machine(nodeid) else file


def longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """What takes long begins early, so that no worker ends late. The order inside of a file stays."""
    sums: dict[str, float] = {}
    for file, seconds in durations.walls().items():
        sums[scope(file)] = sums.get(scope(file), 0.0) + seconds
    return sorted(items, key=lambda item: -sums.get(scope(item.nodeid), 0.0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    return Scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raises UsageError for files that use the machine and are not in the list."""
    users = {item.nodeid for item in items if not SHARED.isdisjoint(getattr(item, "fixturenames", ()))}
    missing = sorted({str(nodeid.split("::")[0]) for nodeid in users if not _uses_machine(nodeid)})
    if missing:
        raise pytest.UsageError(f"add to MACHINE in {__file__}, for they use its engine or lab: {', '.join(missing)}")
