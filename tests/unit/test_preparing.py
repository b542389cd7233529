"""What `up` tells of preparation: who, why, what changed, what failed, and that it is not done twice."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from orchestrator.app import prepared_hosts
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.model.bed import BedStatus, HostSpec, HostStatus
from orchestrator.model.errors import EXIT_USAGE, InfrastructureError, OwnedError
from orchestrator.node.oslayer.container_engine import EngineError
from orchestrator.prepare import host_access, hosts, playbook_runs
from orchestrator.providers import host_problems, owners
from orchestrator.providers.ssh import connection_errors

from .test_preparation import bed, host

FACTS = {"pythons": {"/usr/bin/python3": [3, 9], "/usr/bin/python3.11": [3, 11]}, "firewall": ""}


class Ansible:
    """Plays as it is told: ``failing`` hosts with what is said of them."""

    def __init__(self) -> None:
        self.played: list[playbook_runs.PlaybookRun] = []
        self.failing: Mapping[str, playbook_runs.Step] = {}
        self.away: dict[str, str] = {}
        self.labels: dict[str, str] = {}

    def play(self, wanted: playbook_runs.PlaybookRun, notify: playbook_runs.OnStep) -> playbook_runs.PlaybookResult:
        self.played.append(wanted)
        for name in wanted.hosts:
            notify(playbook_runs.Step(host=name, task="time", state="warn", message="the clock is not synchronised"))
            notify(self.failing.get(name, playbook_runs.Step(host=name, task="directory", state="changed")))
        done = tuple(name for name in wanted.hosts if name not in self.failing)
        failed = {name: step for name, step in self.failing.items() if name in wanted.hosts}
        return playbook_runs.PlaybookResult(
            done=done, failed=failed, facts=dict.fromkeys(done, FACTS), changed=len(done)
        )


@pytest.fixture
def ansible(monkeypatch: pytest.MonkeyPatch) -> Ansible:
    fake = Ansible()
    monkeypatch.setattr(playbook_runs, "run", fake.play)
    monkeypatch.setattr(hosts, "local_image", lambda _: None)
    monkeypatch.setattr(host_access, "read", lambda _, path: (fake.away, fake.labels))
    return fake


@pytest.fixture
def session(tmp_path: Path) -> Session:
    out = io.StringIO()
    return Session(state=tmp_path, terminal=terminal.Terminal(out=out, err=out))


def printed(session: Session) -> list[str]:
    out = session.terminal.out
    assert isinstance(out, io.StringIO)
    lines = out.getvalue().splitlines()
    out.seek(0)
    out.truncate()
    return lines


def test_hosts_are_prepared_once(session: Session, ansible: Ansible) -> None:
    prepared_hosts.show_due(session, prepared_hosts.due(session, bed()))
    assert printed(session) == ["prepare: h1 h2 (never prepared)"]
    prepared_hosts.ready(session, bed())
    lines = printed(session)
    assert lines[:2] == ["  prepare     h1  directory changed", "  prepare     h2  directory changed"]
    assert lines[2].startswith("  prepare     h1 h2 ready, 2 changed")
    assert lines[3:] == ["warning: h1 h2: the clock is not synchronised"]
    assert ansible.played[0].hosts == ["h1", "h2"]
    prepared_hosts.ready(session, bed())
    prepared_hosts.show_due(session, prepared_hosts.due(session, bed()))
    assert (printed(session), len(ansible.played)) == ([], 1)


def test_it_can_be_asked_for_or_left_out(session: Session, ansible: Ansible) -> None:
    prepared_hosts.ready(session, bed(), wanted=False)
    prepared_hosts.show_due(session, prepared_hosts.due(session, bed(), wanted=False))
    assert (printed(session), ansible.played) == ([], [])
    prepared_hosts.ready(session, bed())
    printed(session)
    prepared_hosts.show_due(session, prepared_hosts.due(session, bed(), wanted=True))
    assert printed(session) == ["prepare: h1 h2 (asked for)"]
    prepared_hosts.ready(session, bed(), wanted=True)
    assert len(ansible.played) == 2


def test_a_host_that_fails_does_not_take_the_others_along(session: Session, ansible: Ansible) -> None:
    ansible.failing = {
        "h2": playbook_runs.Step(host="h2", task="look", state="unreachable", message="Connection refused")
    }
    with pytest.raises(InfrastructureError) as refused:
        prepared_hosts.ready(session, bed())
    assert refused.value.problems == ("host h2: look: nothing listens on 198.18.0.2 port 22",)
    assert refused.value.hint.splitlines()[0] == "h2: start sshd there, or set ansible_port"
    assert refused.value.hint.splitlines()[1].startswith("h1 is ready and kept; to continue: ccbed up ")
    assert "  prepare     h2  look not reached" in printed(session)
    ansible.failing = {}
    prepared_hosts.ready(session, bed())
    assert ansible.played[1].hosts == ["h2"]


def test_a_host_that_is_not_reached_is_told_without_ansible_and_the_others_are_prepared(
    session: Session, ansible: Ansible
) -> None:
    ansible.away = {"h2": "root@h2 does not respond within 4 s; check the host's power"}
    with pytest.raises(InfrastructureError) as refused:
        prepared_hosts.ready(session, bed())
    assert list(refused.value.problems) == ["host h2: root@h2 does not respond within 4 s; check the host's power"]
    assert refused.value.hint.startswith("h1 is ready and kept; to continue: ccbed up")
    assert [list(play.hosts) for play in ansible.played] == [["h1"]]


def test_a_host_with_anothers_bed_is_refused_before_anything_is_done_to_any(session: Session, ansible: Ansible) -> None:
    own_id = owners.identity(session.state)
    ansible.labels = {
        "h1": json.dumps({"owner": "me@desk:/x", "owner_id": own_id}),
        "h2": json.dumps({"owner": "ann@desk:/beds/lab", "owner_id": "2"}),
    }
    with pytest.raises(OwnedError) as refused:
        prepared_hosts.ready(session, bed())
    assert refused.value.problems == ("host h2: bed lab exists already and belongs to ann@desk:/beds/lab",)
    assert (refused.value.exit_code, ansible.played) == (EXIT_USAGE, [])
    ansible.labels = {"h1": ansible.labels["h1"], "h2": ""}
    prepared_hosts.ready(session, bed())
    assert ansible.played[0].hosts == ["h1", "h2"], "one's own bed, and a host without one"


def test_what_a_host_lacks_is_told_with_the_fix_of_the_playbook(session: Session, ansible: Ansible) -> None:
    text = "engine 19.03 is too old; fix: upgrade Docker\nno GPU; fix: set ccbed_gpus: 0"
    ansible.failing = {"h1": playbook_runs.Step(host="h1", task="check", state="failed", message=text)}
    with pytest.raises(InfrastructureError) as refused:
        prepared_hosts.ready(session, bed())
    assert refused.value.problems == ("host h1: engine 19.03 is too old", "host h1: no GPU")
    assert refused.value.hint.splitlines()[:2] == ["h1: upgrade Docker", "h1: set ccbed_gpus: 0"]


def test_the_interpreter_that_was_found_is_used_unless_the_inventory_names_one(
    session: Session, ansible: Ansible
) -> None:
    own = dataclasses.replace(host("h2"), python="/opt/python3")
    refused = prepared_hosts.ready(session, bed(hosts=(host("h1"), own)))
    assert [host.python for host in refused.hosts] == ["/usr/bin/python3.11", "/opt/python3"]


def test_after_a_reset_everything_is_prepared_again(session: Session, ansible: Ansible) -> None:
    prepared_hosts.ready(session, bed())
    prepared_hosts.reset(session, bed())
    assert (ansible.played[1].playbook, ansible.played[1].hosts) == ("reset", ["h1", "h2"])
    prepared_hosts.ready(session, bed())
    assert ansible.played[2].hosts == ["h1", "h2"]


def test_what_is_anothers_on_a_host_is_not_reset_and_stays_known_as_prepared(
    session: Session, ansible: Ansible
) -> None:
    prepared_hosts.ready(session, bed())
    ansible.failing = {
        "h2": playbook_runs.Step(host="h2", task="held", state="failed", message="bed lab exists and belongs to ann")
    }
    with pytest.raises(OwnedError) as refused:
        prepared_hosts.reset(session, bed())
    assert refused.value.exit_code == EXIT_USAGE
    assert refused.value.problems == ("host h2: bed lab exists and belongs to ann",)
    assert refused.value.hint.endswith("ccbed down lab.yml --reset --force")
    assert ansible.played[1].variables["ccbed_owner"] == owners.text(bed())
    assert prepared_hosts.due(session, bed()) == ()
    ansible.failing = {}
    prepared_hosts.reset(session, bed(), force=True)
    assert ansible.played[2].variables["ccbed_force"] is True


def test_a_bed_is_its_owners_also_when_its_keeper_is_dead_and_by_its_containers_where_that_is_gone() -> None:
    dead = {"keeper": {"owner": "ann", "owner_id": "a", "alive": False}}
    own = {"keeper": {"owner": "me, before I was renamed", "owner_id": "b", "alive": False}, "owners": ["me, before"]}
    host_problems.refuse_foreign(
        bed(), "b", {"h1": own, "h2": {"keeper": {"alive": False}, "owners": [owners.text(bed())]}}
    )
    with pytest.raises(OwnedError, match="host h2: bed lab exists already and belongs to ann"):
        host_problems.refuse_foreign(bed(), "b", {"h1": own, "h2": dead})
    with pytest.raises(OwnedError, match="host h2: bed lab exists already and belongs to bob"):
        host_problems.refuse_foreign(bed(), "b", {"h2": {"keeper": {"alive": False}, "owners": ["bob"]}})


def status(**stamps: str) -> BedStatus:
    return BedStatus(name="lab", hosts=tuple(HostStatus(name=host, stamp=stamp) for host, stamp in stamps.items()))


def test_a_host_that_is_not_the_one_that_was_prepared_is_prepared_again(session: Session, ansible: Ansible) -> None:
    assert prepared_hosts.lost(session, bed(), status(h1="", h2="")) == (), "nothing was prepared yet"
    prepared_hosts.ready(session, bed())
    printed(session)
    prints = ansible.played[0].variables["ccbed_fingerprints"]
    assert prepared_hosts.lost(session, bed(), status(**prints)) == ()
    refused = prepared_hosts.lost(session, bed(), status(h1=prints["h1"], h2=""))
    prepared_hosts.forget(session, bed(), refused)
    reason = "the stamp of its preparation is missing: it was reinstalled, or it is another machine"
    assert printed(session) == [f"warning: h2: {reason}: prepared again"]
    prepared_hosts.ready(session, bed())
    assert ansible.played[1].hosts == ["h2"]


def test_a_host_that_cannot_say_what_it_has_is_asked_for_its_stamp_alone(
    session: Session, ansible: Ansible, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is stopped is no new machine, a machine without an engine and a stamp is; who is away, is away."""
    prepared_hosts.ready(session, bed())
    prints = ansible.played[0].variables["ccbed_fingerprints"]
    answers = {"h1": json.dumps({"fingerprint": prints["h1"], "machine": "m"}) + "\nm\n", "h2": "\nm\n"}

    class Way:
        def __init__(self, host: str) -> None:
            self.host = host

        def run(self, argv: list[str], text: str, limit_s: float) -> host_access.CommandOutput:
            return host_access.CommandOutput(code=0, stdout=answers[self.host], stderr="")

    @contextlib.contextmanager
    def reach(host: HostSpec) -> Iterator[Way]:
        if host.name not in answers:
            raise host_access.UnreachableError("silent")
        yield Way(host.name)

    monkeypatch.setattr(host_access, "connect_host", reach)

    def lost() -> list[str]:
        return [host.host for host in prepared_hosts.lost(session, bed(), status(), ("h1", "h2"))]

    assert lost() == ["h2"]
    answers["h1"] = answers["h1"].replace("\nm", "\nanother")
    assert lost() == ["h1", "h2"]
    answers.clear()
    assert lost() == []


def test_only_hosts_that_let_us_in_are_asked_for_their_stamp() -> None:
    wrong = {
        "h1": connection_errors.HostError("does not respond within 4 s"),
        "h2": connection_errors.python_missing(host("h2")),
        "h3": EngineError("the engine at /var/run/docker.sock is not reached"),
        "h4": TimeoutError("no answer"),
    }
    assert host_problems.unreached(bed(), wrong, status()).reached == ["h2", "h3"]


def test_variables_carry_no_more_than_preparation_needs(session: Session, ansible: Ansible) -> None:
    prepared_hosts.ready(session, bed())
    assert set(ansible.played[0].variables) == {"ccbed_bed", "ccbed_hostdir", "ccbed_addresses", "ccbed_fingerprints"}


@pytest.mark.parametrize(
    ("hosts", "cores", "forks"), [(1, 2, 1), (64, 2, 16), (64, 1, 8), (12, 16, 12), (1000, 96, 64), (0, 2, 1)]
)
def test_ansible_forks_by_hosts_and_cores(hosts: int, cores: int, forks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert playbook_runs.forks(hosts) == forks
