"""Reading what the watcher recorded: typed lines, cut-off files, kinds of later versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.model import watch
from orchestrator.store import paths, recorded_files

BEGIN = {"k": "begin", "t": 1.0, "format": 1, "rank": 1, "pid": 77, "world": 2, "node": "n1", "later": [1]}
STEP = {"k": "step", "t": 2.0, "n": 1, "start": 1.5, "end": 2.0, "loss": (0.5).hex(), "batches": ["ab"]}
WHERE = "nodes/n2/i1-e3/watch-r1-77.jsonl"


def write(root: Path, *lines: object, path: str = WHERE, torn: str = "") -> recorded_files.BundleFiles:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + torn)
    return recorded_files.BundleFiles(root, {})


def test_a_record_in_a_bundle_has_the_node_and_the_attempt_of_its_directory(tmp_path: Path) -> None:
    (record,) = write(tmp_path, BEGIN, STEP, {"k": "of a later version", "t": 3.0}, torn='{"k": "step"').watch()
    assert (record.node, record.attempt, record.rank, record.pid) == ("n2", 3, 1, 77)
    assert record.begin is not None and record.begin.world == 2
    (step,) = record.of(watch.Step)
    assert (step.n, step.batches, len(record.lines)) == (1, ("ab",), 2)


def test_a_record_outside_a_bundle_states_its_node_and_attempt(tmp_path: Path) -> None:
    write(tmp_path, {**BEGIN, "attempt": 2}, path="a/watch-r1-77.jsonl")
    (record,) = recorded_files.WatchDirectory(tmp_path).watch()
    assert (record.node, record.attempt, record.rank, record.path) == ("n1", 2, 1, "a/watch-r1-77.jsonl")


@pytest.mark.parametrize("line", [{"k": "step", "t": 2.0, "n": "x", "start": 0, "end": 0}, {**BEGIN, "format": 3}, []])
def test_a_line_that_the_watcher_cannot_have_written_is_rejected_with_its_place(tmp_path: Path, line: object) -> None:
    if line == []:
        assert next(write(tmp_path, BEGIN, line).watch()).of(watch.Step) == ()
        return
    with pytest.raises(paths.TornBundleError, match=r"watch-r1-77\.jsonl"):
        list(write(tmp_path, line).watch())


@pytest.mark.parametrize("line", [{**STEP, "n": 10**9}, {**STEP, "n": -1}, {**BEGIN, "world": 10**9}])
def test_numbers_that_no_reader_can_walk_through_are_rejected(tmp_path: Path, line: object) -> None:
    with pytest.raises(paths.TornBundleError, match="at most"):
        list(write(tmp_path, line).watch())
