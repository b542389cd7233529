"""A suite becomes cells, and every mistake in it is one line with file and line, all of them at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.core.spec import parse_trial, source_positions
from orchestrator.model.errors import UsageError
from orchestrator.nightly import parse_suite, selector
from orchestrator.nightly.suite import MetricRule, Suite
from orchestrator.store import shipped

from .. import beds

CATALOGUE = plugins.discover()


def read_trial(name: str) -> tuple[str, source_positions.Document]:
    if name not in CATALOGUE.trials:
        raise UsageError(f"no trial {name}")
    return name, parse_trial.open_document(Path(CATALOGUE.trials[name]).read_text(), f"{name}.yml")


def parse(text: str) -> Suite:
    return parse_suite.parse(text, "s.yml", CATALOGUE, read_trial)


def problems(text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.hint == "correct s.yml, then: ccbed nightly s.yml --dry-run"
    return list(caught.value.problems)


def test_a_cell_for_each_choice_of_the_matrix() -> None:
    suite = parse(
        """
suite: mine
seed: 4
budget: 30m
defaults: {repeats: 5, world: {nodes: all}, precision: 3%, needs: [gpu]}
trials:
  - barrier
  - trial: dp-ring
    matrix: {algorithm: [ring, library], world.nodes: [2, 4]}
    params: {checkpoint-every: 10}
    priority: 2
    precision: 0.05
    deadline: 90s
    needs: []
    metrics: {ttr: {floor: 2, set_aside: T-7}, duration: {minimum_absolute: 0.5}}
"""
    )
    assert (suite.name, suite.seed, suite.budget_s) == ("mine", 4, 1800.0)
    assert [cell.name for cell in suite.cells] == [
        "barrier", "dp-ring[algorithm=ring,world.nodes=2]", "dp-ring[algorithm=ring,world.nodes=4]",
        "dp-ring[algorithm=library,world.nodes=2]", "dp-ring[algorithm=library,world.nodes=4]",
    ]  # fmt: skip
    first, last = suite.cells[0], suite.cells[-1]
    assert (first.repeats, first.precision, first.deadline_s, first.needs) == (5, 0.03, 600.0, ("gpu",))
    assert (last.repeats, last.precision, last.deadline_s, last.priority, last.needs) == (5, 0.05, 90.0, 2, ())
    assert last.overrides == {"params.checkpoint_every": 10, "params.algorithm": "library", "world.nodes": 4}
    assert last.rules == (
        MetricRule(metric="ttr", floor=2.0, xfail="T-7"), MetricRule(metric="duration", minimum_absolute=0.5)
    )  # fmt: skip


def test_all_nodes_are_those_of_the_bed() -> None:
    cell = parse("suite: s\ntrials: [{trial: barrier, world: {nodes: all}}]").cells[0]
    changes = {override.path: override.content for override in parse_suite.overrides(cell, beds.local())}
    assert changes == {("world", "nodes"): 4}
    assert parse_suite.overrides(cell, None) == []


def test_a_requirement_that_the_bed_lacks_is_a_sentence() -> None:
    assert selector.missing(("spare",), beds.local()) == ""
    assert selector.missing(("spare", "gpu"), beds.local()) == "needs a GPU on every node; bed local has none"


def test_every_mistake_is_one_line_and_all_come_at_once() -> None:
    text = """suite: bad one
sed: 3
budget: -1
defaults: {repeats: 0, precision: 2, deadlin: 3s}
trials:
  - trial: allreduce
    params: {sizess: 3, iterations: no}
    matrix: {dtype: float32, "wurld.nodes": [1]}
  - trial: alreduce
  - barrier
  - {trial: barrier}
  - {trial: sendrecv, needs: [gpus], metrics: {busbw: {flor: 3}, x: 3}}
  - {params: {}}
  - 7
  - trial: dp-ring
    faults: [crash-nod: {node: 1}]
    matrix:
      algorithm: [ring, rng]
