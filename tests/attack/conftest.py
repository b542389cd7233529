"""Attacks are counted, and the counts are printed with their seed at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import scale

_LINES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def tally(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Adds a line to the summary, such as ``500 edits: 481 noticed``."""
    return request.config.stash.setdefault(_LINES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section(f"attacks (seed {scale.SEED}, scale {scale.SCALE:g})")
        for line in lines:
            terminalreporter.write_line(line)
