"""Runs a playbook on the hosts of a bed through ansible-runner, and reports each step and the result.

Ansible works in a private directory that is removed afterwards, and in a thread, so that Ctrl-C and the deadline end it.
Hosts are independent: a host that fails or is unreachable does not affect the others.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..model.frozen import dataclass, field
from ..store import shipped
from . import ansible_listing
from .vault import Vault, arguments

#: An image of several GB may have to pass a slow line. Single tasks have limits of their own in the playbooks.
DEADLINE_S = 3600.0
#: A host that does not respond for so long is unreachable.
CONNECT_S = 8
FORKS_PER_CORE, MOST_FORKS = 8, 64
#: How long Ansible has to end after its cancellation.
_END_S = 10.0
#: How long the processes of Ansible have to end after each signal.
_GRACE_S = 2.0
_SETTINGS = {
    "ANSIBLE_GATHERING": "explicit",
    "ANSIBLE_PIPELINING": "1",
    "ANSIBLE_RETRY_FILES_ENABLED": "0",
    "ANSIBLE_LOCALHOST_WARNING": "0",
    "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0",
    "ANSIBLE_TIMEOUT": str(CONNECT_S),
    "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
    # A connection of an earlier run may lead to a host that was lost since: keep-alives detect that.
    "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=2 -o ServerAliveCountMax=3",
    "ANSIBLE_SSH_CONTROL_PATH_DIR": "~/.ansible/cp-ccbed",
}
#: Settings of Ansible's configuration that count more than those of ccbed -> the variables that would override them.
_CONFIGURED = {
    "ssh_args": "ANSIBLE_SSH_ARGS",
    "control_path_dir": "ANSIBLE_SSH_CONTROL_PATH_DIR",
    "DEFAULT_TIMEOUT": "ANSIBLE_TIMEOUT",
    "INTERPRETER_PYTHON": "ANSIBLE_PYTHON_INTERPRETER",
}
#: Settings of Ansible's configuration that the playbooks' own variables would hide -> variables for the playbooks.
_HIDDEN = {"ssh_extra_args": "ccbed_ssh_extra_args", "INTERPRETER_PYTHON": "ccbed_python"}
#: Each task says whether it becomes root; no user is there to type a password.
_ALWAYS = {"ANSIBLE_BECOME": "0", "ANSIBLE_BECOME_ASK_PASS": "0", "ANSIBLE_ASK_PASS": "0"}
_EVENTS = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_item_on_failed": "failed",
}

#: Messages of Ansible without information.
_NOTHING = ("non-zero return code", "MODULE FAILURE", "Module result deserialization failed", "Shared connection to ")

State = Literal["ok", "changed", "warn", "failed", "unreachable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of one task on one host. ``message``: of a failure or a warning. ``facts``: of the task that reads them."""

    host: str
    task: str
    state: State
    message: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


