"""Reserve ranks: forked before they are needed, so that a recovery waits for no fork and for no first use of torch.

A reserve has done once what a rank does first (``rank/runtime/rehearsal.py``) and waits for its order on a socket. Until then it
belongs to no gang: it has no port, no file of a run, and no child. It ends with the agent.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...model.frozen import dataclass
from ...model.gang import GangSpec, ImportReport
from ...system import plain_files
from .. import warm_up
from ..files import label
from ..oslayer import forks, processes
from ..oslayer.event_loop import Loop
from . import script_reserves

#: The node is idle for this long before a reserve is forked, in seconds.
IDLE_S = 0.5
#: A longer order is given to no reserve: a socket takes so many bytes at once.
ORDER_BYTES = 128 << 10
_READY = b"ready"


@dataclass(slots=True, kw_only=True)
class Reserve:
    """``fd``: this agent's end of its socket. ``is_ready``: it has rehearsed and waits.

    ``script``: what it imports for; ``report``: what it has imported.
    """

    fd: int
    is_ready: bool = False
    script: GangSpec | None = None
    report: ImportReport | None = None


class ReserveRanks:
    """The reserves of this agent. ``run``: the body of a rank, called in the reserve with its order and its end of the socket."""

    def __init__(
        self,
        loop: Loop,
        directory: Path,
        identity: tuple[str, str],
        run: Callable[[Mapping[str, Any], int], int],
        shared: Path,
    ) -> None:
        self._loop, self._directory, self._run, self._shared = loop, directory, run, shared
        self._node, self._incarnation = identity
        self._last_script = script_reserves.LastScript(shared)
        #: The script for which imports failed here, and why.
        self._refused: tuple[GangSpec | None, str] = None, ""
        self._reserves: dict[int, Reserve] = {}
        self._idle_since = time.monotonic()
        #: The first failure is the last attempt of this agent: the next one would fail as well.
        self._has_failed = False
        #: Does the record name the reserves that there are? A write may fail, as on a full disk.
        self._is_recorded = True

    @property
    def pids(self) -> set[int]:
        return set(self._reserves)

    def prepare(self, count: int, *, is_idle: bool) -> bool:
        """Fork the missing reserves once the node has been idle for ``IDLE_S``; False until then.

        A record that could not be written is written now.
        """
        if not self._is_recorded:
            self._write_count(len(self._reserves))
        if not is_idle:
            self._idle_since = time.monotonic()
        has_rested = is_idle and time.monotonic() - self._idle_since >= IDLE_S
        if self._has_failed or not warm_up.has_imported_rank_code():
            return True
        if not has_rested:
            return False
        missing = count - sum(reserve.script is None for reserve in self._reserves.values())
        if missing > 0:
            self._write_count(len(self._reserves) + missing)
        for _ in range(missing):
            self._fork()
        if missing > 0:
            self._write_count(len(self._reserves))
        return True

    def import_ahead(self, count: int) -> bool:
        """Fork, one after the other, reserves that import what the last script imports; False while some are missing."""
        spec = self._last_script.find()
        if spec is None or self._has_failed or self._is_refused(spec) or not warm_up.is_same_code(spec.payload):
            return True
        for_scripts = {pid: reserve for pid, reserve in self._reserves.items() if reserve.script}
        for pid, reserve in for_scripts.items():
            if reserve.script and not script_reserves.begins_like(reserve.script, spec):
                self._end(pid)
        if len(for_scripts) < count and all(reserve.is_ready for reserve in for_scripts.values()):
            self._write_count(len(self._reserves) + 1)
            self._fork(spec)
            self._write_count(len(self._reserves))
        return len(for_scripts) >= count

    def stop_imports(self, spec: GangSpec) -> None:
        """Ranks of ``spec`` start: they get the CPU time of what imports now."""
        self._last_script.note(spec)
        for pid in [pid for pid, reserve in self._reserves.items() if reserve.script and not reserve.is_ready]:
            self._end(pid)

    def choose(self, spec: GangSpec, rank: int) -> tuple[int | None, str]:
        """The pid of a reserve that has imported what the script of a rank imports, and how much; or None, and why there is none."""
        why = self._refused[1] if self._is_refused(spec) else self._last_script.why or "no reserve has imported yet"
        for pid, reserve in self._reserves.items():
            if reserve.is_ready and reserve.script and reserve.report:
                before, who = reserve.script, (self._node, self._incarnation)
                why = script_reserves.refusal(reserve.report, before, spec, rank, *who)
                if not why:
                    return pid, f"{reserve.report.modules} modules; what follows them is {reserve.report.end}"
        return None, f"none: {why}"

    def _is_refused(self, spec: GangSpec) -> bool:
        return self._refused[0] is not None and script_reserves.begins_like(self._refused[0], spec)

    def order(self, order: Mapping[str, Any], chosen: int | None = None) -> tuple[int, int] | None:
        """Make a reserve the rank of this order; its pid and the descriptor that releases its holds. None: there is none.

        ``chosen``: of those that have imported ahead, which run nothing but their script.
        """
        text = json.dumps(order).encode()
        ready = (pid for pid, reserve in self._reserves.items() if reserve.is_ready and not reserve.script)
        pid = (chosen or next(ready, None)) if len(text) <= ORDER_BYTES else None
        if pid is None:
            return None
        fd = self._reserves.pop(pid).fd
        self._loop.remove_reader(fd)
        if _write(fd, text):
            self._write_count(len(self._reserves))
            return pid, fd
        os.close(fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return None

    def exited(self, pid: int) -> bool:
        """A child was reaped: was it a reserve?"""
        reserve = self._reserves.get(pid)
        if not self._forget(pid) or reserve is None:
            return False
        if reserve.script:
            self._refused = reserve.script, "a reserve ended while it imported"
        else:
            self._has_failed = True
        self._write_count(len(self._reserves))
        return True

    def _fork(self, script: GangSpec | None = None) -> None:
        """Fork a reserve. It imports what ``script`` imports, or nothing."""
        agent = os.getpid()
        own, other = socket.socketpair(type=socket.SOCK_SEQPACKET)  # one message: the order, or the release of a hold
        try:
            pid = forks.fork(self._loop, {other.fileno()}, lambda: self._wait_for_order(agent, other.fileno(), script))
        except (OSError, RuntimeError):
            self._has_failed = True
            traceback.print_exc()
            own.close()
            return
        finally:
            other.close()
        own.setblocking(False)
        reserve = self._reserves[pid] = Reserve(fd=own.detach(), script=script)
        self._loop.add_reader(reserve.fd, lambda: self._take_report(pid, reserve))

    def _take_report(self, pid: int, reserve: Reserve) -> None:
        """It is ready; nothing is read where it has ended, and its exit follows."""
        text = os.read(reserve.fd, ORDER_BYTES)
        if text and reserve.script:
            reserve.report = script_reserves.read_report(text)
            if reserve.report.problem:
                self._refused = reserve.script, reserve.report.problem
                self._end(pid)
        if text:
            reserve.is_ready = True
            self._write_count(len(self._reserves))

    def _end(self, pid: int) -> None:
        """End a reserve, and what its imports have started; its exit is no failure."""
        self._forget(pid)
        for kill in (os.killpg, os.kill):  # it has no group of its own yet if it has just been forked
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
        self._write_count(len(self._reserves))

    def _forget(self, pid: int) -> bool:
        """Close what this agent has of a reserve; whether it was one."""
        reserve = self._reserves.pop(pid, None)
        if reserve is None:
            return False
        self._loop.remove_reader(reserve.fd)
        os.close(reserve.fd)
        return True

    def _wait_for_order(self, agent: int, fd: int, script: GangSpec | None) -> int:
        os.setpgid(0, 0)
        forks.die_with_parent(agent)
        _rehearse()
        lock, report = self._shared / script_reserves.IMPORT_LOCK, _READY
        if script:
            report = script_reserves.import_ahead(script, self._node, self._incarnation, lock)
        os.write(fd, report)
        text = os.read(fd, ORDER_BYTES)
        return self._run(json.loads(text), fd) if text else 0

    def _write_count(self, count: int) -> None:
        """Note how many processes of this node are reserves: with no others it is not busy."""
        ready = sum(reserve.is_ready for reserve in self._reserves.values())
        pids = sorted(self._reserves)
        content = {"incarnation": self._incarnation, "count": count, "pids": pids, "ready": ready}
        try:
            plain_files.write_json(self._directory / label.RESERVES, content)
            self._is_recorded = True
        except OSError:
            self._is_recorded = False


def _rehearse() -> None:
    """Raises RuntimeError if what was rehearsed is still there: a thread, or an initialised GPU."""
    with warm_up.without_gpus():
        importlib.import_module("orchestrator.rank.runtime.rehearsal").rehearse()
    warm_up.remember_rank_modules()
    if sys.modules["torch"].cuda.is_initialized():
        raise RuntimeError("the rehearsal initialised CUDA")
    if processes.count_threads() != 1:
        raise RuntimeError(f"the rehearsal left {processes.count_threads()} threads")


def _write(fd: int, text: bytes) -> bool:
    try:
        return os.write(fd, text) == len(text)
    except OSError:
        return False
