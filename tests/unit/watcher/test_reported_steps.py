"""How often a rank reports its newest step: often at first and around its other events, later seldom."""

from __future__ import annotations

import time
from typing import Any

import pytest

from orchestrator.rank.watcher import live_steps, record
from orchestrator.rank.watcher.holds import stack_signal


class Rank:
    """A rank that makes a step each 0.1 s. ``reports``: (time, fields)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.other = 0.0, 0.0
        self.reports: list[tuple[float, dict[str, Any]]] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(stack_signal, "verify", lambda: None)
        monkeypatch.setattr(record, "notified_at", lambda: self.other)
        monkeypatch.setattr(record, "notify", lambda name, **fields: self.reports.append((round(self.now, 1), fields)))
        self._progress = live_steps.Progress()

    def steps_until(self, seconds: float) -> list[float]:
        """The times of the reports until then."""
        before = len(self.reports)
        while self.now < seconds:
            self.now += 0.1
            self._progress.report()
        return [at for at, _ in self.reports[before:]]


def test_steps_are_reported_often_for_a_minute_and_each_ten_seconds_later(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    assert 100 < len(rank.steps_until(60.0)) < 125
    assert all("pause_s" not in fields for _, fields in rank.reports)
    assert rank.reports[0][1]["mark"] == "first"
    assert len(rank.steps_until(160.0)) in (9, 10, 11)
    assert rank.reports[-1][1]["pause_s"] == live_steps.LATER_S
    assert len(rank.steps_until(100_000.0 / 10)) < 1000


def test_steps_are_reported_often_around_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    rank.steps_until(300.0)
    rank.other = rank.now
    reports = rank.steps_until(320.0)
    assert len([at for at in reports if at <= 306.0]) > 8
    assert len([at for at in reports if at > 306.0]) < 3


def test_steps_that_a_fault_waits_for_are_reported_often_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCBED_STEPS_AWAITED", "1")
    rank = Rank(monkeypatch)
    rank.steps_until(300.0)
    assert len(rank.steps_until(310.0)) > 15
    assert "pause_s" not in rank.reports[-1][1]
