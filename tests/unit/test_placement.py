"""A node in quarantine gets no rank and is no spare; a healthy spare has its slot, or one error says what to do."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app.hosts import quarantine
from orchestrator.cli import main
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.core.spec import slots
from orchestrator.model import codec
from orchestrator.model.errors import EXIT_INFRASTRUCTURE, InfrastructureError, UsageError
from orchestrator.model.launch import Request, Result
from orchestrator.model.plan import Placement
from orchestrator.store import paths

from . import beds
from .fake_bed import FakeProvider
from .test_plan import planned, trial

NIGHT = "2026-01-05T02-00-00Z-night-standard-0005"
REASON = f"is set aside since {NIGHT}: gemm 80 is worse than its floor 90"
#: Six nodes and two spares: n6 and n7.
LARGE = "all:\n  hosts: {localhost: {ansible_connection: local}}\n  vars: {ccbed_nodes: 6, ccbed_spares: 2}\n"


def without(*nodes: str) -> Placement:
    return Placement(quarantined=dict.fromkeys(nodes, REASON))


def test_a_spare_has_the_slot_of_a_node_in_quarantine_and_the_others_keep_theirs() -> None:
    made = planned(trial("world: {nodes: 4}"), placement=without("n1"))
    assert (made.slots, made.spares) == (("n0", "n4", "n2", "n3"), ())
    assert made.substitutes == {"n1": "n4"}
    assert made.placement.quarantined == {"n1": REASON}
    assert made.policy == ("restart",)
    assert planned(trial("world: {nodes: 4}")).slots == ("n0", "n1", "n2", "n3"), "without a quarantine nothing changes"


def test_an_unused_node_is_taken_before_a_spare() -> None:
    bed = beds.local(LARGE)
    made = planned(trial("world: {nodes: 4}"), bed, placement=without("n0", "n4", "n6"))
    assert (made.slots, made.spares) == (("n5", "n1", "n2", "n3"), ("n7",))


def test_a_spare_that_is_not_warm_takes_no_slot() -> None:
    bed = beds.local()
    with pytest.raises(InfrastructureError, match="has 3 that may be used"):
        planned(trial("world: {nodes: 4}"), bed, beds.up(bed, n4="dead"), placement=without("n1"))


def test_a_spare_in_quarantine_is_no_spare() -> None:
    assert planned(trial("world: {nodes: 4}"), placement=without("n4")).spares == ()


def test_too_few_nodes_are_one_error_with_the_reason_and_both_next_steps() -> None:
    with pytest.raises(InfrastructureError) as caught:
        planned(trial("world: {nodes: 4}"), placement=without("n1", "n2"))
    [problem] = caught.value.problems
    assert "trial t needs 4 nodes; bed local has 3 that may be used" in problem
    assert f"n1, n2: each {REASON}" in problem and problem.count(REASON) == 1
    assert "ccbed set-aside n1 --end --bed local" in caught.value.hint
    assert "--include-quarantined" in caught.value.hint
    assert caught.value.exit_code == EXIT_INFRASTRUCTURE


def test_a_fault_that_aims_at_a_node_in_quarantine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"n2 is set aside since .*, so that it takes no part"):
        planned(trial("world: {nodes: 4}", fail="n2"), placement=without("n2"))
    assert planned(trial("world: {nodes: 4}", fail="2"), placement=without("n2")).slots[2] == "n4"


def test_a_fault_that_aims_at_a_spare_is_refused_where_the_spare_has_a_slot() -> None:
    """It was meant for an idle node, and would end a rank."""
    idle = trial("world: {nodes: 4}", fail="n4")
    assert planned(idle).spares == ("n4",)
    with pytest.raises(UsageError, match=r"f0 \(crash-node\): n4 .* takes the place of n1, which is set aside since"):
        planned(idle, placement=without("n1"))


@pytest.mark.parametrize(("excluded", "reason"), [("n1", f"n1 {REASON}; n4 takes its place"), ("n4", f"n4 {REASON}")])
def test_spare_alone_is_refused_with_the_node_that_costs_the_spare(excluded: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(trial("recovery: {policy: spare}"), placement=without(excluded))
    [problem] = caught.value.problems
    assert problem.startswith(f"recovery spare needs a ready spare; bed local has none left: {reason}: ")


def test_all_nodes_are_those_that_may_be_used() -> None:
    bed = beds.local()
    assert [slots.count_usable(bed, without(*names)) for names in ((), ("n0",), ("n0", "n1"), ("n4",))] == [4, 4, 3, 4]


@dataclass
class Console:
    """Command lines on a bed that is only simulated. ``requests``: the runs that were to start."""

    root: Path
    requests: list[Request] = field(default_factory=list)
    provider: FakeProvider = field(default_factory=FakeProvider)

    def run(self, *line: str) -> tuple[int, str]:
        out = io.StringIO()
        session = Session(
            state=self.root / "state", terminal=terminal.Terminal(out=out, err=out), providers={"process": lambda state: self.provider},
            agent=lambda: "a" * 64, launch=self.launch,
        )  # fmt: skip
        return main.run(line, session), out.getvalue()

    def launch(self, request: Request) -> Result:
        self.requests.append(request)
        return Result(run="r", directory=str(self.root), code=0)

    def accuse(self, *nodes: str) -> None:
        offences = tuple(
            quarantine.Offence(node=node, host="localhost", night=NIGHT, number=number, reason="gemm 80 is worse than its floor 90")
            for node in nodes
            for number in (4, 5)
        )  # fmt: skip
        self.file.parent.mkdir(parents=True, exist_ok=True)
        paths.write_json(self.file, codec.plain(quarantine.Quarantine(offences=offences)))

    @property
    def file(self) -> Path:
        return self.root / "state" / "beds" / "local" / quarantine.FILE


@pytest.fixture
def console(tmp_path: Path) -> Console:
    (tmp_path / "local.yml").write_text(beds.LOCAL)
    console = Console(tmp_path)
    code, output = console.run("up", str(tmp_path / "local.yml"))
    assert code == 0, output
    return console


def test_a_run_says_who_has_the_slot(console: Console) -> None:
    console.accuse("n1")
    _, output = console.run("run", "dp-ring", "--runs-dir", str(console.root / "runs"))
    [request] = console.requests
    assert list(request.placement.quarantined) == ["n1"]
    assert "bed    local: n0 n4 n2 n3 · recovery" in output
    assert f"note   n1 {REASON}; n4 takes its place, not probed before" in output


def test_nodes_in_quarantine_are_used_on_purpose_only(console: Console) -> None:
    console.accuse("n1")
    _, output = console.run("run", "dp-ring", "--include-quarantined", "--runs-dir", str(console.root / "runs"))
    assert console.requests[0].placement == Placement()
    assert f"n1 {REASON}" in output


@pytest.mark.parametrize("damage", ["{", "[]", '{"offences": 3}', "\0"])
def test_a_damaged_file_starts_no_run(console: Console, damage: str) -> None:
    console.accuse("n1")
    console.file.write_text(damage)
    for line in (("run", "dp-ring"), ("nightly", "quick"), ("set-aside",)):
        code, output = console.run(
            *line, *([] if line[0] == "set-aside" else ["--runs-dir", str(console.root / "runs")])
        )
        assert code == EXIT_INFRASTRUCTURE
        assert "what is set aside is not known" in output
        assert str(console.file) in output
    assert not console.requests


def test_all_nodes_in_quarantine_start_no_run(console: Console) -> None:
    console.accuse("n0", "n1", "n2", "n3", "n4")
    code, output = console.run("run", "dp-ring", "--runs-dir", str(console.root / "runs"))
    assert (code, console.requests) == (EXIT_INFRASTRUCTURE, [])
    assert "needs 4 nodes; bed local has 0 that may be used" in output


def night(console: Console, text: str, *options: str) -> tuple[int, dict[str, Any]]:
    file = console.root / "s.yml"
    file.write_text(text)
    code, output = console.run("nightly", str(file), "--json", "--runs-dir", str(console.root / "runs"), *options)
    return code, json.loads(output[output.index("{") :])


SUITE = """suite: s
defaults: {world: {nodes: all}}
trials:
  - gemm
  - {trial: sendrecv, params: {fresh_probe: true}}
  - {trial: allreduce}
  - {trial: dp-ring, name: failover, faults: [crash-node: {node: 1, at: {step: 30}}]}
