"""A busy machine is no lost node: clean runs while every CPU is taken, and no false alarm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from . import trials
from .conftest import Bed

pytestmark = pytest.mark.e2e

#: Burns one CPU until its parent is gone.
BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100000))"


@pytest.fixture
def burners() -> Iterator[None]:
    count = min(2 * len(os.sched_getaffinity(0)), 16)  # a quota of CPU time is not known from that
    processes = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    yield
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("burners")
def test_a_clean_run_under_full_load_raises_no_alarm(bed: Bed) -> None:
    ran = bed.run(trials.dp(params={"epochs": 3}))
    assert ran.bad() == []
    assert [event.f for event in ran.of("node.silent", "gang.stalled", "recovery.decided")] == []


@pytest.mark.usefixtures("burners")
def test_a_failover_under_full_load_is_bit_exact(bed: Bed) -> None:
    assert bed.run(trials.dp(trials.crash(1))).bad() == []