"""
    known = ", ".join(sorted([*CATALOGUE.algorithms, "library"]))
    assert problems(text) == [
        "s.yml:1: suite: must be 1 to 60 letters, digits, . _ - and begin with a letter or digit (got bad one)",
        "s.yml:2: sed: unknown key; did you mean seed?",
        "s.yml:3: budget: must be >= 0 (got -1)",
        "s.yml:4: defaults.deadlin: unknown key; did you mean deadline_s?",
        "s.yml:4: defaults.repeats: must be >= 1 (got 0)",
        "s.yml:4: defaults.precision: must be a share such as 2% (got 2)",
        "s.yml:7: trials[0].params.iterations: must be a whole number (got false)",
        "s.yml:7: trials[0].params.sizess: unknown parameter of collective; did you mean sizes?",
        "s.yml:8: trials[0].matrix.dtype: must be a list of values (got float32)",
        "s.yml:8: trials[0].matrix.wurld.nodes: unknown path; did you mean world?",
        "s.yml:9: trials[1].trial: no trial alreduce",
        "s.yml:11: trials[3]: the cell barrier appears twice; give it a name of its own: `name: …`",
        "s.yml:12: trials[4].needs: unknown; did you mean gpu? (got gpus)",
        "s.yml:12: trials[4].metrics.busbw.flor: unknown key; did you mean floor?",
        "s.yml:12: trials[4].metrics.x: must be a mapping with floor, minimum_absolute or set_aside (got 3)",
        "s.yml:13: trials[5].trial: is missing",
        "s.yml:14: trials[6]: must be a mapping with `trial` (got 7)",
        "s.yml:16: trials[7].faults: 0.crash-nod: unknown fault; did you mean crash-node? (got crash-nod)",
        f"s.yml:18: trials[7].matrix.algorithm: unknown algorithm; known: {known} (got rng)",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must be a mapping with `suite` and `trials`"),
        ("suite: s", "trials: is empty: a suite has one trial at least"),
        ("suite: s\ntrials: []", "s.yml:2: trials: is empty: a suite has one trial at least"),
        ("suite: s\ntrials: barrier", "s.yml:2: trials: must be a list of trials (got barrier)"),
        ("suite: s\nbudget: .nan\ntrials: [barrier]", "s.yml:2: budget: must be a finite number (got nan)"),
        (
            "suite: s\ntrials: [{trial: barrier, deadline: .inf}]",
            "trials[0].deadline: must be a finite number (got inf)",
        ),
        ("trials: [barrier]", "suite: is missing"),
        ("suite: s\ntrials: [{trial: barrier, repeats: 100000}]", "trials[0].repeats: must be <= 10000 (got 100000)"),
        ("suite: s\ntrials: [{trial: barrier, matrix: {root: []}}]", "trials[0].matrix.root: must be a list of values"),
        ("suite: s\nsuite: t\ntrials: [barrier]", "s.yml:2: suite: appears twice"),
        ("suite: [", "not valid YAML"),
    ],
)
def test_an_empty_or_malformed_suite(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert len(caught.value.problems) == 1
    assert problem in caught.value.problems[0]


def test_a_matrix_has_a_limit() -> None:
    rows = ", ".join(map(str, range(60)))
    text = f"suite: s\ntrials: [{{trial: barrier, matrix: {{iterations: [{rows}], world.timeout_s: [{rows}]}}}}]"
    assert problems(text) == ["s.yml:2: trials[0].matrix: has more than 1000 combinations"]


@pytest.mark.parametrize("name", shipped.suites())
def test_the_shipped_suites_are_valid(name: str) -> None:
    path = shipped.suites()[name]
    suite = parse_suite.parse(path.read_text(), str(path), CATALOGUE, read_trial)
    assert (suite.name, suite.text) == (name, path.read_text())


def test_a_ticket_may_name_nodes_and_a_negative_difference_is_refused() -> None:
    head = "suite: mine\ntrials:\n  - trial: barrier\n    metrics:\n      ttr: "
    for body in ("set_aside: {reason: T-7, nodes: [n3]}", "xfail: {ticket: T-7, nodes: [n3]}"):  # the former names
        [cell] = parse(f"{head}{{{body}}}\n").cells
        assert cell.rules == (MetricRule(metric="ttr", xfail="T-7", xfail_nodes=("n3",)),)
    where = "s.yml:5: trials[0].metrics.ttr"
    assert problems(head + "{minimum_absolute: -1}\n") == [f"{where}.minimum_absolute: must be >= 0 (got -1.0)"]
    [problem] = problems(head + "{set_aside: {reason: T-7}}\n")
    assert problem.startswith(f"{where}.set_aside: needs a reason and the names of its nodes (got ")
    [problem] = problems(head + "{set_aside: {reason: T-7, node: [n3]}}\n")
    assert problem.startswith(f"{where}.set_aside.node: unknown key")


@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("name", shipped.suites())
def test_a_built_in_suite_is_read_for_a_bed_of_any_size(name: str, count: int) -> None:
    bed = beds.local(beds.LOCAL.replace("ccbed_nodes: 4", f"ccbed_nodes: {count}"))
    suite = parse_suite.parse(shipped.suites()[name].read_text(), f"{name}.yml", CATALOGUE, read_trial, bed)
    assert suite.cells


def test_a_trial_on_all_nodes_that_needs_more_is_no_mistake_in_its_suite() -> None:
    """The night skips it, with the reason. A number of nodes that the suite itself sets is its mistake."""
    text = "suite: s\ntrials: [{trial: sendrecv, world: {nodes: NODES}}]"
    one_node = beds.local(beds.LOCAL.replace("ccbed_nodes: 4", "ccbed_nodes: 1"))
    assert parse_suite.parse(text.replace("NODES", "all"), "s.yml", CATALOGUE, read_trial, one_node).cells
    (problem,) = problems(text.replace("NODES", "1"))
    assert "needs at least 2 ranks" in problem
