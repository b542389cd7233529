"""What is missing from a bundle, or lies in the place of another node, is noticed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import pytest

from orchestrator.model.run import Run
from orchestrator.store import bundle

from . import history
from .verdicts import ask


def altered(run: Run, change: Callable[[dict[str, str]], None]) -> Run:
    texts = {path: run.files.log(*place) if place else "" for path, place in _places(run)}
    change(texts)
    return dataclasses.replace(run, files=history.Files(records=list(run.files.steps()), texts=texts))


def _places(run: Run) -> Iterable[tuple[str, tuple[str, int, int] | None]]:
    for path in run.files.paths():
        _, node, directory, name = path.split("/")
        log = name.startswith("rank-")
        yield path, (node, int(name[5:-4]), int(directory.split("-e")[1])) if log else None


def test_two_nodes_logs_swapped_fail() -> None:
    def swap(texts: dict[str, str]) -> None:
        path, two = "nodes/n0/i1-e0/rank-0.log", "nodes/n1/i1-e0/rank-1.log"
        texts[path], texts[two] = texts[two], texts[path]

    verdict = ask(altered(history.reference(), swap), "bundle-complete")
    assert verdict.outcome == "fail"
    assert "is the log of rank" in verdict.text


def test_two_nodes_directories_swapped_fail() -> None:
    def swap(texts: dict[str, str]) -> None:
        old = dict(texts)
        texts.clear()
        names = {"n0": "n1", "n1": "n0"}
        texts.update({_renamed(path, names): text for path, text in old.items()})

    assert ask(altered(history.reference(), swap), "bundle-complete").outcome == "fail"


def _renamed(path: str, names: dict[str, str]) -> str:
    root, node, rest = path.split("/", 2)
    return f"{root}/{names.get(node, node)}/{rest}"


def test_step_records_of_two_ranks_swapped_between_epochs_fail() -> None:
    run = history.reference()
    records = [dataclasses.replace(r, epoch=1 - r.epoch) if r.rank == 1 else r for r in run.files.steps()]
    assert ask(history.with_records(run, records), "bundle-complete").outcome == "fail"


@pytest.mark.parametrize("name", ["rank-2.log", "steps-r2.jsonl", "chunks-r2.bin", "env-r2.json"])
def test_a_file_that_is_missing_without_a_word_fails_and_one_that_was_reported_is_lost_data(name: str) -> None:
    path = f"nodes/n2/i1-e0/{name}"
    run = altered(history.reference(), lambda texts: texts.__delitem__(path))
    assert ask(run, "bundle-complete").outcome == "fail"
    missing = [{"node": "n2", "path": f"i1-e0/{name}", "reason": "no space"}]
    reported = history.changed(run, "gather", 1, value={"missing": missing})
    assert ask(reported, "bundle-complete").outcome == "unknown"


def test_what_is_missing_of_a_tree_that_could_not_be_fetched_is_lost_data() -> None:
    run = altered(history.reference(), lambda texts: texts.__delitem__("nodes/n2/i1-e0/rank-2.log"))
    for node, outcome in (("n1", "fail"), ("n2", "unknown")):
        missing = [{"node": node, "path": "runs/r", "reason": "rank-2.log: Input/output error"}]
        reported = history.changed(run, "gather", 1, value={"missing": missing})
        assert ask(reported, "bundle-complete").outcome == outcome


def test_a_node_whose_second_gather_failed_is_unknown_although_its_earlier_files_are_there() -> None:
    """An orchestrator that was killed while it gathered leaves files; the next one cannot fetch what the node wrote since."""
    run = history.reference()
    missing = [{"node": "n2", "path": "runs/r", "reason": "not fetched within 45 s"}]
    verdict = ask(history.changed(run, "gather", 1, value={"missing": missing}), "bundle-complete")
    assert verdict.outcome == "unknown"
    assert "nodes/n2/ is not all that the node has: not fetched within 45 s" in verdict.text
    spare = [{"node": "n9", "path": "runs/r", "reason": "not there"}]
    assert ask(history.changed(run, "gather", 1, value={"missing": spare}), "bundle-complete").outcome == "pass"


def _without_steps(run: Run, node: str, rank: int) -> Run:
    """The first attempt's file of steps of this rank is empty."""
    kept = [record for record in run.files.steps() if (record.node, record.rank, record.epoch) != (node, rank, 0)]
    return history.with_records(run, kept)


@pytest.mark.parametrize("state", ["unreachable", "dead"])
def test_a_file_that_is_empty_because_its_host_was_lost_is_lost_data(state: str) -> None:
    run = history.changed(history.paused(), "node.silent", value={"silent_s": 1.8, "seen": state})
    verdict = ask(_without_steps(run, "n1", 1), "bundle-complete")
    assert (verdict.outcome, verdict.text) == (
        "unknown",
        "nodes/n1/i1-e0/steps-r1.jsonl was lost: n1 fell silent, and its host may not have stored it",
    )
    gone = altered(run, lambda texts: texts.__delitem__("nodes/n1/i1-e0/steps-r1.jsonl"))
    assert ask(_without_steps(gone, "n1", 1), "bundle-complete").outcome == "unknown"


