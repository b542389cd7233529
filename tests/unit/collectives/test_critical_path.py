"""The critical path of an iteration: its parts add up, and lie where the time was lost."""

from __future__ import annotations

import pytest

from orchestrator.collectives import views as collectives
from orchestrator.collectives.views import dependencies, gaps, phrases
from orchestrator.collectives.views.dependencies import Part

from .. import simulated
from ..simulated import Gang
from . import collective_runs
from .test_collective_stragglers import MAKERS, lasts

np = pytest.importorskip("numpy")


def paths(gang: Gang, iterations: int = 10) -> tuple[collectives.Measured, list[tuple[float, list[Part]]]]:
    """The measurement, and (seconds from first start to last end, parts) of each iteration."""
    part = collective_runs.Part(operation="x", algorithm="y", bytes=971_048, gang=gang, iterations=iterations)
    run = collective_runs.run([part], world=len(gang.schedules))
    measured = collectives.measured(run)
    assert measured is not None
    spans, _, moved = measured.data[0]
    assert moved is not None
    pattern = dependencies.pattern(moved, spans, None)
    assert pattern is not None
    rows, known = dependencies.rows(moved, spans), gaps.gaps(run.files.steps(), measured.setting)
    whole = spans.end.max(axis=1) - spans.start.min(axis=1)
    return measured, [
        (float(whole[row]), dependencies.path(pattern, moved, rows, row, known)) for row in range(len(rows))
    ]


def seconds(parts: list[Part], kind: str, *ends: int) -> float:
    return sum(part.seconds for part in parts if part.kind == kind and {part.rank, part.sender} >= set(ends))


@pytest.mark.parametrize("naps", [{}, {1: (0.05, 0.05)}])
@pytest.mark.parametrize("name", MAKERS)
def test_the_parts_add_up_to_the_time_of_the_iteration(name: str, naps: dict[int, tuple[float, float]]) -> None:
    _, known = paths(Gang(schedules=MAKERS[name](), naps=naps, watched=True))
    for whole, parts in known:
        assert sum(part.seconds for part in parts) == pytest.approx(whole, rel=1e-6)
        assert all(part.seconds >= 0 and part.kind in dependencies.KINDS for part in parts)


def test_a_clean_iteration_is_transfer() -> None:
    measured, known = paths(Gang(schedules=MAKERS["ring all-reduce"](), watched=True))
    assert all(seconds(parts, "transfer") > 0.95 * whole for whole, parts in known)
    assert phrases.path(measured) == "critical path: 100 % transfer"


def test_the_time_in_which_a_rank_did_not_run_is_a_part_of_its_own() -> None:
    name = "ring all-reduce"
    gang = Gang(schedules=MAKERS[name](), stops={4: (2, 0.4 * lasts(name), 1.0)}, watched=True)
    _, known = paths(gang)
    assert [round(seconds(parts, "not running", 2), 1) for _, parts in known] == [0, 0, 0, 1.0, 0, 0, 0, 0, 0, 0]


def test_a_late_start_and_time_between_messages_are_told_from_transfer() -> None:
    _, known = paths(Gang(schedules=MAKERS["ring all-reduce"](), drowsy={3: 0.01}, buffered=1 << 10))
    assert all(seconds(parts, "between messages", 3) > 0.008 for _, parts in known)
    _, known = paths(Gang(schedules=MAKERS["ring all-reduce"](), stops={1: (0, -0.01, 0.5)}))
    assert seconds(known[0][1], "late start", 0) == pytest.approx(0.49, abs=0.01)


def test_a_slow_link_takes_most_of_the_path() -> None:
    _, known = paths(Gang(schedules=simulated.ring(4, 971_048), slow={(1, 2): 0.25}))
    assert all(seconds(parts, "transfer", 1, 2) > 0.5 * whole for whole, parts in known)


def test_nothing_is_said_without_records() -> None:
    part = collective_runs.Part(
        operation="x",
        algorithm="library",
        bytes=971_048,
        gang=Gang(schedules=MAKERS["ring all-reduce"]()),
        recorded=False,
    )
    measured = collectives.measured(collective_runs.run([part]))
    assert measured is not None
    assert phrases.path(measured) == ""
