"""A chunk file that is not what its rank wrote leaves bundle-complete unknown, and says which and how much."""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from orchestrator.model.event import History
from orchestrator.model.run import Run
from orchestrator.model.verdict import Verdict
from orchestrator.store.recorded_files import CHUNK_FORMAT
from orchestrator.views import transfers

from . import history
from .verdicts import ask

RING = 6
BLOCK = RING * transfers.RECORD
WHERE = "nodes/n1/i1-e0/chunks-r1.bin"


@dataclass
class Files(history.Files):
    """With chunk files."""

    blocks: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def chunk_blocks(self) -> Iterator[tuple[str, int, int, bytes]]:
        for (epoch, rank), content in self.blocks.items():
            yield f"n{rank}", rank, epoch, content


def record(step: int, index: int = 0) -> bytes:
    return struct.pack(CHUNK_FORMAT, step, 0, index, 0, 0, 1000, 1.0, 2.0)


def left(run: Run) -> dict[tuple[int, int], bytes]:
    """What a ring leaves of every step of ``run``."""
    blocks: dict[tuple[int, int], bytes] = {}
    for entry in run.files.steps():
        key = (entry.epoch, entry.rank)
        blocks[key] = blocks.get(key, b"") + b"".join(record(entry.step, index) for index in range(RING))
    return blocks


def _text(run: Run, path: str) -> str:
    _, node, directory, name = path.split("/")
    return run.files.log(node, int(name[5:-4]), int(directory.split("-e")[1])) if name.startswith("rank-") else ""


def judged(run: Run, blocks: dict[tuple[int, int], bytes]) -> Verdict:
    texts = {path: _text(run, path) for path in run.files.paths()}
    files = Files(records=list(run.files.steps()), texts=texts, blocks=blocks)
    return ask(dataclasses.replace(run, files=files), "bundle-complete")


@pytest.fixture
def run() -> Run:
    return history.clean()


def test_whole_files_pass(run: Run) -> None:
    assert struct.calcsize(CHUNK_FORMAT) == transfers.RECORD
    assert judged(run, left(run)).outcome == "pass"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda whole: whole[:-7], f"{60 * BLOCK - 7:,} bytes are not whole records of 36"),
        (lambda whole: whole[: -2 * transfers.RECORD], "4 of 6 transfers of step 60 recorded"),
        (lambda whole: whole[:BLOCK] + whole[3 * BLOCK :], "0 of 6 transfers of step 2 recorded (1 more such steps)"),
        (lambda whole: whole + record(99), "has 1 records of step 99, which the rank did not do"),
        (lambda whole: whole + record(7), "7 of 6 transfers of step 7 recorded"),
    ],
)
def test_what_was_cut_or_added_is_told(run: Run, change: object, expected: str) -> None:
    assert callable(change)
    blocks = left(run)
    blocks[0, 1] = change(blocks[0, 1])
    verdict = judged(run, blocks)
    assert (verdict.outcome, WHERE in verdict.text, expected in verdict.text) == ("unknown", True, True), verdict.text


def test_an_empty_file_is_known_by_what_its_rank_has_told(run: Run) -> None:
    assert judged(run, left(run)).outcome == "pass"
    changed = history.changed(run, "rank.finished", 1, value={"transfers": 60 * RING})
    rank = next(e for e in changed.history.of("rank.finished") if e.value.get("transfers")).value["rank"]
    verdict = judged(changed, left(run) | {(0, rank): b""})
    assert (verdict.outcome, f"chunks-r{rank}.bin: 0 of 360 transfers recorded" in verdict.text) == ("unknown", True)


def test_a_rank_that_was_killed_may_lack_the_records_of_its_last_step() -> None:
    run = history.reference()
    for cut, outcome in ((BLOCK, "pass"), (BLOCK - 13, "pass"), (BLOCK + transfers.RECORD, "unknown")):
        blocks = left(run)
        blocks[0, 2] = blocks[0, 2][:-cut]
        assert judged(run, blocks).outcome == outcome, cut


def test_steps_in_which_all_ranks_alike_move_more_are_the_workloads_own(run: Run) -> None:
    assert judged(run, {place: content + record(1) for place, content in left(run).items()}).outcome == "pass"


def test_trials_of_one_case_are_compared_and_those_of_two_are_not() -> None:
    """Two cases of 3 trials: 1 record in each of the first, 2 in each of the second."""
    plan = history.clean().history.events[0]
    cases = [{"first_step": 1, "iterations": 3}, {"first_step": 4, "iterations": 3}]
    message = History((dataclasses.replace(plan, f="collective.plan", value={"cases": cases}),))
    whole = b"".join(record(step) * (1 if step < 4 else 2) for step in range(1, 7))
    own = transfers.RankReport(path="chunks-r0.bin", steps=set(range(1, 7)), finished=True, written=None)
    for content, text in (
        (whole, []),
        (whole[: -transfers.RECORD], ["chunks-r0.bin: 1 of 2 transfers of step 6 recorded"]),
    ):
        result = transfers.damage(Files(blocks={(0, 0): content}), message, {(0, 0): own})
        assert [finding.text for finding in result] == text


def test_trials_of_algorithms_that_took_turns_are_compared_with_those_of_their_own() -> None:
    """Two cases of 3 trials in turn: 1 record in each of the first, 2 in each of the second."""
    plan = history.clean().history.events[0]
    cases = [{"first_step": first, "iterations": 3, "stride": 2} for first in (1, 2)]
    message = History((dataclasses.replace(plan, f="collective.plan", value={"cases": cases}),))
    whole = b"".join(record(step) * (2 - step % 2) for step in range(1, 7))
    own = transfers.RankReport(path="chunks-r0.bin", steps=set(range(1, 7)), finished=True, written=None)
    for content, text in (
        (whole, []),
        (whole[: -transfers.RECORD], ["chunks-r0.bin: 1 of 2 transfers of step 6 recorded"]),
    ):
        result = transfers.damage(Files(blocks={(0, 0): content}), message, {(0, 0): own})
        assert [finding.text for finding in result] == text


def test_a_million_records_take_about_a_second() -> None:
    """Of the processor; ten times what it takes on an idle machine."""
    steps = 41_667
    content = b"".join(record(step) * RING for step in range(1, steps + 1))
    own = {
        (0, rank): transfers.RankReport(path="", steps=set(range(1, steps + 1)), finished=True, written=None)
        for rank in range(4)
    }
    begin = time.process_time()
    result = list(transfers.damage(Files(blocks=dict.fromkeys(own, content)), History(()), own))
    taken = time.process_time() - begin
    print(f"{taken:.2f} s")
    assert (result, taken < 3) == ([], True)
