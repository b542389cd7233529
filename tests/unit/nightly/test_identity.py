"""A node is known by its host: a bed that gives its names to other hosts compares no host with the past of another one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.model.bed import Machine
from orchestrator.nightly import bundle_records, index, judging, night_files
from orchestrator.nightly.culprits import hook
from orchestrator.nightly.identity import Nodes
from orchestrator.nightly.records import Record
from orchestrator.nightly.suite import Cell, MetricRule
from orchestrator.slurm import allocation
from orchestrator.slurm.slurm_provider import SlurmProvider
from orchestrator.store import paths, seal

from ..slurm.test_job_steps import ALLOCATION
from ..slurm.test_job_steps import bed as slurm_bed
from ..test_plan import planned, trial
from .night_bundles import figure, write_night
from .test_culprits import sweep
from .test_judging import NIGHT, NODES, bad, history_of, usual

HOSTS = {node: f"host-{node}" for node in NODES}
#: Each name is on the host of the next node.
MOVED = dict(zip(NODES, [*list(HOSTS.values())[1:], HOSTS[NODES[0]]], strict=True))
RATE = MetricRule(metric="gemm", floor=90.0)


@pytest.mark.parametrize(
    ("node", "host", "is_alone", "name"),
    [
        ("n1", "h1", True, "n1"),
        ("n3", "h3", True, "n2"),
        ("n3", "h3", False, "n3"),
        ("n1", "h9", True, "n1@h9"),
        ("n3", "h9", True, "n3"),
        ("n1", "", True, "n1"),
        ("n4", "both", False, "n4"),
        ("n6", "both", True, "n6"),
        ("n7", "h9", True, "n7"),
    ],
)
def test_the_name_of_a_host(node: str, host: str, is_alone: bool, name: str) -> None:
    """Its node of tonight; a name that is another host's now is told apart; of several nodes on a host the name decides."""
    tonight = Nodes({"n1": "h1", "n2": "h3", "n4": "both", "n5": "both", "n7": ""})
    assert tonight.name(node, host, is_alone=is_alone) == name


def test_links_and_ranks_are_renamed_by_their_nodes() -> None:
    tonight = Nodes({"n0": "h1", "n1": "h0"})
    names = tonight.names({"n0": "h0", "n1": "h1"})
    record = Record(night=1, node="n0:3->n1", metric=None, key=None, values=(), hosts={"n0": "h0", "n1": "h1"})  # type: ignore[arg-type]
    [renamed] = tonight.records([record])
    assert (names, renamed.node) == ({"n0": "n1", "n1": "n0"}, "n1:3->n0")
    assert tonight.records([renamed]) == (renamed,), "a second time changes nothing"


def night_on(tmp_path: Path, hosts: Mapping[str, str], number: int = NIGHT, **slow: float) -> Path:
    """A night whose rates are those of the hosts, wherever their nodes are."""
    own = {node: host.removeprefix("host-") for node, host in hosts.items()}
    repeats = [
        [
            figure("gemm", usual(number, own[node], repeat) * slow.get(own[node], 1.0), "TFLOP/s", "higher", node=node, rank=0)
            for node in NODES
        ]
        for repeat in range(5)
    ]  # fmt: skip
    return write_night(tmp_path, number, {"gemm": repeats}, nodes=NODES, hosts=hosts)


def history(directory: Path, hosts: Mapping[str, str]) -> list[Record]:
    """30 nights on ``hosts``; the figures are the usual ones of the nodes, as if their hosts were HOSTS."""
    return [dataclasses.replace(record, hosts=hosts) for record in history_of(directory, usual)]


def test_hosts_that_changed_their_names_have_their_own_past(tmp_path: Path) -> None:
    directory = night_on(tmp_path, MOVED)
    assert bad(judging.judge(directory, history(directory, HOSTS))) == []
    assert bad(judging.judge(directory, history(directory, {}))) != [], "by their names healthy nodes are odd"


def test_a_slow_host_is_found_under_its_new_name(tmp_path: Path) -> None:
    directory = night_on(tmp_path, MOVED, n3=0.8)
    judgement = judging.judge(directory, history(directory, HOSTS))
    assert {node for _, node, _ in bad(judgement) if node} == {"n2"}
    [culprit] = hook.accused(night_files.read_night(directory), sweep("node n2"))
    assert (culprit.node, culprit.host) == ("n2", "host-n3")


def test_a_host_that_is_new_has_no_past(tmp_path: Path) -> None:
    directory = night_on(tmp_path, {**HOSTS, "n3": "host-n9"})
    judgement = judging.judge(directory, history(directory, HOSTS))
    compared = {judged.finding.node: judged.compared.nights for judged in judgement.cells if judged.compared}
    assert compared["n2"] > 0 and not compared["n3"]
    assert any(note.startswith("n3@host-n3 is no longer part of the bed") for note in judgement.notes)


def test_many_hosts_of_earlier_jobs_are_one_note(tmp_path: Path) -> None:
    directory = night_on(tmp_path, {node: f"new-{node}" for node in NODES})
    notes = judging.judge(directory, history(directory, HOSTS)).notes
    assert [note for note in notes if "no longer part" in note] == [
        "8 nodes of earlier nights are no longer part of the bed (n0@host-n0, n1@host-n1, n2@host-n2, n3@host-n3, …)"
    ]


