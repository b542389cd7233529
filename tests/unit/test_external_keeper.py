"""The holder on the orchestrator's machine: programs of the inventory, sshd that answer or do not, leases that heal by themselves."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.faults import stop_ssh
from orchestrator.model import codec
from orchestrator.model.act import Act, HostFacts, Primitive, Target
from orchestrator.model.bed import BedSpec, HostSpec
from orchestrator.model.errors import InfrastructureError
from orchestrator.model.event import Command, Event
from orchestrator.model.payload import Payload
from orchestrator.node.files import inbox, label
from orchestrator.node.keeper import host_primitives, keeper_start
from orchestrator.node.keeper.fault_lifecycle import FaultLifecycle
from orchestrator.node.keeper.lease_records import Lease, Leases
from orchestrator.node.keeper.node_protocol import ExternalNodes
from orchestrator.node.oslayer import processes
from orchestrator.node.oslayer.event_loop import Loop
from orchestrator.providers import event_reader, external_keeper
from orchestrator.store.bed_files import run_lock

from ..patience import until
from .fault_stand import results_of

#: An "sshd" that is started and stopped by argv: it introduces itself and writes down its pid.
SSHD = """
    import os, socket, sys
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    with open(sys.argv[2] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    while True:
        connection, _ = listener.accept()
        session = os.fork()  # a process of its own
        if session == 0:
            listener.close()
            connection.recv(1)
            os._exit(0)
        with open(sys.argv[2] + ".sessions", "a") as file:
            file.write(f"{session}\\n")
        connection.sendall(b"SSH-2.0-test\\r\\n")
        connection.close()
"""
CONTROL = """
    import os, signal, subprocess, sys, time
    what, port, pidfile = sys.argv[1:4]
    with open(pidfile + ".log", "a") as log:
        log.write(what + "\\n")
    if what.startswith("stop"):
        os.kill(int(open(pidfile).read()), signal.SIGKILL)
        os.unlink(pidfile)
        for session in open(pidfile + ".sessions") if what == "stop" and os.path.exists(pidfile + ".sessions") else ():
            try:
                os.kill(int(session), signal.SIGKILL)
            except ProcessLookupError:
                pass
    elif not os.path.exists(pidfile):  # one that runs goes on
        subprocess.Popen([sys.executable, os.path.dirname(pidfile) + "/sshd.py", port, pidfile], start_new_session=True)
        while not os.path.exists(pidfile):
            time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may answer late."""
    monkeypatch.setattr(host_primitives, "RESPONSE_S", 30.0)


@dataclass
class Host:
    """A host whose sshd is a process of ours."""

    directory: Path
    port: int

    def control(self, what: str) -> tuple[str, ...]:
        return (sys.executable, str(self.directory / "control.py"), what, str(self.port), str(self.directory / "pid"))

    @property
    def orders(self) -> list[str]:
        log = self.directory / "pid.log"
        return log.read_text().split() if log.exists() else []

    @property
    def pid(self) -> int:
        return int((self.directory / "pid").read_text()) if (self.directory / "pid").exists() else 0

    def act(self, for_s: float | None = None, **change: Any) -> Act:
        control = {"stop": self.control("stop"), "start": self.control("start")}
        spec = HostSpec(name="h", connection="ssh", address="127.0.0.1", port=self.port, ssh_control=control)
        facts = HostFacts(name="h", provider="docker", capabilities=frozenset(), spec=spec)
        return replace(stop_ssh.plan(stop_ssh.Params(for_s=for_s), Target(node="n2", rank=2), facts), **change)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    made = Host(directory=tmp_path, port=port)
    (tmp_path / "sshd.py").write_text(textwrap.dedent(SSHD))
    (tmp_path / "control.py").write_text(textwrap.dedent(CONTROL))
    subprocess.run(made.control("start"), check=True, timeout=900)
    (tmp_path / "pid.log").unlink()
    yield made
    if pid := made.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


@dataclass
class Holder:
    """Acts without nodes, in this process."""

    directory: Path
    driven: bool = True
    loop: Loop = field(default_factory=Loop)
    notes: list[str] = field(default_factory=list)
    answers: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        def note(lease: Lease, payload: Payload) -> None:
            self.notes.append(payload.NAME)

        self.acts = FaultLifecycle(
            self.loop, Leases(self.directory), ExternalNodes().get, note, lambda run: self.driven, holder="outside"
        )

    def do(self, f: str, act: Act, key: str = "") -> None:
        value = {"id": "f0", "fault": "stop-ssh", "act": codec.plain(act)}
        command = Command(f=f, key=key or f"f/f0/{f}", node="n2", incarnation="i1", value=value)
        do = self.acts.act if f == "fault.act" else self.acts.heal
        do("r", command, lambda kind, payload: self.answers.append((kind, codec.plain(payload))))

    def wait(self, count: int) -> None:
        until = time.monotonic() + 600
        self.loop.call_every(0.01, lambda: None)
        while len(self.answers) < count and time.monotonic() < until:
            self.loop.run_once()
        assert len(self.answers) == count, self.answers

    def wait_for(self, note: str) -> None:
        self.wait_until(lambda: note in self.notes)

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        until = time.monotonic() + 600
        self.loop.call_every(0.01, lambda: None)
        while not is_reached() and time.monotonic() < until:
            self.loop.run_once()
        assert is_reached(), self.notes


@pytest.fixture
def holder(tmp_path: Path) -> Holder:
    return Holder(directory=tmp_path / "leases")


def test_a_fault_is_proved_by_what_answers_and_so_is_its_healing(host: Host, holder: Holder) -> None:
    holder.do("fault.act", host.act())
    holder.wait(1)
    assert host.pid == 0
    holder.do("fault.heal", host.act())
    holder.wait(2)
    (acted, evidence), (healed, after) = holder.answers
    assert (acted, healed) == ("ok", "ok")
    assert evidence["evidence"] == {f"127.0.0.1:{host.port}": "refuses connections", "session": "ended"}
    assert after["evidence"] == {f"127.0.0.1:{host.port}": "SSH-2.0-test"}
    assert host.orders == ["stop", "start"], "each program is run once, however often is looked"
    assert holder.notes == [
        "lease.armed",
        "fault.before",
        "fault.injected",
        "fault.verified",
        "fault.healed",
        "heal.verified",
    ]


def test_a_listener_that_is_gone_proves_nothing_while_its_sessions_go_on(host: Host, holder: Holder) -> None:
    """As with `systemctl stop ssh`, which leaves the sessions alone."""
    act = host.act()
    stop = replace(act.inject[0], args={**act.inject[0].args, "run": list(host.control("stop-listener"))})
    holder.do("fault.act", replace(act, inject=(stop,), verify=(stop,), limit_s=10.0))
    holder.wait(1)
    [(acted, evidence)] = holder.answers
    assert acted == "fail"
    assert "still open: the command of ccbed_ssh_control must end" in str(evidence)


def test_an_injection_that_does_nothing_is_not_proved(host: Host, holder: Holder) -> None:
    nothing = replace(host.act().inject[0], args={**host.act().inject[0].args, "run": ["true"]})
    holder.do("fault.act", host.act(inject=(nothing,), limit_s=2.0))
    holder.wait(1)
    assert holder.answers[0][0] == "fail"
    assert holder.answers[0][1]["reason"] == "not verified"
    assert "fault.verified" not in holder.notes


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (["false"], "false exited with code 1: no output"),
        (["no-such-program-here"], "no-such-program-here: No such file or directory"),
        (
            [sys.executable, "-c", "print('the PDU is locked'); raise SystemExit(3)"],
            "exited with code 3: the PDU is locked",
        ),
        (["sleep", "30"], "sleep did not end within 0.2 s"),
    ],
)
def test_a_program_that_fails_is_told_and_nothing_is_called_proved(
    host: Host, holder: Holder, run: Sequence[str], problem: str
) -> None:
    broken = replace(host.act().inject[0], args={**host.act().inject[0].args, "run": list(run)})
    limit_s = 0.2 if run[0] == "sleep" else 60.0
    holder.do("fault.act", host.act(inject=(broken, host.act().inject[0]), limit_s=limit_s))
    holder.wait(1)
    assert holder.answers[0][0] == "fail"
    assert problem in holder.answers[0][1]["reason"]
    assert host.orders == [], "what comes after it is left out"


def test_a_healing_never_overtakes_the_injection_that_it_undoes(host: Host, holder: Holder) -> None:
    slow = Primitive(kind="argv", args={"run": ["sleep", "2"]})
    act = host.act(inject=(slow, host.act().inject[0]))
    holder.do("fault.act", act)
    holder.wait_until(lambda: bool(holder.loop.programs))
    holder.do("fault.heal", act)
    holder.wait(2)
    assert [kind for kind, _ in holder.answers] == ["fail", "ok"]
    assert holder.answers[0][1]["reason"] == "healed before it was injected"
    assert holder.answers[0][1]["evidence"] == {"sleep 2": "exit code 0"}
    assert host.orders == ["start"]
    assert "fault.injected" not in holder.notes


def test_what_an_argv_leaves_with_may_be_the_proof(host: Host, holder: Holder, tmp_path: Path) -> None:
    path = tmp_path / "mark"
    run, probe, undo = ["touch", str(path)], ["test", "-e", str(path)], ["rm", str(path)]
    act = host.act(
        inject=(Primitive(kind="argv", args={"run": run}),),
        verify=(Primitive(kind="argv", args={"run": probe}),),
        heal=(Primitive(kind="argv", args={"run": undo}),),
        verify_heal=(Primitive(kind="argv", args={"run": ["test", "!", "-e", str(path)]}),),
    )
    holder.do("fault.act", act)
    holder.wait(1)
    assert path.exists()
    holder.do("fault.heal", act)
    holder.wait(2)
    assert [kind for kind, _ in holder.answers] == ["ok", "ok"]
    assert not path.exists()


def test_a_lease_that_nobody_drives_heals_the_host_by_itself(host: Host, holder: Holder) -> None:
    holder.do("fault.act", host.act(lease_s=0.5))
    holder.wait_for("fault.verified")
    holder.driven = False
    holder.wait_for("heal.verified")
    assert host.orders == ["stop", "start"]
    assert holder.notes[-3:] == ["lease.over", "fault.healed", "heal.verified"]


@pytest.mark.parametrize("is_driven", [False, True])
def test_a_lease_on_another_host_outlives_a_restart_of_this_machine(
    host: Host, holder: Holder, is_driven: bool
) -> None:
    """The host is still without its sshd. Without an orchestrator the keeper heals it at once."""
    holder.do("fault.act", host.act())
    holder.wait(1)
    (armed,) = Leases(holder.directory).all()
    Leases(holder.directory).arm(replace(armed, boot="earlier", until=1e12))
    later = Holder(directory=holder.directory, driven=is_driven)
    later.acts.resume()
    if is_driven:
        later.wait_until(lambda: Leases(holder.directory).all()[0].boot == armed.boot)
        assert later.notes == []
        later.do("fault.heal", host.act())
    later.wait_for("heal.verified")
    assert host.orders == ["stop", "start"]


def test_what_cannot_be_carried_out_is_refused_before_anything_is_done(host: Host, holder: Holder) -> None:
    for primitive in (
        Primitive(kind="power", args={"state": "off", "of": "moon", "run": ["true"]}),
        Primitive(kind="argv"),
    ):
        with pytest.raises(Exception, match=r"primitive power of moon|needs a program"):
            holder.do("fault.act", host.act(inject=(primitive,)))
    assert holder.notes == []


def test_a_program_is_not_marked_as_ours_and_what_it_starts_lives_on(tmp_path: Path) -> None:
    loop, done = Loop(), list[Any]()
    os.environ[processes.TAG_VARIABLE] = "bed/keeper/x"
    try:
        loop.start(results_of(host_primitives.run_program(loop, ["sh", "-c", f"env > {tmp_path}/env"], 5.0), done))
    finally:
        del os.environ[processes.TAG_VARIABLE]
    while not done:
        loop.run_once()
    assert [problem for _, problem in done] == [""]
    assert processes.TAG_VARIABLE not in (tmp_path / "env").read_text()


ABSENT = {"state": "off", "of": "host", "address": "198.18.0.9", "port": 22}


@pytest.mark.parametrize(
    ("error", "off", "why"),
    [
        (TimeoutError("timed out"), True, "does not answer"),
        (OSError(113, "No route to host"), True, "No route to host"),
        (ConnectionRefusedError(111, "Connection refused"), False, "refuses connections"),
        (socket.gaierror(-2, "Name or service not known"), None, "Name or service not known"),
    ],
)
def test_a_host_that_refuses_or_has_no_address_is_not_proved_to_be_gone(
    monkeypatch: pytest.MonkeyPatch, error: OSError, off: bool | None, why: str
) -> None:
    def connect(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)
    reached, evidence = host_primitives.observe(Primitive(kind="power", args=ABSENT))
    assert (reached, list(evidence.values())) == (off, [why])
    assert not host_primitives.observe(Primitive(kind="power", args={**ABSENT, "state": "on"}))[0]


def test_a_host_whose_service_sends_no_banner_is_there_when_it_accepts_a_connection() -> None:
    """Such as slurmd. While it is closed the host runs all the same, and is not proved to be back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        on, off = (
            Primitive(
                kind="power", args={**ABSENT, "state": state, "address": "127.0.0.1", "port": port, "greeting": ""}
            )
            for state in ("on", "off")
        )
        assert host_primitives.observe(on) == (True, {f"127.0.0.1:{port}": "accepts connections"})
        assert host_primitives.observe(off)[0] is False
    assert host_primitives.observe(on)[0] is False
    assert host_primitives.observe(off)[0] is False


def test_an_engine_is_there_when_it_answers_a_ping(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    on, off = (Primitive(kind="power", args={"state": s, "of": "engine", "socket": str(path)}) for s in ("on", "off"))
    assert host_primitives.observe(off)[0]
    assert not host_primitives.observe(on)[0]
    script = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\nprint(flush=True)\n"
        "while True:\n c, _ = s.accept(); c.recv(99); c.sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\nOK'); c.close()\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    assert engine.stdout
    engine.stdout.readline()
    try:
        assert host_primitives.observe(on)[0]
        assert not host_primitives.observe(off)[0]
    finally:
        engine.kill()
        engine.communicate()


@pytest.mark.parametrize("state", ["on", "off"])
def test_an_engine_that_closes_its_connections_is_neither_up_nor_down(tmp_path: Path, state: str) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def close_connection() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=close_connection)
        thread.start()
        primitive = Primitive(kind="power", args={"state": state, "of": "engine", "socket": str(path)})
        assert host_primitives.observe(primitive)[0] in (False, None)
        thread.join()


def test_the_keeper_outside_survives_its_orchestrator_and_heals_when_the_lease_is_over(
    host: Host, tmp_path: Path
) -> None:
    """A real one, detached; nobody drives the run once its fault is verified."""
    workdir = tmp_path / "bed" / "outside"
    (workdir / "keeper").mkdir(parents=True)
    read, write = os.pipe()
    arguments = f"--workdir {workdir} --bed b --archive a --ready {write} --backend outside".split()
    path = processes.pad_tag(processes.node_tag(processes.bed_tag("b", str(workdir)), label.KEEPER_DIR, "starting"))
    subprocess.run(
        [sys.executable, "-m", "orchestrator.node", "keeper", *arguments],
        env={**os.environ, processes.TAG_VARIABLE: path, "PYTHONPATH": str(Path(__file__).parents[2])},
        pass_fds=[write], check=True, timeout=900,
    )  # fmt: skip
    os.close(write)
    assert os.read(read, 16)
    os.close(read)
    keeper = processes.find(label.lock_holder(workdir / "keeper"))
    assert keeper
    try:
        value = {"id": "f0", "fault": "stop-ssh", "act": codec.plain(host.act(lease_s=0.8))}
        with run_lock(workdir.parent, "r", tmp_path / "r"):
            order = Command(f="fault.act", key="f/f0/act", node="n2", incarnation="i9", value=value)
            inbox.post_command(workdir / "keeper", "r", order)
            _await_note(workdir, "fault.verified")
        _await_note(workdir, "heal.verified")
        assert [f for f in _noted(workdir) if f != "fault.act"] == [
            "lease.armed", "fault.before", "fault.injected", "fault.verified", "lease.over", "fault.healed", "heal.verified",
        ]  # fmt: skip
        assert host.orders == ["stop", "start"]
    finally:
        processes.kill([keeper])


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[BedSpec]:
    made = BedSpec(
        name="b", provider="docker", nodes=(), inventory="b.yml", workdir=str(tmp_path / "bed"), shared_dir="", agent=""
    )
    yield made
    keeper_start.end_keeper(tmp_path / "bed" / "outside" / "keeper")


def test_a_provider_starts_it_on_demand_and_hears_of_it_in_its_run(host: Host, bed: BedSpec) -> None:
    value = {"id": "f0", "fault": "stop-ssh", "act": codec.plain(host.act())}
    order = Command(f="fault.act", key="f/f0/act", node="n2", incarnation="i9", value=value)
    assert external_keeper.is_for_external_keeper(order)
    assert not external_keeper.is_for_external_keeper(Command(f="node.kill", key="k", node="n2"))
    external_keeper.perform(bed, "r1", order)
    follower = event_reader.Follower(
        Path(bed.workdir), "r1", [], [Path(bed.workdir) / external_keeper.DIRECTORY / event_reader.EVENTS]
    )
    cursors: Mapping[str, int] = {}
    heard: list[Event] = []
    until = time.monotonic() + 600
    while not any(event.type == "ok" for event in heard) and time.monotonic() < until:
        events, cursors = follower.poll(cursors, 0.1)
        heard += events
    assert [event.f for event in heard] == [
        "lease.armed",
        "fault.before",
        "fault.injected",
        "fault.verified",
        "fault.act",
    ]
    assert {event.source.writer for event in heard} == {"outside"}
    assert external_keeper.leases(bed) == ("stop-ssh on n2: undone by itself in 120 s",)
    assert host.pid == 0
    assert len(external_keeper.end(bed)) == 1
    assert host.pid != 0, "what it still held is given back before it is ended"
    assert external_keeper.end(bed) == ()
    assert not (Path(bed.workdir) / "outside").exists()


def test_a_host_that_cannot_be_given_back_is_named_and_its_holder_stays(host: Host, bed: BedSpec) -> None:
    stuck = Primitive(kind="argv", args={"run": ["false"]})
    act = host.act(heal=(stuck,), limit_s=10.0)
    value = {"id": "f0", "fault": "stop-ssh", "act": codec.plain(act)}
    external_keeper.perform(bed, "r1", Command(f="fault.act", key="f/f0/act", node="n2", value=value))
    until(lambda: not host.pid)
    assert external_keeper.leases(bed)
    with pytest.raises(InfrastructureError, match="stop-ssh on the host of n2: false exited with code 1"):
        external_keeper.end(bed)
    assert label.lock_holder(Path(bed.workdir) / "outside" / "keeper")


def _await_note(workdir: Path, name: str) -> None:
    until(lambda: name in _noted(workdir), lambda: _noted(workdir))


def _noted(workdir: Path) -> list[str]:
    log = workdir / "keeper" / "events.jsonl"
    return [json.loads(line)["f"] for line in log.read_text().splitlines()] if log.exists() else []
