"""Commands that are overdue: what begins something is never done late, what ends something always is."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model.bed import HostSpec
from orchestrator.model.event import Command
from orchestrator.node.files import inbox, label
from orchestrator.node.keeper import keeper
from orchestrator.providers.docker.docker_provider import DockerProvider

from . import beds, piped_site

KILL = Command(f="node.kill", key="kill", node="n0", deadline_s=0.5)
ACT = Command(f="fault.act", key="f/f0/act", node="n0", deadline_s=10.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("later_s", "names"), [(9.0, ["R.a.json", "R.b.json"]), (11.0, ["R.b.json"])])
def test_what_was_overdue_when_the_host_came_back_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later_s: float, names: list[str]
) -> None:
    clock, inbox_dir = Clock(), tmp_path / "host/nodes/n0/inbox"
    inbox_dir.mkdir(parents=True)
    with piped_site.site(tmp_path / "host", tmp_path / "mirror", monkeypatch, clock) as site:
        site.write(f"{inbox_dir}/R.a.json", b"act", 10.0)
        site.write(f"{inbox_dir}/R.b.json", b"kill")
        clock.now += later_s
        site.open()
        until = time.monotonic() + 600
        while not (inbox_dir / "R.b.json").exists():
            assert time.monotonic() < until
        site.settle()
        assert sorted(path.name for path in inbox_dir.iterdir()) == names
    assert not site._unsent


class Away:
    """A site that keeps what is to be written, and for how long."""

    def __init__(self) -> None:
        self.limits_s: dict[str, float] = {}

    def write(self, path: str, content: bytes, within_s: float = 0.0) -> None:
        self.limits_s[json.loads(content)["f"]] = within_s


def test_only_what_ends_something_may_come_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away()
    provider = DockerProvider(tmp_path)
    bed = beds.local()
    bed = replace(bed, provider="docker", hosts=(HostSpec(name=bed.nodes[0].host),))
    monkeypatch.setattr(provider, "_bed", bed)
    monkeypatch.setattr(provider, "_site", lambda bed, host: away)
    monkeypatch.setattr(label, "lock_holder", lambda directory: 1)
    for f in ("fault.act", "fault.heal", "node.apply", "node.kill", "gang.start", "gang.stop", "store.open"):
        provider.perform(Command(f=f, key=f, node=bed.nodes[0].name, deadline_s=7.0))
    assert {f for f, within_s in away.limits_s.items() if within_s == 7.0} == {
        "fault.act", "node.apply", "gang.start", "store.open"
    }  # fmt: skip
    assert {f for f, within_s in away.limits_s.items() if within_s > 1e9} == {"fault.heal", "node.kill", "gang.stop"}


def test_an_injection_that_lay_in_the_inbox_of_a_dead_keeper_is_not_made_by_the_next(tmp_path: Path) -> None:
    made = keeper.Keeper(tmp_path, "b", "hash", keeper.CONTAINERS, str(tmp_path / "no.sock"))
    (tmp_path / "nodes/n0").mkdir(parents=True)
    inbox.post_command(tmp_path / "keeper", "R", ACT)
    old = time.time() - 60
    os.utime(tmp_path / "keeper/inbox" / inbox.command_file_name("R", ACT.key), (old, old))
    made._take_commands()
    events = [json.loads(line) for line in (tmp_path / "keeper/events.jsonl").read_text().splitlines()]
    (response,) = (event for event in events if event.get("key") == ACT.key)
    assert (response["type"], "its deadline is 10 s" in response["value"]["reason"]) == ("fail", True)
    assert list((tmp_path / "keeper/inbox").iterdir()) == []


def test_a_kill_that_lay_there_is_done(tmp_path: Path) -> None:
    made = keeper.Keeper(tmp_path, "b", "hash", keeper.CONTAINERS, str(tmp_path / "no.sock"))
    inbox.post_command(tmp_path / "keeper", "R", KILL)
    old = time.time() - 60
    os.utime(tmp_path / "keeper/inbox" / inbox.command_file_name("R", KILL.key), (old, old))
    made._take_commands()
    events = [json.loads(line) for line in (tmp_path / "keeper/events.jsonl").read_text().splitlines()]
    assert [event["type"] for event in events if event.get("key") == KILL.key] == ["ok"]
