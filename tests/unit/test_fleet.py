"""Parts of a fleet: --limit, rolling changes, and the record of what was done on each host."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import audited, prepared_hosts, up
from orchestrator.app.hosts import quarantine
from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.core.bed import nodes_from_inventory
from orchestrator.model.bed import BedSpec, BedStatus, Host, Inventory
from orchestrator.model.errors import UsageError
from orchestrator.model.event import Command
from orchestrator.model.launch import Request, Result
from orchestrator.model.trial import Trial
from orchestrator.node.files import label
from orchestrator.node.hostlink import bed_files, host_operations
from orchestrator.prepare import doctor_survey, facts
from orchestrator.store import bed_files as store

from . import beds
from .fleet import Fleet, Verb, ccbed, fleet

#: Ansible lists inventories with hosts behind SSH.
pytestmark = pytest.mark.slow

__all__ = ["ccbed", "fleet"]


def test_up_with_a_limit_acts_on_these_hosts_only_and_keeps_the_whole_bed(
    ccbed: Verb, fleet: Fleet, tmp_path: Path
) -> None:
    code, output = ccbed("up", "--limit", "h1,h3")
    assert code == 0, output
    assert (set(fleet.nodes), set(fleet.contacted)) == ({"n0", "n2", "n3"}, {"h1", "h3"})
    wanted = store.read(tmp_path, "lab")
    assert wanted is not None
    assert [node.name for node in wanted.nodes] == ["n0", "n1", "n2", "n3"]
    assert store.needs_preflight(tmp_path, "lab"), "h2 was not checked"
    code, output = ccbed("up")
    assert (code, fleet.commands) == (0, ["node.apply n1"]), output
    assert not store.needs_preflight(tmp_path, "lab")


def test_down_with_a_limit_ends_these_hosts_only(ccbed: Verb, fleet: Fleet, tmp_path: Path) -> None:
    ccbed("up")
    before = store.read(tmp_path, "lab")
    code, output = ccbed("down", "--limit", "h2")
    assert (code, set(fleet.nodes), set(fleet.contacted)) == (0, {"n0", "n2", "n3"}, {"h2"}), output
    assert "bed lab is down on h2: 1 process ended, none is left" in output
    assert store.read(tmp_path, "lab") == before
    assert "1 absent" in ccbed("status")[1]


def test_doctor_with_a_limit_inspects_these_hosts_only(ccbed: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    inspected: list[str] = []

    def examine(bed: BedSpec) -> dict[str, tuple[()]]:
        inspected.extend(host.name for host in bed.hosts)
        return {host.name: () for host in bed.hosts}

    monkeypatch.setattr(doctor_survey, "examine", examine)
    assert ccbed("doctor", "--limit", "h3")[0] == 0
    assert inspected == ["h3"]


@pytest.mark.parametrize("verb", ["up", "down", "doctor"])
def test_an_unknown_host_is_an_error_of_usage_with_the_nearest_name(ccbed: Verb, fleet: Fleet, verb: str) -> None:
    ccbed("up")
    code, output = ccbed(verb, "--limit", "h1,h22,h9x")
    assert code == 3
    assert "bed lab has no host h22; did you mean h2?" in output
    assert "its hosts: h1, h2, h3" in output
    assert not fleet.contacted


def test_down_knows_the_hosts_of_an_inventory_that_is_not_up(ccbed: Verb, tmp_path: Path) -> None:
    code, output = ccbed("down", str(tmp_path / "lab.yml"), "--limit", "h22")
    assert (code, "bed lab has no host h22; did you mean h2?" in output) == (3, True), output
    code, output = ccbed("down", str(tmp_path / "lab.yml"), "--limit", "h2")
    assert (code, "not up, nothing to end" in output) == (0, True), output


def test_a_rolling_up_changes_so_many_hosts_at_a_time_and_stops_at_the_first_that_fails(
    ccbed: Verb, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.broken = ("n1",)
    code, output = ccbed("up", "--max-unavailable", "1")
    assert (code, set(fleet.nodes)) == (4, {"n0"}), output
    assert "node n1: no memory left" in output
    assert "as wanted: h1; not up: h2 h3" in output
    assert f"to continue: ccbed up {tmp_path / 'lab.yml'} --max-unavailable 1" in output
    fleet.broken = ()
    code, output = ccbed("up", "--max-unavailable", "2")
    assert (code, fleet.commands) == (0, ["node.apply n1", "node.apply n2", "node.apply n3"]), output
    assert "nothing to change, 4 of 4 ready" in output


def test_a_rolling_change_that_fails_says_which_hosts_have_the_new_state_and_goes_on(
    ccbed: Verb, fleet: Fleet, tmp_path: Path
) -> None:
    ccbed("up")
    file = tmp_path / "lab.yml"
    file.write_text(file.read_text().replace('"ansible_user"', '"ccbed_env": {"ROUND": "2"}, "ansible_user"'))
    fleet.broken = ("n1",)
    code, output = ccbed("up", "--max-unavailable", "1")
    assert (code, fleet.commands) == (4, ["node.kill n0", "node.apply n0", "node.kill n1"]), output
    assert "as wanted: h1; not up: h2; not changed: h3" in output
    fleet.broken = ()
    code, output = ccbed("up", "--max-unavailable", "1")
    assert (code, fleet.commands[0]) == (0, "node.apply n1")
    assert fleet.commands[1:] == ["node.kill n2", "node.kill n3", "node.apply n2", "node.apply n3"]


def test_the_most_hosts_at_a_time_count_those_that_are_down_already(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    fleet.state("n2", "dead")
    code, output = ccbed("up", "--max-unavailable", "1")
    assert code == 0, output
    assert [line for line in output.splitlines() if line.startswith("hosts ")] == [
        "hosts h3 (1 of 3)", "hosts h1 (2 of 3)", "hosts h2 (3 of 3)",
    ]  # fmt: skip


def test_a_rolling_up_stops_where_a_changed_host_does_not_stay_up(
    ccbed: Verb, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n0 comes up, and ends when the next host is to be changed."""
    real = Fleet.observe

    def observe(self: Fleet, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        if len(bed.hosts) == 3 and "n0" in self.nodes:
            self.state("n0", "dead")
        return real(self, bed, memory=memory)

    monkeypatch.setattr(Fleet, "observe", observe)
    code, output = ccbed("up", "--max-unavailable", "1")
    assert (code, fleet.commands) == (4, ["node.apply n0"]), output
    assert "host h1: was changed, and is not up any more: n0 is dead" in output


def test_nothing_changes_the_bed_between_two_batches(ccbed: Verb, fleet: Fleet, tmp_path: Path) -> None:
    held: list[bool] = []
    real = fleet.perform

    def perform(command: object) -> None:
        with pytest.raises(UsageError, match="is being changed by another ccbed"), store.lock(tmp_path, "lab"):
            held.append(False)
        held.append(True)
        real(command)  # type: ignore[arg-type]

    fleet.perform = perform  # type: ignore[method-assign]
    assert ccbed("up", "--max-unavailable", "1")[0] == 0
    assert held == [True] * 4


def test_a_run_that_begins_between_two_batches_is_no_error_of_usage(
    ccbed: Verb, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3 says that nothing was started."""

    def refuse(session: object, bed: BedSpec, what: str) -> None:
        if fleet.nodes:
            raise UsageError("bed lab has an open run, r1", hint="ccbed watch r1")

    monkeypatch.setattr("orchestrator.app.beds.refuse_open", refuse)
    code, output = ccbed("up", "--max-unavailable", "2")
    assert (code, set(fleet.nodes)) == (4, {"n0", "n1"}), output
    assert "error: bed lab has an open run, r1" in output
    assert "as wanted: h1 h2; not up: h3" in output


def test_an_interrupted_rolling_up_says_how_far_it_came(ccbed: Verb, fleet: Fleet, tmp_path: Path) -> None:
    real = fleet.perform

    def perform(command: Command) -> None:
        if command.node == "n1":
            raise KeyboardInterrupt
        real(command)

    fleet.perform = perform  # type: ignore[method-assign]
    code, output = ccbed("up", "--max-unavailable", "1")
    assert code == 130
    assert "as wanted: h1; not up: h2 h3" in output
    assert f"to continue: ccbed up {tmp_path / 'lab.yml'} --max-unavailable 1" in output


@pytest.mark.parametrize(
    ("limit", "chosen"),
    [
        ("h1,h3", "h1 h3"), ("h3, h1", "h1 h3"), ("h[12]", "h1 h2"), ("h*", "h1 h2 h3"), ("all", "h1 h2 h3"),
        ("!h2", "h1 h3"), ("all,!h2", "h1 h3"), ("h*,!h[23]", "h1"), ("h1:h2", "h1 h2"),
    ],
)  # fmt: skip
def test_hosts_are_named_as_users_of_ansible_name_them(ccbed: Verb, limit: str, chosen: str) -> None:
    code, output = ccbed("plan", "--limit", limit, "--json")
    assert code == 0, output
    assert json.loads(output)["hosts"] == chosen.split()


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("H2", "bed lab has no host H2; did you mean h2?"),
        ("10.0.0.2", "bed lab has no host 10.0.0.2; that is the address of h2: name the host"),
        ("rack*", "bed lab has no host rack*; known: h1, h2, h3"),
        ("", "bed lab has no host '' (an empty name)"),
        ("h1,", "bed lab has no host '' (an empty name)"),
        ("!", "bed lab has no host !"),
        ("h1,!h1", "h1, !h1 leaves no host of bed lab"),
    ],
)
def test_a_limit_that_names_no_host_is_an_error_of_usage(ccbed: Verb, fleet: Fleet, limit: str, words: str) -> None:
    for verb in ("up", "plan", "doctor"):
        code, output = ccbed(verb, "--limit", limit)
        assert (code, dict(fleet.contacted)) == (3, {}), output
        assert words in output


def test_a_plan_has_the_changes_of_its_hosts(ccbed: Verb, fleet: Fleet) -> None:
    for line in (("plan",), ("up", "--dry-run")):
        code, output = ccbed(*line, "--limit", "h2", "--json")
        document = json.loads(output)
        assert (code, dict(fleet.contacted)) == (0, {"h2": None})
        assert [change["node"] for change in document["diff"]["changes"]] == ["n1"]
        assert document["hosts"] == ["h2"]
        assert ccbed(*line, "--limit", "h9", "--json")[0] == 3
    assert "--limit h2" in ccbed("plan", "--limit", "h2")[1]


def test_a_plan_names_the_hosts_to_prepare_also_where_one_cannot_be_reached(ccbed: Verb, fleet: Fleet) -> None:
    fleet.away = ("h2",)
    code, output = ccbed("plan")
    assert (code, output.count("prepare: h1 h2 h3 (never prepared)")) == (4, 1), output


def test_up_with_a_limit_removes_old_files_of_these_hosts_only(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    fleet.pruned.clear()
    ccbed("up", "--limit", "h2")
    assert fleet.pruned == ["h2"]


def test_what_is_left_running_is_said_of_the_hosts_that_were_changed(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up", "--limit", "h1")
    fleet.broken = ("n1",)
    output = ccbed("up", "--limit", "h2")[1]
    assert "nothing of bed lab is left running on h2" in output
    output = ccbed("up", "--limit", "h1,h2")[1]
    assert "left running on h1 h2: the host agent of h1, node n0; to remove it: ccbed down lab --limit h1,h2" in output


def test_down_with_a_limit_ends_the_hosts_that_can_be_reached(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    fleet.away = ("h2",)
    code, output = ccbed("down", "--limit", "h2,h3")
    assert (code, set(fleet.nodes)) == (4, {"n0", "n1"}), output
    assert "h3 ended; once the others are back: ccbed down lab --limit h2" in output
    fleet.away = ()
    assert ccbed("down", "--limit", "h2")[0] == 0
    assert set(fleet.nodes) == {"n0"}


def test_down_of_a_part_of_another_owners_bed_needs_force(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    fleet.is_foreign = True
    code, output = ccbed("down", "--limit", "h2")
    assert (code, len(fleet.nodes)) == (3, 4), output
    code, output = ccbed("down", "--limit", "h2", "--force")
    assert (code, set(fleet.nodes)) == (0, {"n0", "n2", "n3"}), output


@pytest.mark.parametrize(("size", "batches"), [("1", ["h1", "h2", "h3"]), ("2", ["h1 h2", "h3"]), ("3", ["h1 h2 h3"])])
def test_a_rolling_up_prepares_each_host_once_and_so_many_at_a_time(
    ccbed: Verb, monkeypatch: pytest.MonkeyPatch, size: str, batches: list[str]
) -> None:
    prepared: list[str] = []

    def ready(session: object, bed: BedSpec, *, wanted: bool | None = None, hosts: tuple[str, ...] = ()) -> BedSpec:
        prepared.extend([" ".join(hosts)] if wanted else [])
        return bed

    monkeypatch.setattr(prepared_hosts, "ready", ready)
    monkeypatch.setattr(prepared_hosts, "lost", lambda *_: ())
    code, output = ccbed("up", "--prepare", "--max-unavailable", size)
    assert (code, prepared) == (0, batches), output


def test_every_act_is_recorded_with_its_host_who_when_and_how_it_ended(
    ccbed: Verb, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.broken = ("n1",)
    ccbed("up")
    fleet.broken = ()
    ccbed("up")
    ccbed("set-aside", "h3", "--reason", "a fan")
    ccbed("down")
    rows = [json.loads(line) for line in (tmp_path / audited.FILE).read_text().splitlines()]
    assert [(row["host"], row["act"], row["result"]) for row in rows] == [
        ("h1", "up: create n0", audited.UNKNOWN),
        ("h2", "up: create n1", "failed: node n1: no memory left"),
        ("h3", "up: create n2 n3", audited.UNKNOWN),
        ("h2", "up: create n1", audited.OK),
        ("h3", "set-aside: a fan", audited.OK),
        *((host, "down", audited.OK) for host in ("h1", "h2", "h3")),
    ]
    assert {(row["user"], row["bed"]) for row in rows} == {(audited.user(), "lab")}
    assert all(row["time"].endswith("Z") for row in rows)
    assert json.loads(fleet.acts["h2"]) == rows[-2], "the host has its own line"


def test_a_run_does_not_begin_while_the_bed_is_changed(
    ccbed: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audited, "CHANGE_S", 0.05)
    ccbed("up")
    with store.lock(tmp_path, "lab"):
        code, output = ccbed("run", "dp-ring", "--nodes", "3")
        assert (code, "bed lab is being changed by another ccbed" in output) == (3, True), output
        code, output = ccbed("up")
        assert (code, "bed lab is being changed by another ccbed" in output) == (3, True), output


def test_an_act_is_recorded_where_the_user_has_no_name(
    ccbed: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert audited.user().startswith(f"{os.getuid()}@")
    assert ccbed("up")[0] == 0
    assert ccbed("down")[0] == 0
    assert store.read(tmp_path, "lab") is None


def test_an_act_that_cannot_be_recorded_is_done_with_a_warning(
    ccbed: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / audited.FILE).mkdir()  # cannot be written, as on a full disk
    code, output = ccbed("up")
    assert code == 0 and "audit.jsonl: not recorded: Is a directory" in output
    assert ccbed("down")[0] == 0
    assert store.read(tmp_path, "lab") is None


def test_a_record_has_no_value_from_a_vault(tmp_path: Path) -> None:
    out = io.StringIO()
    desk = terminal_session.Session(state=tmp_path, terminal=terminal.Terminal(out=out, err=out))
    desk.terminal.secrets.add("of-the-session")
    bed = dataclasses.replace(beds.local(), vault=("open-sesame",))
    result = "failed: n0: -P open-sesame of-the-session"
    lines = audited.record(desk, bed, "up: open-sesame", {"h1": result})
    row = json.loads((tmp_path / audited.FILE).read_text())
    assert (row["act"], row["result"]) == ("up: ***", "failed: n0: -P *** ***")
    assert json.loads(lines["h1"]) == row


def test_a_host_keeps_the_lines_that_concern_it_when_the_bed_has_ended(tmp_path: Path) -> None:
    for line in ("first", "second"):
        host_operations.record_act(str(tmp_path), line)
        bed_files.remove_bed_files(str(tmp_path))
    assert (tmp_path / label.ACTS).read_text() == "first\nsecond\n"
    assert (tmp_path / label.ACTS).stat().st_mode & 0o777 == 0o600
    assert label.ACTS in facts.BED_ENTRIES, "preparation must know it as a file of ccbed"
    host_operations.record_act(str(tmp_path / "gone"), "third")
    assert not (tmp_path / "gone").exists()


def test_one_host_behind_ssh_has_the_network_of_its_host_and_the_own_engine_a_private_one() -> None:
    def network(**variables: str) -> tuple[str, str]:
        host = Host(name="h1", variables={"ccbed_provider": "docker", "ansible_host": "10.0.0.1", **variables})
        inventory = Inventory(path="lab.yml", hosts=(host,))
        bed = nodes_from_inventory.assemble_bed(inventory, agent="a", state="/s", home="/h")
        return bed.network, bed.nodes[0].address

    assert network() == ("host", "10.0.0.1"), "its engine may have no bridge"
    assert network(ccbed_network="private") == ("private", ""), "the address of its host is not in that network"
    assert network(ansible_connection="local") == ("private", "")


@pytest.mark.parametrize("option", ["--limit=a", "--max-unavailable=1", "--max-unavailable=2"])
def test_an_option_cannot_choose_between_hosts_that_share_a_keeper(tmp_path: Path, option: str) -> None:
    hosts = {name: {"ansible_connection": "local"} for name in ("a", "b")}
    (tmp_path / "own.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    out = io.StringIO()
    desk = terminal_session.Session(
        state=tmp_path, terminal=terminal.Terminal(out=out, err=out), agent=lambda: "a" * 64
    )
    assert main.run(["up", str(tmp_path / "own.yml"), option], desk) == 3
    name = option.partition("=")[0]
    assert f"{name} cannot choose between hosts: all its hosts are this machine, with one host agent" in out.getvalue()
    assert f"without {name}" in out.getvalue()


def test_a_rolling_up_leaves_a_host_alone_that_is_drained_meanwhile(
    ccbed: Verb, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = up._up

    def change(session: terminal_session.Session, bed: BedSpec, hosts: tuple[str, ...], **options: Any) -> bool:
        is_changed = real(session, bed, hosts, **options)
        quarantine.drain(Path(bed.workdir), ["h2"], quarantine.Drain(by="y", since="x", reason="a fan"))
        return is_changed

    monkeypatch.setattr(up, "_up", change)
    code, output = ccbed("up", "--max-unavailable", "1")
    assert (code, set(fleet.nodes)) == (0, {"n0", "n2", "n3"}), output
    assert "hosts h3 (2 of 2)" in output


@pytest.mark.parametrize("is_short", [True, False])
def test_a_run_waits_for_a_short_change_of_its_bed_and_is_rejected_during_a_long_one(
    is_short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, requests = io.StringIO(), list[Request]()

    def launch(request: Request) -> Result:
        requests.append(request)
        return Result(run="r", directory="", code=0)

    desk = terminal_session.Session(state=tmp_path, terminal=terminal.Terminal(out=out, err=out), launch=launch)
    request = Request(
        trial=Trial(name="t", workload="w"), bed=beds.local(), provider=Fleet(), catalogue=desk.catalogue, runs="", state="",
        command="",
    )  # fmt: skip
    monkeypatch.setattr(audited, "CHANGE_S", 0.05)
    with contextlib.ExitStack() as change:
        change.enter_context(store.lock(tmp_path, request.bed.name))
        monkeypatch.setattr(time, "sleep", lambda seconds: change.close() if is_short else None)
        with contextlib.nullcontext() if is_short else pytest.raises(UsageError, match="is being changed by another"):
            audited.launch(desk, request)
    assert len(requests) == is_short
