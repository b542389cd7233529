"""Whoever asks this machine for something is not held up by what hangs."""

from __future__ import annotations

import threading
import time

import pytest

from orchestrator.providers.sites import within


def test_what_comes_in_time_comes_as_it_is() -> None:
    assert within(5.0, "look", lambda: 7) == 7
    with pytest.raises(ValueError, match="no"):
        within(5.0, "look", lambda: int("no"))


def test_what_hangs_is_not_waited_for_and_named() -> None:
    let, begun = threading.Event(), time.monotonic()
    with pytest.raises(TimeoutError, match=r"look on this machine has taken longer than 0\.05 s"):
        within(0.05, "look", lambda: let.wait(600))
    assert time.monotonic() - begun < 300
    let.set()
