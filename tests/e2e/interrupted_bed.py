"""A test that another one interrupts (``test_pytest_interrupted.py``): it brings a bed up, and waits."""

from __future__ import annotations

import pytest

from .conftest import Bed
from .interrupted_server import report, wait


@pytest.fixture
def begun() -> None:
    report("begun")


def test_a_bed(begun: None, bed: Bed) -> None:
    report("bed")
    wait()
