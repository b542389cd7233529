"""Parts of a fleet on hosts behind SSH: --limit, drained hosts, and changes of a few hosts at a time.

The tests share a bed, in order: each leaves it as the next one needs it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.app import audited, session
from orchestrator.core.bed import selection
from orchestrator.model.errors import (
    EXIT_INFRASTRUCTURE,
    EXIT_PASS,
    EXIT_USAGE,
    InfrastructureError,
    UnreachedError,
)
from orchestrator.nightly import night_files
from orchestrator.store import bed_files as store

from . import layout
from .desk import HOSTS, CommandResult, Desk

pytestmark = pytest.mark.lab
#: However slow the lab's machine is just now.
LONG_S = 400.0
SAMPLE_S = 0.2


@pytest.fixture(scope="module")
def desk(lab: layout.Lab, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(folder=tmp_path_factory.mktemp("fleet"), lab=lab, image=image)
    yield desk
    for host in HOSTS:
        desk.on(host)
    desk.ccbed("down", inventory(desk), "--force", within_s=LONG_S)


def inventory(desk: Desk, hosts: Mapping[str, Mapping[str, Any]] | None = None, **variables: Any) -> Path:
    """A node on each host and no spare."""
    file = desk.inventory(hosts, **{"ccbed_start_timeout": "5m", **variables})
    document = yaml.safe_load(file.read_text())
    for host in document["all"]["hosts"].values():
        host["ccbed_spares"] = 0
    file.write_text(yaml.safe_dump(document))
    return file


def ccbed(desk: Desk, *args: str | Path, code: int = EXIT_PASS) -> CommandResult:
    result = desk.ccbed(*args, within_s=LONG_S)
    assert result.code == code, result.text
    return result


def containers(desk: Desk) -> dict[str, list[str]]:
    """Host -> the ids of its running containers of the bed."""
    argv = ("docker", "ps", "--quiet", "--filter", "name=^ccbed-bad-n")
    return {host: desk.inside(host, *argv).split() for host in HOSTS}


def has_keeper(desk: Desk, host: str) -> bool:
    listed = desk.inside(host, "ps", "-eo", "args").splitlines()
    return any("agent-" in line and " keeper " in line for line in listed)


def acts(desk: Desk) -> list[tuple[str, str, str]]:
    lines = (desk.folder / "state" / audited.FILE).read_text().splitlines()
    return [(row["host"], row["act"], row["result"]) for row in map(json.loads, lines)]


@dataclass(kw_only=True)
class Observer:
    """Observes the bed while ``up`` works. ``away``: every set of hosts of which no node could be used."""

    desk: Desk
    away: set[tuple[str, ...]] = field(default_factory=set)
    samples: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        end = threading.Event()
        thread = threading.Thread(target=self._observe, args=(end,))
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def _observe(self, end: threading.Event) -> None:
        state = self.desk.folder / "state"
        provider = session.docker_provider(state)
        while not end.wait(SAMPLE_S):
            bed = store.read(state, "bad")
            assert bed is not None
            try:
                status = provider.observe(bed, memory=False)
            except UnreachedError as error:
                status = error.status
            except InfrastructureError:
                continue
            self.away.add(tuple(selection.unavailable(bed, status, HOSTS)))
            self.samples += 1
        provider.close()


def test_up_with_a_limit_then_up(desk: Desk) -> None:
    bed = inventory(desk)
    text = ccbed(desk, "up", bed, "--limit", "h1,h3").text
    assert "2 to create" in text
    assert {host: len(ids) for host, ids in containers(desk).items()} == {"h1": 1, "h2": 0, "h3": 1}
    assert not has_keeper(desk, "h2")
    assert {host for host, *_ in acts(desk)} == {"h1", "h3"}
    plan = json.loads(ccbed(desk, "up", bed, "--dry-run", "--json", "--limit", "h1").text)
    assert (plan["hosts"], plan["empty"]) == (["h1"], True)
    before = containers(desk)
    ccbed(desk, "up", bed)
    after = containers(desk)
    assert (after["h1"], after["h3"], len(after["h2"])) == (before["h1"], before["h3"], 1)
    assert "nothing to change, 3 of 3 ready" in ccbed(desk, "up", bed).text


def test_an_unknown_host_changes_nothing(desk: Desk) -> None:
    bed, before = inventory(desk), containers(desk)
    for line in (("up", bed), ("plan", bed), ("doctor", bed), ("down", "bad")):
        text = ccbed(desk, *line, "--limit", "h1,h22", code=EXIT_USAGE).text
        assert "bed bad has no host h22; did you mean h2?" in text
    assert containers(desk) == before


def test_doctor_with_a_limit_inspects_these_hosts(desk: Desk) -> None:
    with desk.off("h2"):
        ccbed(desk, "doctor", inventory(desk), code=EXIT_INFRASTRUCTURE)
        assert "nothing is lacking on 2 hosts" in ccbed(desk, "doctor", inventory(desk), "--limit", "!h2").text
    ccbed(desk, "up", inventory(desk))


def test_down_with_a_limit_ends_what_is_there(desk: Desk) -> None:
    before = containers(desk)
    ccbed(desk, "down", "bad", "--limit", "h2")
    assert containers(desk) == {**before, "h2": []}
    assert [has_keeper(desk, host) for host in HOSTS] == [True, False, True]
    with desk.off("h2"):
        result = ccbed(desk, "down", "bad", "--limit", "h2,h3", code=EXIT_INFRASTRUCTURE)
        assert "host h2: " in result.text
        assert "h3 ended; once the others are back: ccbed down bad --limit h2" in result.text
        assert containers_of(desk, "h3") == []
    ccbed(desk, "up", inventory(desk), "--limit", "h[23]")
    assert containers(desk)["h1"] == before["h1"]
    assert "3 of 3 ready" in ccbed(desk, "up", inventory(desk)).text


def containers_of(desk: Desk, host: str) -> list[str]:
    return desk.inside(host, "docker", "ps", "--quiet", "--filter", "name=^ccbed-bad-n").split()


def test_a_drained_host_may_be_switched_off(desk: Desk) -> None:
    bed = inventory(desk)
    ccbed(desk, "set-aside", "h2", "--reason", "a fan is replaced")
    suite = desk.folder / "mine.yml"
    suite.write_text("suite: mine\nseed: 3\ntrials:\n  - {trial: dp-ring, world: {nodes: 2}}\n")
    with desk.off("h2"):
        assert "host h2 is set aside since" in ccbed(desk, "up", bed).text
        line = ("nightly", suite, "--bed", "bad", "--runs-dir", desk.folder / "runs", "--json")
        text = ccbed(desk, *line).text
        document, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
        assert [row["state"] for row in document["rows"]] == ["passed"]
        night = night_files.read_night(Path(document["directory"]))
        assert (set(night.drained), set(night.hosts)) == ({"n1"}, {"n0", "n2"})
        assert "host h2 is set aside" in ccbed(desk, "up", bed, "--limit", "h2", code=EXIT_USAGE).text
    ccbed(desk, "set-aside", "h2", "--end")
    ccbed(desk, "up", bed)
    assert all(containers(desk).values())
    assert [act for act in acts(desk) if "set-aside" in act[1]] == [
        ("h2", "set-aside: a fan is replaced", "ok"),
        ("h2", "set-aside: end h2", "ok"),
    ]


def test_a_change_of_one_host_at_a_time_stops_at_a_failure_and_goes_on(desk: Desk) -> None:
    """h2 cannot start its node: its container has less memory than Python needs."""
    before, observer = containers(desk), Observer(desk=desk)
    changed: dict[str, Any] = {"ccbed_env": {"ROUND": "2"}}
    with observer.watching():
        bed = inventory(desk, {"h2": {"ccbed_memory": "8m"}}, ccbed_start_timeout="90s", **changed)
        text = ccbed(desk, "up", bed, "--max-unavailable", "1", code=EXIT_INFRASTRUCTURE).text
        assert "error: node n1: " in text
        assert "as wanted: h1; not up: h2; not changed: h3" in text
        assert f"to continue: ccbed up {bed} --max-unavailable 1" in text
        middle = containers(desk)
        assert middle["h1"] != before["h1"]
        assert middle["h3"] == before["h3"]
        text = ccbed(desk, "up", inventory(desk, **changed), "--max-unavailable", "1").text
        after = containers(desk)
    assert [line for line in text.splitlines() if line.startswith("hosts ")] == [
        "hosts h2 (1 of 3)",
        "hosts h1 (2 of 3)",
        "hosts h3 (3 of 3)",
    ]
    assert after["h1"] == middle["h1"], "it is as wanted"
    assert after["h3"] != before["h3"]
    assert all(after.values())
    assert observer.samples > 5
    assert observer.away <= {(), *((host,) for host in HOSTS)}, "two hosts were down at once"
    assert {("h1",), ("h2",), ("h3",)} <= observer.away, "the observer can see that a host is down"
