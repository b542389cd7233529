"""What a node runs on: ``system.json`` in its directory, written before it serves; ``gpu.xml`` as soon as nvidia-smi has told.

What cannot be found is in the file as missing, with the reason. Nothing here imports anything heavy or touches a GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...model import container
from ..files import label

SYSTEM, GPUS = "system.json", "gpu.xml"
#: nvidia-smi answers in a second; on a GPU that hangs it never does.
GPUS_S = 20.0
DRIVER = "/proc/driver/nvidia"
#: Facts that are one line of a file.
LINES = {
    "clocksource": "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "cpu_governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "huge_pages": "/sys/kernel/mm/transparent_hugepage/enabled",
    "memory_limit": "/sys/fs/cgroup/memory.max",
    "cpu_limit": "/sys/fs/cgroup/cpu.max",
    "tcp_congestion_control": "/proc/sys/net/ipv4/tcp_congestion_control",
}


def facts(mine: Mapping[str, Any], root: Path = Path("/")) -> dict[str, Any]:
    """``mine``: the node's label. Memory in MiB."""
    found = {
        "node": mine.get("node"),
        "incarnation": mine.get("incarnation"),
        **_container(root),
        "hostname": platform.node(),
        "kernel": os.uname().release,
        "architecture": platform.machine(),
        "boot": label.boot_id(),
        "cpu": _field(root / "proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": _mib(_field(root / "proc/meminfo", "MemTotal")),
        "python": platform.python_version(),
        **_torch(),
        **_programs(),
        **_driver(root),
        **{name: _line(root / path[1:]) for name, path in LINES.items()},
    }
    missing = {name: "not found" for name, value in found.items() if value is None}
    return {**{name: value for name, value in found.items() if value is not None}, "missing": missing}


class System:
    """Writes the two files of one incarnation. ``exited`` is told of every child that was reaped."""

    def __init__(self, directory: Path, mine: Mapping[str, Any]) -> None:
        self._directory, self._mine = directory, mine
        self._facts: dict[str, Any] = {}
        self._asked: subprocess.Popen[bytes] | None = None

    @property
    def groups(self) -> tuple[int, ...]:
        return (self._asked.pid,) if self._asked else ()

    def stated(self) -> dict[str, str]:
        """The SHA-256 of system.json, once nothing is to be added to it."""
        if self._asked or not self._facts:
            return {}
        with contextlib.suppress(OSError):
            return {"system": hashlib.sha256((self._directory / SYSTEM).read_bytes()).hexdigest()}
        return {}

    def write(self) -> None:
        """A full disk is no reason for a node not to start; gather tells that the file is missing."""
        self._facts = facts(self._mine)
        self._store()

    def ask(self, later: Callable[[float, Callable[[], None]], Any]) -> None:
        """Let nvidia-smi tell about the GPUs, where there is one. It runs beside everything else, and not for ever."""
        program = shutil.which("nvidia-smi")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._directory / GPUS)
        if program is None:
            self._told("no nvidia-smi is here")
            return
        try:
            with open(self._part, "wb") as out:
                self._asked = subprocess.Popen(
                    [program, "-q", "-x"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except OSError as error:
            self._told(f"nvidia-smi: {error.strerror}")
            return
        later(GPUS_S, self.end)

    def end(self) -> None:
        """It has not answered in time."""
        if self._asked:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._asked.pid, signal.SIGKILL)

    def exited(self, pid: int, code: int) -> bool:
        if self._asked is None or self._asked.pid != pid:
            return False
        self._asked.returncode, self._asked = code, None
        if code == 0:
            with contextlib.suppress(OSError):
                os.replace(self._part, self._directory / GPUS)
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._part)
            ended = f"did not answer in {GPUS_S:g} s" if code == -signal.SIGKILL else f"left with code {code}"
            self._told(f"nvidia-smi {ended}")
        return True

    @property
    def _part(self) -> Path:
        return self._directory / f".{GPUS}"

    def _told(self, reason: str) -> None:
        self._facts = {**self._facts, "missing": {**self._facts.get("missing", {}), GPUS: reason}}
        self._store()

    def _store(self) -> None:
        with contextlib.suppress(OSError):
            label.write(self._directory / SYSTEM, self._facts)


def _container(root: Path) -> dict[str, Any]:
    """What a container was told when it was made; nothing elsewhere."""
    if container.IMAGE_VARIABLE not in os.environ and not (root / ".dockerenv").exists():
        return {}
    return {"image": os.environ.get(container.IMAGE_VARIABLE), "engine": os.environ.get(container.ENGINE_VARIABLE)}


def _torch() -> dict[str, Any]:
    """Of the torch that is imported already. Its CUDA and NCCL are what it was built with; asking starts nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {"torch": None}
    found = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if found["cuda"]:
        with contextlib.suppress(Exception):
            found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {name: value for name, value in found.items() if value}


def _programs() -> dict[str, str | None]:
    """What some algorithms need (rank/mpi/installed.py looks in the same places), each with its path."""
    beside = Path(sys.executable).parent
    found = {name: shutil.which(name, path=beside) or shutil.which(name) for name in ("mpirun", "orted")}
    spec = importlib.util.find_spec("mpi4py")
    return {**found, "mpi4py": spec.origin if spec else None}


def _driver(root: Path) -> dict[str, Any]:
    """The NVIDIA driver's version, and the models of the GPUs that are there, in the order of their PCI addresses."""
    line = _line(root / DRIVER[1:] / "version")
    if line is None:
        return {}
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", line)
    places = sorted((root / DRIVER[1:] / "gpus").glob("*/information"))
    models = [_field(place, "Model") or "unknown" for place in places]
    return {"driver": version[1] if version else line, "gpus": models}


def _line(path: Path) -> str | None:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return None


def _field(path: Path, name: str) -> str | None:
    """The first ``name : value`` line in the first 8 KiB: /proc/cpuinfo of a large host takes long to read."""
    try:
        with open(path, "rb") as file:
            text = file.read(8192).decode(errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{re.escape(name)}\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return found[1] if found else None


def _mib(kib: str | None) -> int | None:
    return int(kib.split()[0]) // 1024 if kib else None
