"""Sweeps of four nodes on shaped links of 1 Gbit/s, as recorded beside 9 to 17 busy processes: what lasts is named, and nothing else."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path

import pytest

from orchestrator.collectives import views as collectives
from orchestrator.collectives.views import finding_text, stragglers
from orchestrator.model import events
from orchestrator.model.event import History
from orchestrator.model.frozen import replace
from orchestrator.model.run import Run
from orchestrator.store import bundle

RECORDS = Path(__file__).parents[2] / "golden/collectives/records"


@pytest.fixture
def recorded(tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    with tarfile.open(RECORDS / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return bundle.load(tmp_path)


def measured(run: Run) -> collectives.Measured:
    result = collectives.measured(run)
    assert result is not None
    return result


@pytest.mark.parametrize("recorded", ["slow-link"], indirect=True)
def test_a_node_that_sends_at_half_the_rate_is_named_by_its_link_and_its_rate(recorded: Run) -> None:
    """All-reduce by halving-doubling; the fault slowed n3's sending down after the probe, and held a rank in one iteration."""
    result = measured(recorded)
    assert {(link.sender, link.receiver) for link in result.stragglers.links} <= {(3, 1), (3, 2)}
    text = finding_text.straggler(result)
    assert "the link n3 to n1 carries 589.2 of 956.4 Mbit/s in 2 of 2 cases" in text
    assert "the probe found n3 -> n1 as fast as the others" in text, "they disagree, since the fault came later"
    assert not result.stragglers.late and not result.stragglers.stopped


@pytest.mark.parametrize("recorded", ["slow-receiver"], indirect=True)
def test_a_node_that_receives_at_half_the_rate_is_named_although_messages_to_it_overlap(recorded: Run) -> None:
    """All-to-all by pairwise, Bruck and direct: the next message to n1 was sent before the one from n0 had arrived."""
    result = measured(recorded)
    (link,) = result.stragglers.links
    assert (link.sender, link.receiver, link.cases, link.judged) == (0, 1, 4, 4)
    assert link.rate / link.usual == pytest.approx(0.5, abs=0.1)
    text = finding_text.straggler(result)
    assert "cannot tell n0's sending, n1's receiving and the wire apart" in text
    assert not result.stragglers.late and not result.stragglers.stopped


@pytest.mark.parametrize("recorded", ["clean"], indirect=True)
def test_a_clean_sweep_on_a_busy_machine_names_nobody_although_iterations_are_slow(recorded: Run) -> None:
    result = measured(recorded)
    assert not result.stragglers and not result.stragglers.probed
    assert finding_text.straggler(result).startswith("none (no rank and no link costs or takes 10 % more")
    assert finding_text.slow_iterations(result).startswith("5 of 80 iterations over 3 x p50, longest 48.4 ms")


@pytest.mark.parametrize("recorded", ["paused"], indirect=True)
def test_an_iteration_that_was_held_for_a_fault_is_left_out_and_the_paused_node_is_named(recorded: Run) -> None:
    result = measured(recorded)
    assert [stop.rank for stop in result.stragglers.stopped] == [0] and not result.stragglers.links
    assert "n0 did not run for 26 % of the time, at most 0.80 s at once" in finding_text.straggler(result)
    assert "1 held by ccbed for a fault, left out" in finding_text.slow_iterations(result)
    free = [event for event in recorded.history.events if not isinstance(event.data, events.RankHeld)]
    control = measured(replace(recorded, history=History(tuple(free))))
    assert (control.held, control.outliers) == (0, result.outliers + 1)


@pytest.mark.parametrize(
    ("recorded", "slow"),
    [("clean", set()), ("slow-link", {(3, 1), (3, 2)}), ("slow-receiver", {(0, 1), (2, 1), (3, 1)})],
    indirect=["recorded"],
)
def test_the_records_of_other_links_drawn_again_in_blocks_accuse_nobody(
    recorded: Run, slow: set[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, true = random.Random(1), stragglers.changes
    named: list[object] = []

    def drawn_anew(
        samples: dict[int, dict[object, list[float]]], *, is_relative: bool
    ) -> dict[object, stragglers.Changes]:
        for _ in range(20):
            blocks = {case: {who: resampled(own, drawn) for who, own in of.items()} for case, of in samples.items()}
            named.extend(who for who, change in true(blocks, is_relative=is_relative).items() if change.lasts)
        return true(samples, is_relative=is_relative)

    monkeypatch.setattr(stragglers, "changes", drawn_anew)
    measured(recorded)
    assert set(named) <= slow


def resampled(own: list[float], drawn: random.Random, length: int = 4) -> list[float]:
    """Blocks of successive iterations (Kuensch, Annals of Statistics 17, 1989)."""
    starts = [drawn.randrange(max(1, len(own) - length + 1)) for _ in range(0, len(own), length)]
    return [figure for start in starts for figure in own[start : start + length]][: len(own)]