@pytest.mark.parametrize(
    ("run", "node", "rank"),
    [(history.paused, "n1", 1), (history.paused, "n2", 2), (history.reference, "n2", 2), (history.clean, "n2", 2)],
    ids=["its host lived on", "another node was lost", "its keeper saw it exit", "nothing was lost"],
)
def test_a_file_that_is_empty_without_an_explanation_fails(run: Callable[[], Run], node: str, rank: int) -> None:
    verdict = ask(_without_steps(run(), node, rank), "bundle-complete")
    assert (verdict.outcome, verdict.text) == (
        "fail",
        f"nodes/{node}/i1-e0/steps-r{rank}.jsonl is empty, the rank reported 1",
    )


def test_a_file_that_is_empty_in_a_tree_that_gather_could_not_fetch_is_lost_data() -> None:
    """Of a lost host only what had come before is there."""
    missing = [{"node": "n2", "path": "runs/r", "reason": "host h2: not connected; what had come before is here"}]
    run = history.changed(history.reference(), "gather", 1, value={"missing": missing})
    assert ask(_without_steps(run, "n2", 2), "bundle-complete").outcome == "unknown"


def test_a_log_that_does_not_say_whose_it_is_is_unknown() -> None:
    run = altered(history.reference(), lambda texts: texts.update({"nodes/n0/i1-e0/rank-0.log": "hello\n"}))
    assert ask(run, "bundle-complete").outcome == "unknown"


@pytest.mark.parametrize(
    ("files", "outcome", "text"),
    [
        ({"inputs/user/train.py": "a", "inputs/user/net.py": "b"}, "pass", ""),
        ({"inputs/user/train.py": "a"}, "fail", "inputs/user/net.py is missing; plan.json lists it"),
        (
            {"inputs/user/train.py": "a", "inputs/user/net.py": "c"},
            "fail",
            "differs from the content that plan.json lists",
        ),
        (
            {"inputs/user/train.py": "a", "inputs/user/net.py": "b", "inputs/more": ""},
            "fail",
            "inputs/more is not listed in plan.json",
        ),
    ],
)
def test_inputs_are_those_of_the_plan(files: dict[str, str], outcome: str, text: str) -> None:
    listed = bundle.sums({"user/train.py": b"a", "user/net.py": b"b"})
    verdict = ask(_with_inputs(files, {"inputs": listed}), "bundle-complete")
    assert (verdict.outcome, text in verdict.text) == (outcome, True), verdict.text


def test_a_plan_of_format_2_that_lists_no_inputs_fails_and_one_of_format_1_lists_none() -> None:
    files = {"inputs/t.yml": "a"}
    assert ask(_with_inputs(files, {}, {"format": 2}), "bundle-complete").outcome == "fail"
    assert ask(_with_inputs(files, {}, {"format": 1}), "bundle-complete").outcome == "pass"


def _with_inputs(files: dict[str, str], plan: dict[str, object], about: dict[str, object] | None = None) -> Run:
    run = history.reference()
    texts = {path: run.files.log(*place) if place else "" for path, place in _places(run)}
    extras = {**run.extras, "plan.json": {**run.extras["plan.json"], **plan}, "bundle.json": about or {}}
    kept = history.Files(records=list(run.files.steps()), texts={**texts, **files})
    return dataclasses.replace(run, extras=extras, files=kept)


@pytest.mark.parametrize(
    ("files", "outcome"),
    [
        (("i1-e0/rank-0.log",), "pass"), (("i1-e0/rank-0.log", "i1-e0/steps-r0.jsonl"), "unknown"),
        (("i1-e0/my-rank-0.log.bin",), "unknown"), (("rank-0.log/watch.jsonl",), "unknown"), ((), "unknown"), (None, "unknown"),
    ],
)  # fmt: skip
def test_a_log_that_was_cut_at_its_limit_is_no_lost_data(files: tuple[str, ...] | None, outcome: str) -> None:
    capped = [{"node": "n0", "path": "runs/r", "limit": 256 << 20, "files": files}]
    verdict = ask(history.changed(history.reference(), "gather", 1, value={"capped": capped}), "bundle-complete")
    assert verdict.outcome == outcome, verdict.text
    limit = "cut at 256 MiB of a node: n0/i1-e0/rank-0.log (CCBED_NODE_FILES_MIB raises the limit)"
    assert (limit in verdict.text) == (outcome == "pass")


def test_a_file_that_is_missing_beside_a_log_that_was_cut_is_a_failure() -> None:
    capped = [{"node": "n0", "path": "runs/r", "limit": 1, "files": ["i1-e0/rank-0.log"]}]
    run = history.changed(history.reference(), "gather", 1, value={"capped": capped})

    def lose(texts: dict[str, str]) -> None:
        del texts["nodes/n0/i1-e0/env-r0.json"]

    verdict = ask(altered(run, lose), "bundle-complete")
    assert verdict.outcome == "fail", verdict.text