"""


def world(console: Console, name: str) -> tuple[int, list[str]]:
    [request] = [request for request in console.requests if request.trial.name == name]
    return request.trial.world.nodes, list(request.placement.excluded)


def test_probes_of_a_night_measure_a_node_in_quarantine_and_its_other_trials_leave_it_out(console: Console) -> None:
    console.accuse("n1")
    _, document = night(console, SUITE)
    assert world(console, "gemm") == world(console, "sendrecv") == (4, [])
    assert world(console, "allreduce") == (4, ["n1"])
    rows = {row["cell"]: row for row in document["rows"]}
    assert rows["failover"]["state"] == "skipped", "a restart is not compared with a failover to a spare"
    assert rows["failover"]["reason"].startswith(f"no spare is left to recover with: n1 {REASON}; n4 takes its place")
    [plan] = (console.root / "runs").glob("2*/night.json")
    assert json.loads(plan.read_text())["quarantined"] == {"n1": REASON}


def test_a_night_without_enough_nodes_has_a_smaller_world(console: Console) -> None:
    console.accuse("n1", "n2")
    night(console, SUITE)
    assert (world(console, "gemm"), world(console, "allreduce")) == ((4, []), (3, ["n1", "n2"]))


def test_a_night_includes_nodes_in_quarantine_on_purpose(console: Console) -> None:
    console.accuse("n1")
    _, document = night(console, SUITE, "--include-quarantined")
    assert world(console, "allreduce") == world(console, "dp-ring") == (4, [])
    assert {row["state"] for row in document["rows"]} == {"passed"}


def test_a_sweep_measures_a_node_in_quarantine(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.accuse("n1")
    stop: Callable[..., Any] = console.launch
    monkeypatch.setattr(console, "launch", lambda request: (stop(request), Result(run="r", directory="", code=130))[1])
    console.run("sweep", "gemm", "--each-node", "--runs-dir", str(console.root / "runs"))
    assert world(console, "gemm") == (4, [])


def test_an_acceptance_measures_a_node_in_quarantine_and_does_not_decide(console: Console) -> None:
    console.accuse("n1")
    (console.root / "s.yml").write_text(SUITE)
    code, output = console.run(
        "accept", "--bed", "local", "--suite", str(console.root / "s.yml"), "--runs-dir", str(console.root / "runs")
    )
    assert (world(console, "gemm"), world(console, "allreduce")) == ((4, []), (4, ["n1"]))
    assert (code, f"not checked  n1 {REASON}" in output) == (2, True), output
    assert "NOT DECIDED" in output


@dataclass
class Nights:
    """Recorded nights of the console's bed in a directory of runs."""

    console: Console

    def number(self, runs: str, *options: str) -> int:
        file = self.console.root / "s.yml"
        file.write_text("suite: s\ntrials: [gemm]\n")
        paths = ("--runs-dir", str(self.console.root / runs))
        _, output = self.console.run("nightly", str(file), "--json", "--record", *paths, *options)
        number: int = json.loads(output[output.index("{") :])["number"]
        return number


def test_the_nights_of_a_bed_are_numbered_across_directories(console: Console) -> None:
    nights = Nights(console)
    assert [nights.number("a"), nights.number("b"), nights.number("a")] == [1, 2, 3]
    [first, _] = sorted((console.root / "a").glob("2*/night.json"))
    first.write_text("{")
    shutil.rmtree(console.root / "b")
    assert nights.number("b") == 4
    assert json.loads(console.file.read_text())["last_number"] == 4


def test_a_node_in_quarantine_stays_so_in_another_directory(console: Console) -> None:
    console.accuse("n1")
    assert Nights(console).number("new") == 6
    [plan] = (console.root / "new").glob("2*/night.json")
    assert list(json.loads(plan.read_text())["quarantined"]) == ["n1"]


def test_a_night_names_the_machines_of_its_nodes(console: Console) -> None:
    console.provider.machine_of = {"localhost": "gpu17"}
    Nights(console).number("runs")
    [plan] = (console.root / "runs").glob("2*/night.json")
    document = json.loads(plan.read_text())
    assert set(document["hosts"].values()) | set(document["spares"].values()) == {"gpu17"}
    console.accuse("n1")  # on localhost, which is another machine
    _, output = console.run("set-aside")
    assert "n1@localhost" in output
