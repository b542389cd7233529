"""A verb that acts on hosts adds a line to the record of acts for each of them. A new verb is named here, with what it does to hosts."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import products
from orchestrator.app import audited
from orchestrator.app.hosts import quarantine
from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.model.bed import BedSpec, HostSpec
from orchestrator.model.event import Clock, Command, Event, Source
from orchestrator.model.launch import Request
from orchestrator.store import bed_files as store

from .test_departed import Hosts

PRODUCT = Path(main.__file__).parents[1]
#: Verb -> a command line that acts on h2, and maybe on other hosts.
ACTING = {
    "up": ("up", "INVENTORY", "--no-prepare"),
    "down": ("down", "lab"),
    "set-aside": ("set-aside", "h2", "--reason", "a fan"),
    "heal": ("heal", "lab"),
    "exec": ("exec", "n1", "--", "deploy", "--token", "open-sesame"),
    "prune": ("prune", "lab"),
}
#: Verb -> the module that runs its trials by ``audited.launch``.
RUNNING = {
    "run": "app/run.py", "nightly": "nightly/app/night_trials.py", "sweep": "app/run.py", "resume": "app/resume.py",
}  # fmt: skip
#: Verb -> why it has no line.
WITHOUT = {
    **dict.fromkeys(("status", "plan", "doctor", "watch", "top", "logs", "list"), "it reads from hosts, and changes nothing"),
    **dict.fromkeys(("check", "judge", "report", "compare", "runs", "trend", "baseline", "accept", "bundle"), "it works on bundles"),
    "checkpoint": "it reads files of the user",
    **dict.fromkeys(("size", "init", "config", "completion", "help"), "it contacts no host"),
    "probe": "it measures this machine; what it drains is Slurm's to record",
    "image": "it builds on this machine; `up` brings the image to the hosts",
}  # fmt: skip
#: Methods of a provider, and functions, that change something on hosts.
CHANGING = {"retire", "retire_hosts", "remove_leftovers", "perform", "launch", "mend"}
#: Files of use cases and of the command line that call one of them; each records its acts.
RECORDING = {
    "app/audited.py": "for each event of a run that concerns a host",
    "app/session.py": "it defines launch; audited calls it",
    "slurm/slurm_jobs.py": "it ends a job that `up` began; `up` records that",
    "app/down.py": "", "app/hosts/exec_.py": "", "app/heal.py": "", "app/up.py": "", "app/run.py": "",
    "nightly/app/night_trials.py": "", "nightly/app/spare_probe.py": "", "app/resume.py": "",
}  # fmt: skip


@dataclasses.dataclass(kw_only=True)
class Recorder(Hosts):
    """``changed``: hosts on which something was changed."""

    changed: set[str] = dataclasses.field(default_factory=set)
    bed: BedSpec | None = None

    def prepare(self, bed: BedSpec) -> None:
        self.changed |= {host.name for host in bed.hosts}
        super().prepare(bed)

    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        self.changed |= {host.name for host in bed.hosts}
        return super().retire(bed)

    def retire_hosts(self, bed: BedSpec, hosts: Sequence[HostSpec]) -> tuple[int, ...]:
        self.changed |= {host.name for host in hosts}
        return super().retire_hosts(bed, hosts)

    def open(self, bed: BedSpec, run: str) -> Mapping[str, int]:
        self.bed = bed
        return {}

    def perform(self, command: Command) -> None:
        assert self.bed is not None
        self.changed.add(self.bed.node(str(command.node)).host)
        super().perform(command)

    def remove_leftovers(self, bed: BedSpec, entries: Sequence[tuple[str, str, str]]) -> None:
        self.changed |= {host for host, _, _ in entries}
        super().remove_leftovers(bed, entries)

    def leftovers(self, bed: BedSpec) -> Sequence[tuple[str, Mapping[str, Any]]]:
        return [(host.name, entry) for host in bed.hosts for entry in self.left]

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        return {name: (node.incarnation, 1) for name, node in self.nodes.items()}


@dataclasses.dataclass(kw_only=True)
class Desk:
    folder: Path
    provider: Recorder = dataclasses.field(default_factory=Recorder)

    @property
    def inventory(self) -> Path:
        return self.folder / "lab.yml"

    def ccbed(self, *args: str) -> tuple[int, str]:
        out = io.StringIO()
        desk = terminal_session.Session(
            state=self.folder, terminal=terminal.Terminal(out=out, err=out), agent=lambda: "a" * 64,
            providers={"docker": lambda state: self.provider},
        )  # fmt: skip
        return main.run([arg.replace("INVENTORY", str(self.inventory)) for arg in args], desk), out.getvalue()

    def acts(self) -> list[dict[str, str]]:
        file = self.folder / audited.FILE
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A bed of three hosts that is up; h3 is drained, n1 in quarantine, and each host has something to prune."""
    monkeypatch.setattr("orchestrator.providers.preflight.check", lambda *_: ())
    desk = Desk(folder=tmp_path)
    hosts = {f"h{n}": {"ansible_host": f"10.0.0.{n}"} for n in (1, 2, 3)}
    variables = {"ccbed_provider": "docker", "ansible_user": "x"}
    desk.inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
    assert desk.ccbed("up", "INVENTORY", "--no-prepare")[0] == 0
    workdir = tmp_path / "beds" / "lab"
    offences = tuple(
        quarantine.Offence(node="n1", host="h2", night=f"night{n}", number=n, reason="slow", is_alone=True) for n in (1, 2)
    )  # fmt: skip
    drain = quarantine.Drain(by="me", since="2026", reason="a disk")
    quarantine._write(workdir, quarantine.Quarantine(offences=offences, drained={"h3": drain}))
    (tmp_path / audited.FILE).unlink()
    desk.provider.changed.clear()
    return desk


