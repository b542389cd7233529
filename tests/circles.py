"""Pytest plugin: which tests a run holds. ``--circle check``: the fast ones of the product's logic; ``--circle test``: everything
real once; no circle: everything. ``--part NAME``: what needs the same machine, so that parts can run side by side elsewhere.

``durations.txt`` says which tests are slow, ``axes.toml`` which ones only ``make test-all`` runs, and what stands for them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from . import durations, workers

CIRCLES = ("check", "test")
#: Part of `make test-all` -> its files, or folders. A file that is named nowhere belongs to "units" or, in tests/e2e, to "beds".
PARTS: Mapping[str, tuple[str, ...]] = {
    "containers": (
        "tests/contract/test_providers.py", "tests/e2e/test_create_requests.py", "tests/e2e/test_docker_bed.py",
        "tests/e2e/test_docker_refused.py", "tests/e2e/test_image.py", "tests/e2e/test_modes.py", "tests/e2e/collectives/test_mpi.py",
        "tests/e2e/test_podman_bed.py", "tests/e2e/test_proxies.py", "tests/e2e/test_registry.py",
    ),
    "hosts": (
        "tests/e2e/test_engine_of_host.py", "tests/e2e/test_fabric.py", "tests/e2e/test_fabric_faults.py",
        "tests/e2e/test_hosts_refused.py", "tests/e2e/test_keepers.py", "tests/e2e/test_many_keepers.py", "tests/e2e/test_prepare.py",
        "tests/e2e/test_remote_bed.py", "tests/e2e/slurm/test_reverse_link.py", "tests/e2e/test_systemd_host.py", "tests/e2e/test_vault.py",
    ),
    "slurm": (
        "tests/unit/slurm/",
        "tests/e2e/slurm/test_slurm_allocation.py", "tests/e2e/slurm/test_slurm_bed.py", "tests/e2e/slurm/test_slurm_losses.py",
        "tests/e2e/slurm/test_slurm_nights.py", "tests/e2e/slurm/test_slurm_power.py", "tests/e2e/slurm/test_slurm_queue.py",
    ),
    "attack": ("tests/attack/", "tests/e2e/test_killed_at_every_line.py"),
    "lab": ("tests/lab/",),
    "beds": ("tests/e2e/",),
    "units": ("tests/",),
}  # fmt: skip
#: What `make check` selects from.
OF_CHECK = ("tests/arch/", "tests/contract/", "tests/sim/", "tests/unit/")
#: Tests that `make check` always holds, however long they take.
WALLS = "tests/arch/test_walls.py"
#: A test of `make check` that needs more CPU seconds fails. It is ten times what `durations.txt` calls slow, since the first use of
#: a library costs most of a second, whichever test has it; `make durations` finds what lies between.
CHECK_S = 10 * durations.SLOW_S
AXES = Path(__file__).with_name("axes.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Tests that only `make test-all` runs: a file or ``file::function``, all parameters but ``keep``. ``because``: what proves
    the same in `make test`.
    """

    tests: str
    because: str
    keep: tuple[str, ...] = field(default=())

    def holds(self, nodeid: str) -> bool:
        """Whether the test belongs to the axis, kept or not."""
        return nodeid == self.tests or nodeid.startswith((f"{self.tests}[", f"{self.tests}::"))

    def leaves_out(self, nodeid: str) -> bool:
        return self.holds(nodeid) and not (self.keep and parameters_of(nodeid) in self.keep)


def axes() -> tuple[Axis, ...]:
    entries = tomllib.loads(AXES.read_text())["axis"]
    return tuple(Axis(**{**entry, "keep": tuple(entry.get("keep", ()))}) for entry in entries)


def stale(known: Iterable[Axis], nodeids: Iterable[str]) -> list[str]:
    """Axes without tests, and parameters to keep that no test has: the reader of the list would believe them."""
    nodeids = list(nodeids)
    parameters = {axis: {parameters_of(nodeid) for nodeid in nodeids if axis.holds(nodeid)} for axis in known}
    missing = [f"{axis.tests}: no such test" for axis, names in parameters.items() if not names]
    return missing + [
        f"{axis.tests}: no test has the parameters {name!r}"
        for axis, names in parameters.items()
        for name in axis.keep
        if names and name not in names
    ]


def parameters_of(nodeid: str) -> str:
    return nodeid.partition("[")[2].removesuffix("]")


def part_of(nodeid: str) -> str:
    return next(part for part, places in PARTS.items() if nodeid.startswith(places))


def left_out(nodeids: Iterable[str], circle: str, part: str) -> set[str]:
    """The tests that this circle and part do not hold. An empty circle, or part, holds all."""
    nodeids, slow, known = list(nodeids), durations.slow(), axes() if circle else ()
    return {
        nodeid
        for nodeid in nodeids
        if (part and part_of(nodeid) != part)
        or any(axis.leaves_out(nodeid) for axis in known)
        or (circle == "check" and not nodeid.startswith(OF_CHECK))
        or (circle == "check" and durations.function(nodeid) in slow and not nodeid.startswith(WALLS))
    }


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("circles")
    group.addoption("--circle", choices=CIRCLES, default="", help="what make check, or make test, holds")
    group.addoption("--part", choices=(*PARTS,), default="", help="one part of make test-all")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out by selection, not by skips: nothing is missing."""
    circle, part = config.getoption("--circle"), config.getoption("--part")
    outside = left_out((item.nodeid for item in items), circle, part)
    if circle == "test" and (wrong := stale(axes(), [item.nodeid for item in items])):
        raise pytest.UsageError(f"{AXES}: {'; '.join(wrong)}")
    if marker := {"check": "slow", "test": "check"}.get(circle):
        outside |= {item.nodeid for item in items if item.get_closest_marker(marker)}
    deselected = [item for item in items if item.nodeid in outside]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
    items[:] = workers.longest_first([item for item in items if item.nodeid not in outside])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In `make check`, a test that passes and is slow fails, with the marker to add."""
    report = yield
    is_exempt = item.get_closest_marker("check") or item.nodeid.startswith(WALLS)
    cpu_s = 0.0 if is_exempt else durations.of_call(item)
    if item.config.getoption("--circle") == "check" and report.when == "call" and report.passed and cpu_s > CHECK_S:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} needs {cpu_s:.2f} s of CPU, and a test of make check at most {durations.SLOW_S} s: make it faster, "
            "or mark it with @pytest.mark.slow, and it runs in make test"
        )
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Attacks: a twentieth of them where `make test-all` does not ask for all (tests/attack/scale.py)."""
    config.addinivalue_line(
        "markers", "check: a wall that needs a quiet machine; make check has it, make test does not"
    )
    config.addinivalue_line("markers", "slow: needs over 0.1 s of CPU; make check leaves it to make test")
    if config.getoption("--part") == "attack":
        os.environ.setdefault("CCBED_ATTACK_SCALE", "1")
