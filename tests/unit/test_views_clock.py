"""Which of two events came first, and when one cannot know."""

from __future__ import annotations

import math

import pytest

from orchestrator import views
from orchestrator.model.event import Clock, Event, History, Source

MEASURED = {"b": {"host": "h1", "offset_s": 500.0, "uncertainty_s": 0.01}}


def event_at(seq: int, boot: str, mono: float, t: float = 0.0, writer: str = "agent") -> Event:
    source = Source(writer=writer, n=seq)
    return Event(type="note", f="x", at=Clock(boot=boot, mono=mono, wall=0.0), source=source, seq=seq, t=t)


def times(clocks: object = MEASURED) -> views.Clocks:
    value = {"run": "r", "clocks": clocks}
    at = Clock(boot="a", mono=1000.0, wall=0.0)
    begin = Event(type="note", f="run.begin", at=at, source=Source(writer="ctl", n=1), seq=1, value=value)
    return views.clocks(History((begin,)))


def test_events_of_one_boot_are_ordered_by_its_clock() -> None:
    assert times().before(event_at(9, "b", 1.0), event_at(2, "b", 2.0)) is True
    assert times().before(event_at(2, "b", 2.0), event_at(9, "b", 1.0)) is False


@pytest.mark.parametrize(
    ("mono", "order"), [(502.0, True), (502.4, True), (502.495, None), (502.505, None), (502.6, False)]
)
def test_events_of_two_boots_are_ordered_outside_of_the_uncertainty(mono: float, order: bool | None) -> None:
    """The other happened at 1002.5 by the controller's clock."""
    assert times().before(event_at(2, "b", mono), event_at(3, "a", 1002.5)) is order


def test_a_clock_is_trusted_less_the_longer_ago_it_was_compared() -> None:
    assert times().uncertainty_s(event_at(2, "b", 500.0)) == pytest.approx(0.01)
    assert times().uncertainty_s(event_at(2, "b", 1500.0)) == pytest.approx(0.11)
    assert times().uncertainty_s(event_at(2, "a", 1500.0)) == 0.0
    assert times().uncertainty_s(event_at(2, "c", 1500.0)) == math.inf


def test_without_a_clock_only_what_had_arrived_when_the_controller_wrote_is_known_to_be_earlier() -> None:
    remote, decided = event_at(4, "c", 1.0), event_at(5, "a", 1001.0, writer="ctl")
    assert times().before(remote, decided) is True
    assert times().before(decided, remote) is False
    late = event_at(6, "c", 2.0)
    assert times().before(decided, late) is None, "it may have been on its way"
    assert times().before(remote, event_at(7, "d", 1.0)) is None


def test_an_event_is_placed_by_its_clock_where_that_was_compared_and_by_arrival_where_not() -> None:
    assert times().at(event_at(2, "a", 1003.0, t=9.0)) == 3.0
    assert times().at(event_at(2, "b", 503.0, t=9.0)) == 3.0
    assert times().at(event_at(2, "c", 503.0, t=9.0)) == 9.0


def test_what_is_no_measurement_is_passed_over() -> None:
    odds: tuple[object, ...] = (None, {}, {"b": {}}, {"b": {"offset_s": 1.0}}, {"b": {"uncertainty_s": 1.0}})
    for odd in odds:
        assert times(odd).at(event_at(2, "b", 503.0, t=9.0)) == 9.0