def test_the_index_tells_the_hosts_of_each_night(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    night_on(runs, HOSTS, 1)
    night_on(runs, MOVED, 2)
    with index.open(runs, state=tmp_path, url="") as opened:
        opened.refresh()
        records = [record for record in opened.records(bed="lab") if record.node == "n3"]
    assert [record.hosts["n3"] for record in records] == ["host-n3", "host-n4"]
    assert [record.node for record in Nodes(MOVED).records(records)] == ["n2", "n3"]


def test_a_job_that_is_replaced_during_the_night_mixes_no_hosts(tmp_path: Path) -> None:
    """The second repeat has another job: n0 and n1 changed their hosts, and n2 is on a host that the night did not have."""
    runs = tmp_path / "runs"
    directory = write_night(
        runs, 1, {"gemm": [[figure("gemm", 100.0 + number, "TFLOP/s", "higher", node=node) for number, node in enumerate(NODES[:3])]] * 2},
        nodes=NODES[:3], cells=[Cell(name="gemm", trial="probe", rules=(RATE,))],
    )  # fmt: skip
    second = sorted((directory / "runs").iterdir())[1]
    replace_hosts(second, {"n0": "host-n1", "n1": "host-n0", "n2": "host-n9"})
    night = night_files.read_night(directory)
    read, _ = judging.night.read_runs(directory, night_files.read_rows(directory), night)
    values = {(item.node, *item.values) for _, record in read for item in record.measurements}
    assert values == {("n0", 100.0), ("n0", 101.0), ("n1", 101.0), ("n1", 100.0), ("n2", 102.0), ("n2@host-n9", 102.0)}
    with index.open(runs, state=tmp_path, url="") as opened:
        opened.refresh()
        records = Nodes({}).records(list(opened.records(bed="lab")))
    by_host = {(record.hosts[record.node], record.values) for record in records}
    assert ("host-n0", (100.0,)) in by_host and ("host-n0", (101.0,)) in by_host
    [culprit] = hook.accused(night, sweep("node n2@host-n9"))
    assert culprit.host == "host-n9"


def replace_hosts(bundle_dir: Path, hosts: Mapping[str, str]) -> None:
    plan = json.loads((bundle_dir / "plan.json").read_text())
    for node, host in hosts.items():
        plan["nodes"][node]["host"] = host
    paths.write_json(bundle_dir / "plan.json", plan)
    seal.write(bundle_dir, seal.MANIFEST, seal.evidence(bundle_dir))


def test_a_ticket_covers_the_host_that_it_covered(tmp_path: Path) -> None:
    """n1 was bad under NET-1 on host-n1, which is n0 now: that n1 is bad is another defect."""
    rule = MetricRule(metric="gemm", floor=95.0, xfail="NET-1")
    cell = Cell(name="gemm", trial="probe", rules=(rule,))

    def night(number: int, hosts: Mapping[str, str], slow: str) -> Path:
        rates = [
            [figure("gemm", 90.0 if node == slow else 100.0, "TFLOP/s", "higher", node=node) for node in ("n0", "n1")]
        ]
        return write_night(
            tmp_path / str(number), number, {"gemm": rates}, nodes=("n0", "n1"), hosts=hosts, cells=[cell]
        )

    hosts, moved = {"n0": "a", "n1": "b"}, {"n0": "b", "n1": "a"}
    first = judging.judge(night(1, hosts, "n1"), ())
    assert [
        judged.state for judged in first.findings if judged.finding.gate == "floor" and judged.finding.node == "n1"
    ] == ["xfail"]
    earlier = [Nodes(moved).judgement(first, hosts)]
    assert judging.judge(night(2, moved, "n0"), (), earlier=earlier).outcome != "fail"
    assert judging.judge(night(3, moved, "n1"), (), earlier=earlier).outcome == "fail"


def test_the_hosts_of_a_slurm_job_are_its_nodes(tmp_path: Path) -> None:
    spec = dataclasses.replace(slurm_bed(tmp_path), workdir=str(tmp_path))
    provider = SlurmProvider(tmp_path)
    assert provider.machines(spec) == {}, "without a job they are not known"
    allocation.write(ALLOCATION, tmp_path)
    assert {host: machine.name for host, machine in provider.machines(spec).items()} == {"h0": "a1", "h1": "a2"}


def test_the_plan_of_a_run_names_the_machines() -> None:
    made = planned(
        trial("world: {nodes: 4}"), machines={"localhost": Machine(name="gpu17", address="gpu17", port=6818)}
    )
    assert (made.nodes["n0"].host, made.nodes["n0"].machine) == ("localhost", "gpu17")
    assert planned(trial("world: {nodes: 4}")).nodes["n0"].machine == ""


def test_a_bundle_of_a_slurm_job_names_the_nodes_of_the_cluster(tmp_path: Path) -> None:
    directory = night_on(tmp_path, HOSTS, 1)
    [run, *_] = (directory / "runs").iterdir()
    plan = json.loads((run / "plan.json").read_text())
    plan["nodes"]["n0"] |= {"host": "h0", "machine": "gpu17"}
    (run / "plan.json").write_text(json.dumps(plan))
    suspects = bundle_records.read(run).suspects
    assert (suspects["n0"]["host"], suspects["n1"]["host"]) == ("gpu17", "host-n1")
