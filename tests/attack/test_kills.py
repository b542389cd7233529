"""The orchestrator is killed with -9, anywhere; then a user does what `status` says. 200 kills (a twentieth in CI) on one bed of processes.

Half of the kills come at a random time. The others come right after a chosen call or line of the history: the process is
forked from this one, where a call is made to end with SIGKILL.
"""

from __future__ import annotations

import json
import os
import random
import select
import shlex
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.model.bed import BedSpec
from orchestrator.node.files import label
from orchestrator.node.oslayer import processes
from orchestrator.run import collect, drive, judging, twin_runs
from orchestrator.store import bed_files, bundle, durable, journal, seal

from ..e2e import reserves, trials
from . import scale

pytestmark = [pytest.mark.attack, pytest.mark.e2e, pytest.mark.timeout(3600)]

INVENTORY = "all: {hosts: {localhost: {ansible_connection: local, ccbed_nodes: 2, ccbed_spares: 1}}}\n"
OPTIONS = "--nodes 2 --fail-node 1 --epochs 1"
PATIENCE_S = 600.0
#: Calls after which a kill comes, with the number of times that they are made in a run, about.
CALLS: dict[str, tuple[Any, str, int]] = {
    "step of the preparation": (durable, "perform_step", 30),
    "link to latest": (bundle, "link_latest", 1),
    "change of the mark": (bed_files, "change_run", 2),
    "gathering": (collect, "gather", 2),
    "seal": (seal, "seal", 2),
    "verdicts and report": (bundle, "write_derived", 2),
    "rendering": (judging, "render_reports", 2),
    "judging": (judging, "conclude", 2),
    "twin in the cache": (twin_runs, "write_cached", 1),
    "end of the twin": (bed_files, "end_twin", 1),
    "end of the run": (bed_files, "end_run", 1),
    "driving": (drive, "drive", 2),
}
LINES = (
    "run.begin", "store.open", "gang.start", "gang.joined", "rank.step", "checkpoint.commit", "rank.held", "fault.act",
    "fault.injected", "node.exit", "recovery.decided", "resume.chosen", "fault.heal", "gather", "run.end",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Kill:
    """After so many seconds, or after the ``nth`` time of a call or line; ``twin``: the cache of twins is empty before."""

    after_s: float | None = None
    call: str = ""
    line: str = ""
    nth: int = 1
    twin: bool = False

    def __str__(self) -> str:
        where = (
            f"after {self.after_s:.2f} s"
            if self.after_s is not None
            else f"after {self.nth} x {self.call or self.line}"
        )
        return f"{where}{', with a twin' if self.twin else ''}"


@dataclass(kw_only=True)
class Bed:
    """One bed for all kills."""

    root: Path
    state: Path
    runs: Path
    spec: BedSpec

    @property
    def workdir(self) -> Path:
        return Path(self.spec.workdir)

    def start(self, command: str, kill: Kill | None = None) -> int:
        """`ccbed` as a process of its own, forked from this one: its pid."""
        pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            if kill is not None and kill.after_s is None:
                _kill_after(kill)
            code = _ccbed(self.state, command, self.root / "log")
        finally:
            os._exit(code)

    def ccbed(self, command: str, kill: Kill | None = None) -> int:
        """The exit code; -9 where it was killed."""
        pid = self.start(command, kill)
        ended = os.pidfd_open(pid)
        try:
            limit = kill.after_s if kill and kill.after_s is not None else PATIENCE_S
            if not select.select([ended], [], [], limit)[0]:
                signal.pidfd_send_signal(ended, signal.SIGKILL)
                assert limit < PATIENCE_S, f"{command} does not end: {self.log()}"
        finally:
            os.close(ended)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def status(self) -> dict[str, Any]:
        self.clear()
        assert self.ccbed("status --json") == 0, self.log()
        (document,) = json.loads(self.log())
        return dict(document)

    def advice(self) -> str:
        """The command line that `status` offers for the open run; empty where none is open."""
        self.clear()
        assert self.ccbed("status") == 0, self.log()
        lines = [line for line in self.log().splitlines() if line.lstrip().startswith("open run")]
        if not lines:
            return ""
        assert len(lines) == 1 and "ccbed " in lines[0], lines
        return lines[0].split("ccbed ", 1)[1].split("     ")[0]

    def clear(self) -> None:
        (self.root / "log").write_text("")

    def log(self) -> str:
        return (self.root / "log").read_text()

    def processes(self) -> list[int]:
        """Without the reserve ranks, which agents fork while no rank runs."""
        tag = f"{processes.bed_tag(self.spec.name, self.spec.workdir)}/"
        members = [process.pid for process in processes.scan() if process.tag.startswith(tag)]
        idle = reserves.reserves(self.spec.workdir, *(node.name for node in self.spec.nodes)) if members else set()
        return [pid for pid in members if pid not in idle]

    def has_only(self, count: int) -> bool:
        """Whether so many processes are left, soon: a reserve that was just forked is not yet recorded."""
        until = time.monotonic() + 600
        while len(self.processes()) != count:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def describe(self) -> str:
        """What runs on the bed, what each node records of its reserves and ranks, and the last events of keeper and agents."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        tag = f"{processes.bed_tag(self.spec.name, self.spec.workdir)}/"
        lines = [_described(process, now) for process in processes.scan() if process.tag.startswith(tag)]
        for node in self.spec.nodes:
            directory = self.workdir / "nodes" / node.name
            lines += [_tail(directory / name, 1) for name in (label.NODE_LABEL, label.RESERVES, label.RANKS)]
            lines += [_tail(directory / "events.jsonl", 3), _tail(directory / "agent.log", 10)]
            lines += [_tail(path, 8) for path in sorted(directory.glob("runs/*/agent.*.jsonl"), key=_changed)[-2:]]
        return "\n".join([*lines, _tail(self.workdir / "keeper" / "events.jsonl", 40)])


def _described(process: processes.Process, now: float) -> str:
    """One line: when it started, whose child it is, and where it waits."""
    age_s = now - process.start / os.sysconf("SC_CLK_TCK")
    try:
        where = Path(f"/proc/{process.pid}/wchan").read_text()
    except OSError:
        where = "gone"
    return f"pid {process.pid} of {process.ppid} state {process.state} for {age_s:.2f} s at {where} tag {process.tag}"


def _tail(path: Path, count: int) -> str:
    lines = path.read_text(errors="replace").splitlines()[-count:] if path.exists() else ["is missing"]
    return "\n".join([f"--- {path}", *(line[:600] for line in lines)])


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


def _ccbed(state: Path, command: str, log: Path) -> int:
    with log.open("a") as out:
        own_session = terminal_session.Session(state=state, terminal=terminal.Terminal(out=out, err=out))
        return main.run(tuple(shlex.split(command)), own_session)


def _kill_after(kill: Kill) -> None:
    """Make the call end with SIGKILL, when it is made for the nth time."""
    if kill.line:
        place, name = journal.Journal, "append"
    else:
        place, name, _ = CALLS[kill.call]
    original: Callable[..., Any] = getattr(place, name)
    left = [kill.nth]

    def killed(*args: Any, **named: Any) -> Any:
        result = original(*args, **named)
        if not kill.line or (result is not None and result.f == kill.line):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(place, name, killed)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    root = tmp_path_factory.mktemp("kills")
    (root / "two.yml").write_text(INVENTORY)
    (root / "dp-ring.yml").write_text(trials.PATIENT)
    (root / "log").touch()
    state = root / "state" / "ccbed"
    judging.warm_up_reports(plugins.discover(())).join()  # what every process needs is loaded once, here
    assert _ccbed(state, f"up {root / 'two.yml'}", root / "log") == 0, (root / "log").read_text()
    spec = bed_files.read(state, "two")
    assert spec is not None
    made = Bed(root=root, state=state, runs=root / "runs", spec=spec)
    yield made
    assert _ccbed(state, "down two --force", root / "log") == 0, made.log()
    assert made.processes() == []


def _kills(draw: random.Random, count: int) -> list[Kill]:
    """A third of them while there is no twin yet; every call is drawn once before one is drawn again."""
    calls, lines = [*CALLS], [*LINES]
    draw.shuffle(calls)
    draw.shuffle(lines)
    kills = []
    for number in range(count):
        twin = draw.random() < 0.4
        if number % 4 == 0:
            kills.append(Kill(line=lines[number // 4 % len(lines)], nth=draw.choice((1, 1, 2)), twin=twin))
        elif number % 4 == 1:
            call = calls[number // 4 % len(calls)]
            kills.append(Kill(call=call, nth=draw.randint(1, CALLS[call][2]), twin=twin))
        else:
            kills.append(Kill(after_s=draw.uniform(0.0, 0.15 if number % 4 == 2 else 2.0), twin=twin))
    return kills


def test_a_killed_orchestrator_leaves_a_run_that_is_gone_on_with(bed: Bed, tally: Callable[[str], None]) -> None:
    """Never a PASS without the planned fault verified, never a bed that no command gets on with, nothing left behind."""
    draw, landed = scale.generator("kills"), Counter[str]()
    kept = 1 + len(bed.spec.nodes)  # the keeper and the agents
    run, count = f"run {bed.root / 'dp-ring.yml'} {OPTIONS} --runs-dir {bed.runs}", scale.count(200)
    for number, kill in enumerate(_kills(draw, count)):
        if kill.twin:
            shutil.rmtree(bed.state / "twins", ignore_errors=True)
        before, when = _runs(bed), f"kill {number} {kill} (seed {scale.SEED})"
        code = bed.ccbed(run, kill)
        landed["killed" if code == -9 else "ended before"] += 1
        for _ in range(6):
            command = bed.advice() or (run if code == -9 and not _concluded(bed, before) else "")
            if not command:
                break
            landed[command.split()[0]] += 1
            second_kill = Kill(after_s=draw.uniform(0.0, 1.0)) if draw.random() < 0.15 else None
            code = bed.ccbed(_with_runs(bed, command), second_kill)
            landed["killed again"] += code == -9
        done = _concluded(bed, before)
        assert done, f"{when}: no run has ended: {bed.log()[-2000:]}"
        for directory in done:
            _is_sound(bed, directory, when)
        assert bed.ccbed(f"resume --runs-dir {bed.runs}") == 0, f"{when}: {bed.log()[-2000:]}"
        _is_clean(bed, kept, when)
    assert landed["killed"] >= count / 2, landed
    tally(f"{count} kills of the orchestrator: {dict(landed)}")


def _with_runs(bed: Bed, command: str) -> str:
    return command if "--runs-dir" in command else f"{command} --runs-dir {bed.runs}"


def _runs(bed: Bed) -> set[Path]:
    return {path for path in bed.runs.glob("*") if not path.is_symlink()}


def _concluded(bed: Bed, before: set[Path]) -> list[Path]:
    """The new runs that were judged, twins apart."""
    return [path for path in _runs(bed) - before if "-twin-" not in path.name and bundle.stage(path) == "closed"]


def _is_sound(bed: Bed, directory: Path, when: str) -> None:
    """The bundle is whole, and it passes because its fault was injected once, and verified."""
    run = bundle.load(directory)
    bad = [
        f"{verdict.outcome} {verdict.check}: {verdict.text}" for verdict in run.verdicts if verdict.outcome != "pass"
    ]
    assert bad == [], f"{when}: {directory}"
    assert len(run.trial.faults) == 1, when
    assert "fault-verified" in {verdict.check for verdict in run.verdicts}, when
    assert any(event.value.get("verified") for event in run.history.of("fault.act") if event.type == "ok"), when
    events = map(json.loads, (bed.workdir / "keeper" / "events.jsonl").read_text().splitlines())
    injected = [event for event in events if event["f"] == "fault.injected" and event.get("run") == directory.name]
    assert len(injected) == 1, f"{when}: injected once by the keeper's own record"
    assert seal.verify(directory) == (), when


def _is_clean(bed: Bed, kept: int, when: str) -> None:
    """The bed is as `up` left it, and in the directory of runs is nothing but runs."""
    status = bed.status()
    assert (status["open_run"], status["leases"], status["as_wanted"]) == (None, [], True), f"{when}: {status}"
    assert bed.has_only(kept), f"{when}: {bed.processes()}\n{bed.describe()}"
    strays = [path.name for path in _runs(bed) if bundle.stage(path) == "none" or path.name.startswith(".")]
    assert strays == [], when
    assert all(seal.verify_evidence(path) == () for path in _runs(bed) if bundle.is_sealed(path)), when
