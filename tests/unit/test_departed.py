"""Names stay with their hosts, and hosts that left the inventory are ours until they were found empty."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import up
from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import bed_view, terminal
from orchestrator.core.bed import departed, nodes_from_inventory, observed_status
from orchestrator.core.bed.diff import diff
from orchestrator.core.inventory import parse_inventory
from orchestrator.model.bed import BedSpec, BedStatus, HostStatus, NodeStatus
from orchestrator.model.errors import UnreachedError
from orchestrator.store import bed_files as store

from .fake_bed import FakeProvider

#: Ansible lists inventories with hosts behind SSH.
pytestmark = pytest.mark.slow

PREPARED = {"alive": True, "pid": 9, "agent": "a" * 64}


def bed(before: BedSpec | None = None, **counts: int) -> BedSpec:
    """A bed of containers: so many nodes per host."""
    hosts = ", ".join(f"{name}: {{ansible_host: 10.0.0.{name[1:]}, ccbed_nodes: {n}}}" for name, n in counts.items())
    text = f"all: {{hosts: {{{hosts}}}, vars: {{ccbed_provider: docker}}}}"
    inventory = parse_inventory.parse(text, "lab.yml")
    return nodes_from_inventory.assemble_bed(
        inventory, agent="a" * 64, state="/s", home="/h", recorded=lambda name: before
    )


def seats(bed: BedSpec) -> dict[str, list[str]]:
    return {host.name: [node.name for node in bed.nodes if node.host == host.name] for host in bed.hosts}


def container(name: str, state: str = "warm") -> dict[str, Any]:
    zero = {"spec_hash": "", "incarnation": "i", "ordinal": 1, "pid": 7, "own_mib": 0.0, "shared_mib": 0.0}
    return {"name": name, "state": state, "reason": "", "address": "", **zero}


def host_status(*nodes: dict[str, Any], keeper: bool = True) -> dict[str, Any]:
    about = PREPARED if keeper else {"alive": False}
    return {"keeper": about, "nodes": list(nodes), "leases": [], "interfaces": {}}


# --- names ------------------------------------------------------------------------------------------------------------


def test_without_a_record_names_count_up() -> None:
    assert seats(bed(h1=1, h2=2, h3=1)) == {"h1": ["n0"], "h2": ["n1", "n2"], "h3": ["n3"]}


def test_names_stay_with_their_hosts_when_counts_change() -> None:
    before = bed(h2=2, h3=1)
    after = bed(before, h2=1, h3=2)
    assert seats(after) == {"h2": ["n0"], "h3": ["n2", "n3"]}
    assert seats(bed(after, h2=2, h3=1)) == {"h2": ["n0", "n1"], "h3": ["n2"]}
    known = {node.name: node.hash for node in before.nodes}
    assert all(known[node.name] == node.hash for node in after.nodes if node.name in known)


def test_a_name_of_a_host_that_left_is_not_given_to_another() -> None:
    before = bed(h1=1, h2=1)
    left = bed(before, h1=1)
    assert [(host.host.name, host.nodes) for host in left.departed] == [("h2", ("n1",))]
    assert seats(bed(left, h1=2)) == {"h1": ["n0", "n2"]}
    assert seats(bed(left, h1=1, h2=1)) == {"h1": ["n0"], "h2": ["n1"]}
    assert bed(left, h1=1, h2=1).departed == ()


def test_nodes_and_spares_of_a_host_keep_their_names_when_there_are_more_of_them() -> None:
    def roles(before: BedSpec | None, nodes: int) -> dict[str, str]:
        made = nodes_from_inventory.assemble_bed(
            parse_inventory.parse(text.format(nodes), "lab.yml"), agent="a" * 64, state="/s", home="/h", recorded=lambda name: before
        )  # fmt: skip
        beds.append(made)
        return {node.name: node.role for node in made.nodes}

    text, beds = (
        "all: {{hosts: {{h1: {{ansible_connection: local, ccbed_nodes: {}, ccbed_spares: 1}}}}}}",
        list[BedSpec](),
    )
    assert roles(None, 1) == {"n0": "node", "n1": "spare"}
    assert roles(beds[0], 2) == {"n0": "node", "n2": "node", "n1": "spare"}


def test_a_host_that_left_and_was_not_observed_is_remembered() -> None:
    left = bed(bed(h1=1, h2=1), h1=1)
    assert departed.without_empty_hosts(left, (), ["h1"]).departed == left.departed
    assert departed.without_empty_hosts(left, (), ["h1", "h2"]).departed == ()


# --- what is there ----------------------------------------------------------------------------------------------------


def test_a_node_on_the_wrong_host_is_removed_there_and_created_where_it_is_wanted() -> None:
    wanted = bed(h1=1, h2=1)
    status = observed_status.bed_status(
        wanted, {"h1": host_status(container("n0"), container("n1")), "h2": host_status()}
    )
    plan = diff(wanted, status)
    assert [(change.node, change.host) for change in plan.of("remove")] == [("n1@h1", "h1")]
    assert [change.node for change in plan.of("create")] == ["n1"]


def test_a_host_that_left_is_emptied_and_a_reason_is_given_for_each_of_its_nodes() -> None:
    wanted = bed(bed(h1=1, h2=2), h1=1)
    status = observed_status.bed_status(
        departed.departed_bed(wanted), {"h2": host_status(container("n1"), container("n2", "dead"))}
    )
    changes = departed.changes(wanted, status, {})
    assert [(change.action, change.node, change.host) for change in changes] == [
        ("remove", "n1", "h2"), ("remove", "keeper", "h2"), ("remove", "ended containers", "h2"),
    ]  # fmt: skip
    assert {change.reason for change in changes} == {"its host h2 is no longer in the inventory"}
    assert [host.name for host in departed.hosts_to_clear(wanted, changes)] == ["h2"]
    assert departed.without_empty_hosts(wanted, changes, ["h2", "h3"]) == wanted


def test_a_host_that_left_and_is_empty_is_forgotten_and_one_that_is_away_is_not() -> None:
    wanted = bed(bed(h1=1, h2=1, h3=1), h1=1)
    status = observed_status.bed_status(departed.departed_bed(wanted), {"h2": host_status(keeper=False)})
    changes = departed.changes(wanted, status, {"h3": "no route"})
    assert [(change.action, change.node) for change in changes] == [("keep", "n2")]
    assert "h3 is no longer in the inventory, and cannot be reached: no route" in changes[0].reason
    assert [host.host.name for host in departed.without_empty_hosts(wanted, changes, ["h2", "h3"]).departed] == ["h3"]
    assert departed.hosts_to_clear(wanted, changes) == ()


def test_a_host_with_another_name_is_the_same_machine_and_its_nodes_are_listed_once() -> None:
    wanted = bed(bed(h1=1), h2=1)
    on_host = {**host_status(container("n0")), "place": "boot:1:7"}
    status = observed_status.bed_status(wanted, {"h2": on_host})
    present = [host.directory_id for host in status.hosts]
    of_old_name = observed_status.bed_status(departed.departed_bed(wanted), {"h1": on_host})
    assert departed.changes(wanted, of_old_name, {}, present) == ()
    assert departed.without_empty_hosts(wanted, (), ["h1", "h2"]).departed == ()
    plan = diff(wanted, status)
    assert [(change.action, change.node) for change in plan.changes] == [("create", "n1"), ("remove", "n0")]
    elsewhere = observed_status.bed_status(departed.departed_bed(wanted), {"h1": {**on_host, "place": "boot:1:8"}})
    assert [change.node for change in departed.changes(wanted, elsewhere, {}, present)] == ["n0", "keeper"]


# --- the verbs --------------------------------------------------------------------------------------------------------


class Hosts(FakeProvider):
    """It has hosts: each with its nodes, those in ``away`` are not reached."""

    away: tuple[str, ...] = ()

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        names = [host.name for host in bed.hosts]
        where = {node.name: node.host for node in bed.nodes}
        nodes = [dataclasses.replace(node, host=node.host or where.get(node.name, "")) for node in self.nodes.values()]
        self.nodes = {node.name: node for node in nodes}
        present = tuple(node for node in nodes if node.host in names)
        hosts = tuple(
            HostStatus(name=name, keeper_pid=int(any(node.host == name for node in present))) for name in names
        )
        status = BedStatus(
            name=bed.name, nodes=present, keeper_pid=9, keeper_hash=bed.agent, hosts=hosts, detached=True
        )
        if missing := {name: "no route" for name in names if name in self.away}:
            raise UnreachedError(status=status, hosts=missing)
        return status


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Hosts, Any]:
    monkeypatch.setattr(up, "_preflight", lambda *_: None)
    provider, inventory = Hosts(), tmp_path / "lab.yml"

    def run(verb: str, *args: str, **counts: int) -> tuple[int, str]:
        hosts = ", ".join(
            f"{name}: {{ansible_host: 10.0.0.{name[1:]}, ccbed_nodes: {n}}}" for name, n in counts.items()
        )
        inventory.write_text(f"all: {{hosts: {{{hosts}}}, vars: {{ccbed_provider: docker, ansible_user: x}}}}")
        out = io.StringIO()
        desk = terminal_session.Session(
            state=tmp_path, terminal=terminal.Terminal(out=out, err=out), agent=lambda: "a" * 64,
            providers={"docker": lambda state: provider},
        )  # fmt: skip
        target = [] if verb in ("status", "down") else [str(inventory)]
        prepare = ["--no-prepare"] if verb == "up" else []
        return main.run([verb, *target, *prepare, *args], desk), out.getvalue()

    return provider, run


def test_up_ends_what_is_on_a_host_that_left(desk: tuple[Hosts, Any], tmp_path: Path) -> None:
    provider, run = desk
    assert run("up", h1=1, h2=1)[0] == 0
    code, output = run("plan", h1=1)
    assert "its host h2 is no longer in the inventory" in output
    code, output = run("up", h1=1)
    assert (code, provider.commands[-1]) == (0, "clear h2"), output
    assert "h2: 1 processes ended, none is left" in output
    assert (present := store.read(tmp_path, "lab")) is not None
    assert present.departed == ()
    assert "nothing to change" in run("up", h1=1)[1]


def test_a_host_that_left_and_is_away_is_named_each_time_and_ended_when_it_is_back(
    desk: tuple[Hosts, Any], tmp_path: Path
) -> None:
    provider, run = desk
    run("up", h1=1, h2=1)
    provider.away = ("h2",)
    for _ in range(2):
        code, output = run("up", h1=1)
        assert code == 0, output
        assert "warning: n1: its host h2 is no longer in the inventory, and cannot be reached: no route" in output
        assert "nothing to change" in output
    assert "host h2: no longer in the inventory" in run("status", h1=1)[1]
    provider.away = ()
    assert "h2: 1 processes ended" in run("up", h1=1)[1]


def test_down_ends_all_hosts_that_were_ever_brought_up(
    desk: tuple[Hosts, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, run = desk
    run("up", h1=1, h2=1)
    provider.away = ("h2",)
    run("up", h1=1)
    provider.away = ()
    retired: list[list[str]] = []

    def retire(bed: BedSpec) -> tuple[int, ...]:
        retired.append([host.name for host in bed.hosts])
        provider.nodes = {}
        return (7, 8)

    monkeypatch.setattr(provider, "retire", retire)
    assert "none is left" in run("down", h1=1)[1]
    assert retired == [["h1", "h2"]]


@pytest.mark.parametrize("variable", ["ccbed_workdir: /other", "ccbed_provider: process, ansible_connection: local"])
def test_a_bed_that_would_not_be_met_any_more_is_ended_first(tmp_path: Path, variable: str) -> None:
    before = bed(h1=1)
    text = f"all: {{hosts: {{h1: {{}}}}, vars: {{ccbed_bed: lab, ccbed_provider: docker, {variable}}}}}"
    if "process" in variable:
        text = text.replace("ccbed_provider: docker, ", "")
    after = nodes_from_inventory.assemble_bed(
        parse_inventory.parse(text, "lab.yml"), agent="a" * 64, state="/s", home="/h"
    )
    with pytest.raises(Exception, match=r"bed lab is up in .*; the inventory now says"):
        up._refuse_moved(after, before)


def test_the_plan_groups_what_is_removed_by_its_reason() -> None:
    wanted = bed(bed(h1=1, h2=1), h1=1)
    status = BedStatus(name="lab", nodes=(NodeStatus(name="n1", state="warm", host="h2"),))
    plan = dataclasses.replace(diff(wanted, BedStatus(name="lab")), departed=departed.changes(wanted, status, {}))
    out = io.StringIO()
    bed_view.plan(terminal.Terminal(out=out, err=out), wanted, plan)
    assert "1 to create, 0 to change, 1 to remove" in out.getvalue()
    assert "- n1           node   its host h2 is no longer in the inventory" in out.getvalue()
