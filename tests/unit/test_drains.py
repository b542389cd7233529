"""Hosts on which no node is placed: drained and undrained, in runs, nights and other verbs."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.app import audited
from orchestrator.app.hosts import quarantine
from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.model.errors import UsageError
from orchestrator.nightly.app import night_runs as nightly_run
from orchestrator.nightly.app import night_trials
from orchestrator.nightly.suite import Night, Suite
from orchestrator.store import bed_files as store

from .fake_bed import FakeProvider
from .fleet import Fleet, Verb, ccbed, fleet

#: Ansible lists inventories with hosts behind SSH.
pytestmark = pytest.mark.slow

__all__ = ["ccbed", "fleet"]


def ended(ccbed: Verb, output: str, hosts: str) -> tuple[int, str]:
    """Type the command that ``output`` names; its exit code and what it says it did."""
    _, _, rest = output.partition(f"ccbed set-aside {hosts} --end -i ")
    code, text = ccbed("set-aside", *hosts.split(), "--end", "-i", rest.split()[0])
    return code, text.splitlines()[-1].partition("     ")[0]


def test_no_node_is_placed_on_a_drained_host_across_down_and_up(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    code, output = ccbed("set-aside", "h2", "--reason", "a memory module is replaced")
    assert code == 0, output
    assert "set aside h2: n1 gets no rank" in output
    for _ in range(2):
        code, output = ccbed("status")
        assert code == 0
        assert "host h2 is set aside since 2" in output
        assert f"by {audited.user()}: a memory module is replaced" in output
        ccbed("down")
        fleet.away = ("h2",)
        code, output = ccbed("up")
        assert (code, set(fleet.nodes), set(fleet.contacted)) == (0, {"n0", "n2", "n3"}, {"h1", "h3"}), output
        assert "warning: host h2 is set aside since" in output
        fleet.away = ()
    assert ended(ccbed, ccbed("plan")[1], "h2") == (0, "back in use: h2")
    assert "set aside" not in ccbed("status")[1]
    assert ccbed("up")[0] == 0
    assert set(fleet.nodes) == {"n0", "n1", "n2", "n3"}


def test_status_of_a_drained_host_that_is_switched_off_is_no_failure(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    fleet.away = ("h2",)
    assert ccbed("status")[0] == 4
    assert ccbed("set-aside", "h2", "--reason", "off")[0] == 0
    code, output = ccbed("status")
    assert code == 0
    assert "ready, drained" in output
    assert "host h2: no route" in output
    assert "differs from the last `up`" not in output
    code, output = ccbed("status", "--json")
    assert json.loads(output)[0]["drained"]["h2"]["reason"] == "off"


def test_a_drained_host_is_refused_where_it_is_named(ccbed: Verb, fleet: Fleet, tmp_path: Path) -> None:
    ccbed("up")
    ccbed("set-aside", "h2", "--reason", "off")
    code, output = ccbed("up", "--limit", "h2")
    assert (code, dict(fleet.contacted)) == (3, {})
    assert "host h2 is set aside since" in output
    assert f"ccbed set-aside h2 --end -i {tmp_path / 'lab.yml'}" in output
    assert "h1 is not set aside" in ccbed("set-aside", "h1", "--end")[1]
    assert "did you mean h2?" in ccbed("set-aside", "h22", "--reason", "off")[1]
    assert "it stays so" in ccbed("set-aside", "h2", "--reason", "another")[1]
    assert "another" not in ccbed("status")[1]


def test_a_bed_whose_hosts_are_all_drained_is_not_brought_up(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    ccbed("set-aside", "h1", "h2", "h3", "--reason", "move")
    code, output = ccbed("up")
    assert (code, dict(fleet.contacted)) == (3, {})
    assert ended(ccbed, output, "h1 h2 h3") == (0, "back in use: h1 h2 h3")


def test_the_hosts_of_a_bed_that_is_down_are_undrained_as_the_hint_says(
    ccbed: Verb, fleet: Fleet, tmp_path: Path
) -> None:
    code, output = ccbed("set-aside", "h1", "h2", "h3", "--reason", "move", "-i", str(tmp_path / "lab.yml"))
    assert (code, output) == (0, "set aside h1 h2 h3: n0 n1 n2 n3 get no rank\n")
    code, output = ccbed("up")
    assert code == 3 and not store.names(tmp_path)
    assert ended(ccbed, output, "h1 h2 h3") == (0, "back in use: h1 h2 h3")


def test_the_nodes_of_a_drained_host_are_ended_as_the_hint_says(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    output = ccbed("set-aside", "h2", "--reason", "off")[1]
    hint = output.partition("end the nodes there: ccbed ")[2].split()
    assert ccbed(hint[0], *hint[1:])[0] == 0
    assert set(fleet.nodes) == {"n0", "n2", "n3"}


def test_no_command_is_named_that_cannot_end_processes_by_host(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text(json.dumps({"all": {"hosts": {"a": {"ansible_connection": "local"}}}}))
    out = io.StringIO()
    desk = terminal_session.Session(
        state=tmp_path, terminal=terminal.Terminal(out=out, err=out), agent=lambda: "a" * 64,
        providers={"process": lambda state: FakeProvider()},
    )  # fmt: skip
    main.run(["up", str(tmp_path / "own.yml"), "--no-prepare"], desk)
    assert "own" in store.names(tmp_path)
    out.truncate(out.seek(0))
    assert main.run(["set-aside", "a", "--reason", "off"], desk) == 0
    assert "set aside a: " in out.getvalue() and "ccbed down" not in out.getvalue()


def test_a_reason_is_one_line_that_says_something(ccbed: Verb, tmp_path: Path) -> None:
    ccbed("up")
    for reason in ((), ("--reason", " \n ")):
        assert "--reason is empty" in ccbed("set-aside", "h2", *reason)[1]
    assert ccbed("set-aside", "h2", "--reason", "a fan\n  and a disk\n")[0] == 0
    assert quarantine.read(tmp_path / "beds" / "lab").drained["h2"].reason == "a fan and a disk"


def test_a_run_gives_no_rank_to_a_drained_host_and_a_spare_takes_its_slot(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    ccbed("set-aside", "h2", "--reason", "off")
    fleet.away = ("h2",)
    code, output = ccbed("run", "dp-ring", "--nodes", "3", "--dry-run")
    assert code == 0, output
    assert "h2" not in fleet.contacted
    assert "n1 is on host h2, which is set aside since" in output
    assert "n3 takes its place" in output
    ccbed("set-aside", "h2", "--end")
    fleet.away = ()
    assert "set aside" not in ccbed("run", "dp-ring", "--nodes", "3", "--dry-run")[1]


def test_too_few_undrained_nodes_are_named_with_the_command_that_ends_the_drain(ccbed: Verb) -> None:
    ccbed("up")
    ccbed("set-aside", "h1", "h2", "--reason", "off")
    code, output = ccbed("run", "dp-ring", "--nodes", "3", "--dry-run")
    assert code == 4
    assert ended(ccbed, output, "h1 h2") == (0, "back in use: h1 h2")
    assert "--include-quarantined" not in output and "repair it" not in output


def test_a_host_that_left_the_inventory_is_undrained_as_the_hint_says(
    ccbed: Verb, fleet: Fleet, tmp_path: Path
) -> None:
    ccbed("up")
    ccbed("set-aside", "h2", "--reason", "sold")
    file = tmp_path / "lab.yml"
    document = json.loads(file.read_text())
    del document["all"]["hosts"]["h2"]
    whole = file.read_text()
    file.write_text(json.dumps(document))
    output = ccbed("status")[1]
    assert ended(ccbed, output, "h2") == (0, "back in use: h2")
    file.write_text(whole)
    ccbed("set-aside", "h2", "--reason", "sold")
    ccbed("down")
    file.write_text(json.dumps(document))
    ccbed("up")
    assert ccbed("set-aside", "h2", "--end")[0] == 0, "the bed does not know the host any more"
    file.unlink()
    ccbed("set-aside", "h1", "--reason", "sold")
    assert "ccbed set-aside h1 --end --bed lab" in ccbed("status")[1]


def test_no_drain_is_lost_to_another_one(tmp_path: Path) -> None:
    """Operators, and a night that ends, change one file."""
    names = [f"h{number}" for number in range(40)]
    new = quarantine.Drain(by="me", since="2026", reason="off")
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda name: quarantine.drain(tmp_path, [name], new), names))
    assert sorted(quarantine.read(tmp_path).drained) == sorted(names)


def test_a_drain_names_the_run_that_keeps_its_ranks(ccbed: Verb, tmp_path: Path) -> None:
    ccbed("up")
    workdir = tmp_path / "beds" / "lab"
    store.begin_run(workdir, "r1", tmp_path / "r1")
    output = ccbed("set-aside", "h2", "--reason", "off")[1]
    assert "run r1 is open on bed lab, and keeps its ranks; runs that begin later leave h2 alone" in output


def test_a_command_on_a_node_contacts_its_host_only_and_warns_of_a_drain(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    ccbed("set-aside", "h2", "--reason", "a fan")
    fleet.away = ("h2",)
    output = ccbed("exec", "n0", "--", "true")[1]
    assert dict(fleet.contacted) == {"h1": None}
    assert "set aside" not in output
    fleet.away = ()
    output = ccbed("exec", "n1", "--", "true")[1]
    assert dict(fleet.contacted) == {"h2": None}
    assert "warning: host h2 is set aside since" in output


def test_a_drained_host_that_is_switched_off_is_not_pruned(ccbed: Verb, fleet: Fleet) -> None:
    ccbed("up")
    ccbed("set-aside", "h2", "--reason", "a fan")
    fleet.pruned.clear()
    assert ccbed("prune", "lab")[0] == 0
    assert fleet.pruned == ["h1", "h3"]


def in_a_night(tmp_path: Path, fleet: Fleet, **drained: str) -> tuple[night_trials.NightTrials, io.StringIO]:
    """The trials of a night that began with these nodes drained."""
    bed, out = store.read(tmp_path, "lab"), io.StringIO()
    assert bed is not None
    desk = terminal_session.Session(
        state=tmp_path, terminal=terminal.Terminal(out=out, err=out), agent=lambda: "a" * 64,
        providers={"docker": lambda state: fleet},
    )  # fmt: skip
    night = Night(
        name="night", suite=Suite(name="s", cells=()), bed="lab", provider="docker", hosts={}, number=0, started="", order=(),
        command="", ccbed="", drained=drained,
    )  # fmt: skip
    bed = nightly_run._as_begun(desk, bed, night)
    return night_trials.NightTrials(session=desk, bed=bed, directory=tmp_path / "night", night=night), out


def test_a_resumed_night_keeps_the_hosts_of_its_start(ccbed: Verb, fleet: Fleet, tmp_path: Path) -> None:
    ccbed("up")
    night, out = in_a_night(tmp_path, fleet, n1="is on host h2, which is drained")
    assert [node.name for node in night.bed.nodes] == ["n0", "n2", "n3"]
    assert "host h2 was set aside when night began: it takes part from the next night on" in out.getvalue()
    ccbed("set-aside", "h1", "--reason", "off")
    night, _ = in_a_night(tmp_path, fleet, n1="is on host h2, which is drained")
    assert [node.name for node in night.bed.nodes] == ["n2", "n3"]
    with pytest.raises(UsageError, match="no host is left of those with which night began"):
        in_a_night(tmp_path, fleet, n1="drained", n2="drained")
    night, out = in_a_night(tmp_path, fleet)
    assert [node.name for node in night.bed.nodes] == ["n1", "n2", "n3"]


def test_a_host_that_is_drained_in_a_night_gets_no_rank_of_its_later_trials(
    ccbed: Verb, fleet: Fleet, tmp_path: Path
) -> None:
    ccbed("up")
    night, _ = in_a_night(tmp_path, fleet)
    assert night.restore() == {}
    ccbed("set-aside", "h2", "--reason", "a fan")
    fleet.away = ("h2",)
    fleet.contacted.clear()
    (name, reason), *others = night.restore().items()
    assert (name, others) == ("n1", [])
    assert reason.startswith("is on host h2, which is set aside since") and reason.endswith("a fan; it gets no rank")
    assert [node.name for node in night._bed.nodes] == ["n0", "n2", "n3"]
    assert "h2" not in fleet.contacted
    assert night.restore() == {}, "it is said once"
    fleet.away = ()
    ccbed("set-aside", "h2", "--end")
    night.restore()
    assert night._bed == night.bed
    ccbed("set-aside", "all", "--reason", "a move")
    assert night.obstacle_to_all() == "every host of bed lab was set aside during the night (ccbed set-aside)"


def test_a_drained_host_gets_no_rank_also_where_every_other_node_is_lost(
    ccbed: Verb, fleet: Fleet, tmp_path: Path
) -> None:
    ccbed("up")
    night, _ = in_a_night(tmp_path, fleet)
    ccbed("set-aside", "h2", "--reason", "a fan")
    fleet.broken = ("n0", "n2")
    for name in fleet.broken:
        fleet.state(name, "dead")
    assert set(night.restore()) == {"n0", "n1", "n2"}
    assert [node.name for node in night._bed.nodes] == ["n0", "n2", "n3"]


def test_a_host_is_set_aside_until_a_time(ccbed: Verb, tmp_path: Path) -> None:
    ccbed("up")
    assert "--until: must be a time such as 30d" in ccbed("set-aside", "h2", "--reason", "a fan", "--until", "soon")[1]
    assert ccbed("set-aside", "h2", "--reason", "a fan", "--until", "2030-01-01")[0] == 0
    assert "until 2030-01-01T00:00:00Z" in ccbed("status")[1]
    ccbed("set-aside", "h2", "--end")
    for past in ("2020-01-01", "99999999d"):
        code, output = ccbed("set-aside", "h3", "--reason", "a fan", "--until", past)
        assert (code, "must be a time to come" in output) == (3, True), output
    code, output = ccbed("set-aside", "--reason", "a fan")
    assert (code, "no host is named" in output) == (3, True), output
    assert "nothing of bed lab is set aside" in ccbed("set-aside")[1]
    ccbed("set-aside", "h3", "--reason", "a fan", "--until", "3d")
    file = tmp_path / "beds" / "lab" / quarantine.FILE
    file.write_text(file.read_text().replace(json.loads(file.read_text())["drained"]["h3"]["until"], "soon"))
    code, output = ccbed("set-aside")
    assert (code, "what is set aside is not known" in output) == (4, True), output


def test_a_node_that_nights_accused_is_taken_back_also_where_it_left_the_bed(ccbed: Verb, tmp_path: Path) -> None:
    ccbed("up")
    offences = tuple(
        quarantine.Offence(node="n9", host="h9", night=f"night{number}", number=number, reason="slow", is_alone=True)
        for number in (1, 2)
    )
    quarantine._write(tmp_path / "beds" / "lab", quarantine.Quarantine(offences=offences))
    (name,) = (aside["name"] for aside in json.loads(ccbed("set-aside", "--json")[1])["set_aside"])
    code, output = ccbed("set-aside", name, "--end")
    assert (code, f"back in use: {name}" in output) == (0, True), output


def test_hosts_and_nodes_that_are_set_aside_are_one_list_and_end_together(ccbed: Verb, tmp_path: Path) -> None:
    ccbed("up")
    workdir = tmp_path / "beds" / "lab"
    offences = tuple(
        quarantine.Offence(node="n1", host="h2", night=f"night{number}", number=number, reason="slow", is_alone=True)
        for number in (1, 2)
    )
    quarantine._write(workdir, quarantine.Quarantine(offences=offences))
    assert ccbed("set-aside", "h3", "--reason", "a fan")[0] == 0
    code, output = ccbed("set-aside", "--json")
    listed = {aside["name"]: (aside["by"], aside["reason"]) for aside in json.loads(output)["set_aside"]}
    assert (code, listed) == (0, {"h3": (audited.user(), "a fan"), "n1": ("nights", "slow")})
    assert "n0 is not set aside" in ccbed("set-aside", "h3", "n0", "--end")[1], "nothing ends then"
    assert ccbed("set-aside", "h3", "n1", "--end")[1].splitlines()[-1].startswith("back in use: h3 n1 ")
    assert json.loads(ccbed("set-aside", "--json")[1])["set_aside"] == []


def test_the_former_verbs_work_with_a_notice(ccbed: Verb, tmp_path: Path) -> None:
    ccbed("up")
    output = ccbed("drain", "h2", "--reason", "a fan")[1]
    assert "drain is now set-aside; the former name works for one release" in output and "set aside h2: n1" in output
    output = ccbed("undrain", "h2")[1]
    assert "undrain is now set-aside --end;" in output and "back in use: h2" in output
    assert "nothing of bed lab is set aside" in ccbed("quarantine")[1]
    for release in (("--release", "n1"), ("--release=n1",)):
        code, output = ccbed("quarantine", *release)
        assert code == 3 and "--release is now --end" in output and "n1 is not set aside" in output


def test_undrain_without_a_bed_suggests_the_inventory(ccbed: Verb) -> None:
    code, output = ccbed("set-aside", "h1", "--end")
    assert (code, "no bed is up" in output, "-i INVENTORY" in output) == (3, True, True), output