OnStep = Callable[[Step], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookRun:
    """``playbook``: name of a shipped one; ``inventory``: path; ``hosts``: those of it that are meant; ``configured``: the settings
    that Ansible's configuration has."""

    playbook: str
    inventory: str
    hosts: Sequence[str]
    variables: Mapping[str, Any] = field(default_factory=dict)
    vault: Vault = field(default_factory=Vault)
    configured: Mapping[str, Any] = field(default_factory=dict)
    deadline_s: float = DEADLINE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookResult:
    """``done``: the hosts that succeeded; ``failed``: the last failure of each other host."""

    done: tuple[str, ...]
    failed: Mapping[str, Step]
    facts: Mapping[str, Mapping[str, Any]]
    changed: int


def run(wanted: PlaybookRun, on_step: OnStep) -> PlaybookResult:
    """Run a playbook; ``on_step`` is called for every task that ends. Raises UsageError without Ansible, KeyboardInterrupt."""
    end = time.monotonic() + wanted.deadline_s
    stopped = threading.Event()

    def cancelled() -> bool:
        return stopped.is_set() or time.monotonic() > end

    listener = _Listener(on_step=on_step, is_over=cancelled)
    with tempfile.TemporaryDirectory(prefix="ccbed-ansible-") as folder, arguments(wanted.vault) as options:
        worker = threading.Thread(
            target=_run, args=(wanted, Path(folder), options, listener, cancelled), name="ansible", daemon=True
        )
        with _interrupts(stopped):
            worker.start()
            while worker.is_alive() and not cancelled():
                worker.join(0.1)
            end_ansible(folder)
            worker.join(_END_S)
    if stopped.is_set():
        raise KeyboardInterrupt
    if listener.error:
        raise listener.error
    return listener.result(wanted, late=time.monotonic() > end)


@contextlib.contextmanager
def _interrupts(stopped: threading.Event) -> Iterator[None]:
    """Signals, however often they come, only set ``stopped``, so that Ansible is always ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(
    wanted: PlaybookRun, folder: Path, options: Sequence[str], listener: _Listener, cancelled: Callable[[], bool]
) -> None:
    try:
        listener.output = _runner(wanted, folder, options, listener, cancelled)
    except Exception as error:  # noqa: BLE001 (raised again by the waiting thread)
        listener.error = error


@contextlib.contextmanager
def _hosts_umask() -> Iterator[None]:
    """Files that Ansible creates without a mode get the host's default, not ccbed's umask."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def _runner(
    wanted: PlaybookRun, folder: Path, options: Sequence[str], listener: _Listener, cancelled: Callable[[], bool]
) -> str:
    """The output of Ansible beside its events: the reason, if it reached no host."""
    import ansible_runner

    beside = str(Path(ansible_listing.find("ansible-playbook")).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", os.defpath)])
    given = {*os.environ, *(_CONFIGURED[name] for name in wanted.configured if name in _CONFIGURED)}
    hidden = {key: wanted.configured[name]["value"] for name, key in _HIDDEN.items() if name in wanted.configured}
    settings = {name: value for name, value in _SETTINGS.items() if name not in given}
    with _hosts_umask():
        done = ansible_runner.run(
            private_data_dir=str(folder),
            project_dir=str(Path.cwd()),
            playbook=str(shipped.folder("playbooks").absolute() / f"{wanted.playbook}.yml"),
            inventory=wanted.inventory,
            limit=",".join(wanted.hosts),
            extravars={**hidden, **wanted.variables},
            envvars={**ansible_listing.SETTINGS, **settings, **_ALWAYS, "PATH": path},
            cmdline=shlex.join(options) if options else None,
            forks=forks(len(wanted.hosts)),
            settings={"pexpect_timeout": 0.2, "suppress_output_file": True},
            event_handler=listener.handle_event,
            cancel_callback=cancelled,
            quiet=True,
        )
    listener.status = str(done.status)
    return "\n".join(listener.lines)


def forks(hosts: int) -> int:
    """So many hosts Ansible prepares at once: each fork is a process of 20 MiB that computes, so more of them than a few per
    core only take time from each other (``tests/bench/figures.md``, "Ansible").
    """
    return max(1, min(hosts, FORKS_PER_CORE * len(os.sched_getaffinity(0)), MOST_FORKS))


@dataclass(slots=True, kw_only=True)
class _Listener:
    """``is_over``: whether Ansible is being stopped. Later reports describe the stop, not the hosts, and are ignored."""

    on_step: OnStep
    is_over: Callable[[], bool]
    failures: dict[str, Step] = field(default_factory=dict)
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    status: str = ""
    output: str = ""
    error: Exception | None = None

    def handle_event(self, event: Mapping[str, Any]) -> bool:
        """Handle an event; it is never written to a file, because it may hold secrets."""
        if self.is_over():
            return False
        name, data = str(event.get("event")), event.get("event_data") or {}
        if name == "playbook_on_stats":
            self.stats = data
        elif name in _EVENTS and data.get("host"):
            self._step(_step(name, data))
        elif name in ("verbose", "error") and event.get("stdout"):
            self.lines.append(str(event["stdout"]))
        return False

    def _step(self, step: Step) -> None:
        if step.state in ("failed", "unreachable"):
            self.failures[step.host] = step
        if step.facts:
            self.facts[step.host] = step.facts
        self.on_step(step)

    def result(self, wanted: PlaybookRun, late: bool) -> PlaybookResult:
        bad = {**self.stats.get("failures", {}), **self.stats.get("dark", {})}
        reached = set(self.stats.get("ok", {})) | set(self.stats.get("skipped", {}))
        done = tuple(host for host in wanted.hosts if self.stats and host in reached and host not in bad)
        reason = f"not done after {wanted.deadline_s:.0f} s" if late else self.output or f"ansible {self.status}"
        lost = {
            host: self.failures.get(host, Step(host=host, task="ansible", state="failed", message=reason))
            for host in wanted.hosts
            if host not in done
        }
        changed = sum(self.stats.get("changed", {}).values())
        return PlaybookResult(done=done, failed=lost, facts=self.facts, changed=changed)


def _step(name: str, data: Mapping[str, Any]) -> Step:
    result = data.get("res") or {}
    state: Any = _EVENTS[name]
    if state == "ok" and result.get("changed"):
        state = "changed"
    if state == "ok" and data.get("task_action", "").endswith("debug"):
        state = "warn"
    return Step(
        host=str(data["host"]),
        task=str(data.get("task", "")),
        state=state,
        message="" if state in ("ok", "changed") else reason(result),
        facts=_facts(str(data.get("task", "")), result),
    )


def reason(result: Mapping[str, Any]) -> str:
    """Return why a task failed, in its own words, without censored output."""
    if result.get("censored"):
        return "failed; its output is secret"
    bad = [item for item in result.get("results", ()) if isinstance(item, dict) and item.get("failed")]
    if bad:
        return reason(bad[0])
    parts = [str(result.get(key, "")).strip() for key in ("msg", "module_stderr", "stderr", "module_stdout")]
    messages = [part for part in parts if part and not part.startswith(_NOTHING)]
    return messages[0] if messages else str(result.get("stdout") or result.get("msg") or "").strip()


def _facts(task: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
    if task not in ("look", "look again") or result.get("rc") != 0:
        return {}
    import json

    try:
        content = json.loads(result.get("stdout") or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def end_ansible(folder: str) -> None:
    """End every process of the Ansible that works in ``folder``.

    Ansible's workers lead sessions of their own, so they outlive its process group.
    """
    for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        until = time.monotonic() + patience
        remaining = ansible_processes(folder)
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while remaining and time.monotonic() < until:
            time.sleep(0.05)
            remaining = ansible_processes(folder)
        if not remaining:
            return


def ansible_processes(folder: str) -> list[int]:
    """The processes whose command line names ``folder``, and those of ansible-playbook whose environment does.

    Without variables no command line names it.
    """
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command_line = (entry / "cmdline").read_bytes()
                is_ansible = b"ansible-playbook" in command_line
                if folder.encode() in command_line + ((entry / "environ").read_bytes() if is_ansible else b""):
                    pids.append(int(entry.name))
    return pids
