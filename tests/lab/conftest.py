"""``make test-lab`` (CCBED_LAB=1) runs everything here; ``make test`` leaves out what is marked ``lab``: it takes minutes."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Left out by selection, not skipped: nothing is missing."""
    if os.environ.get("CCBED_LAB") == "1":
        return
    left_out = [item for item in items if item.get_closest_marker("lab")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("lab")]