def test_every_verb_is_named_here() -> None:
    assert {*ACTING, *RUNNING, *WITHOUT} == set(main.VERBS)


@pytest.mark.parametrize("verb", ACTING)
def test_a_verb_records_its_act_on_each_host_that_it_changes(desk: Desk, verb: str) -> None:
    if verb == "up":
        desk.ccbed("down", "lab")
        (desk.folder / audited.FILE).unlink()
        desk.provider.changed.clear()
    if verb == "prune":
        desk.provider.left = [{"kind": "run", "name": "r", "size_bytes": 5, "age_s": 1e9}]
    code, output = desk.ccbed(*ACTING[verb])
    assert verb == "exec" or code == 0, output
    by_host = {row["host"]: row for row in desk.acts() if row["act"].partition(":")[0] == verb}
    assert {"h2"} | desk.provider.changed <= set(by_host), output
    assert all(row["result"] in (audited.OK, "exit 1") for row in by_host.values())
    assert "open-sesame" not in json.dumps(desk.acts())


@pytest.mark.parametrize("verb", ["status", "plan", "logs", "list", "runs"])
def test_a_verb_that_reads_changes_no_host(desk: Desk, verb: str) -> None:
    lines = {"plan": ("plan", "INVENTORY"), "logs": ("logs", "lab/n1"), "list": ("list", "beds")}
    desk.ccbed(*lines.get(verb, (verb,)))
    assert (desk.provider.changed, desk.acts()) == (set(), [])


def test_only_files_that_record_acts_change_something_on_hosts() -> None:
    """Whoever adds a call adds the file here, and a line to the record of acts."""
    folders = ("app", "cli", *(f"{product}/app" for product in products.NAMES))
    files = [file for folder in folders for file in (PRODUCT / folder).rglob("*.py")]
    files.append(PRODUCT / "slurm" / "slurm_jobs.py")
    calling = {str(file.relative_to(PRODUCT)) for file in files if _calls(file) & CHANGING}
    assert calling == set(RECORDING)
    for file in calling - {"app/audited.py", "app/session.py", "slurm/slurm_jobs.py"}:
        assert "audited" in (PRODUCT / file).read_text(), f"{file} records nothing"
    for module in RUNNING.values():
        assert "audited.launch(" in (PRODUCT / module).read_text()


def _calls(file: Path) -> set[str]:
    calls = (node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    return {call.attr for call in calls if isinstance(call, ast.Attribute)}


def test_a_run_records_the_hosts_with_its_ranks_and_each_fault(desk: Desk) -> None:
    bed = store.read(desk.folder, "lab")
    assert bed is not None
    forwarded: list[Event] = []
    faults = (SimpleNamespace(id="f0", fault="crash-node"), SimpleNamespace(id="f1", fault="pause-node"))
    request = Request(
        trial=SimpleNamespace(faults=faults), bed=bed, provider=desk.provider, catalogue=None, runs="", state="",  # type: ignore[arg-type]
        command="", on_event=forwarded.append,
    )  # fmt: skip
    events = [
        _event("ok", "gang.start", "n0", "e0/start/n0"), _event("ok", "gang.start", "n1", "e0/start/n1"),
        _event("ok", "fault.act", "n1", "f/f0/act"), _event("fail", "fault.heal", "n1", "f/f0/heal"),
        _event("info", "fault.act", "n0", "f/f1/act"), _event("note", "fault.injected", "n0", ""),
        _event("ok", "gang.start", "n0", "e1/start/n0"), _event("fail", "gang.start", "n1", "e1/start/n1"),
        _event("ok", "gang.start", "n2", "e1/start/n2"),
    ]  # fmt: skip

    def launch(request: Request) -> Any:
        request.on_begin("/runs/r1-twin")
        request.on_begin("/runs/r1")
        for event in events:
            request.on_event(event)
        return SimpleNamespace(code=0)

    own = terminal_session.Session(
        state=desk.folder, terminal=terminal.Terminal(out=io.StringIO(), err=io.StringIO()), launch=launch
    )
    audited.launch(own, request)
    assert forwarded == events
    assert [(row["host"], row["act"], row["result"]) for row in desk.acts()] == [
        ("h1", "run r1", "ok"), ("h2", "run r1", "ok"), ("h2", "fault crash-node on n1: run r1", "ok"),
        ("h2", "heal crash-node on n1: run r1", "failed"), ("h1", "fault pause-node on n0: run r1", "unknown"),
        ("h3", "run r1", "ok"),
    ]  # fmt: skip


def _event(type_: Any, f: str, node: str, key: str, value: Mapping[str, Any] | None = None) -> Event:
    at, source = Clock(boot="b", mono=0.0, wall=0.0), Source(writer="ctl", n=1)
    return Event(type=type_, f=f, at=at, source=source, key=key, node=node, value=value or {})
