"""Facts of the system under a node: ``system.json``, written before it serves, and ``gpu.xml``, the report of nvidia-smi.

Facts that cannot be read are listed as missing, with the reason. Nothing here imports torch or touches a GPU.
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
from ...system import host_facts, plain_files
from ..oslayer import gpus

SYSTEM, GPUS = "system.json", "gpu.xml"
#: nvidia-smi takes a second; on a GPU that hangs it never ends.
GPUS_S = 20.0
#: Facts that are one line of a file.
LINES = {
    "bios": "/sys/class/dmi/id/bios_version",
    "clocksource": "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "cpu_governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "huge_pages": "/sys/kernel/mm/transparent_hugepage/enabled",
    "memory_limit": "/sys/fs/cgroup/memory.max",
    "cpu_limit": "/sys/fs/cgroup/cpu.max",
    "tcp_congestion_control": "/proc/sys/net/ipv4/tcp_congestion_control",
}


def collect_facts(node_label: Mapping[str, Any], root: Path = Path("/")) -> dict[str, Any]:
    """The facts of the node with this label. Memory in MiB."""
    facts = {
        "node": node_label.get("node"),
        "incarnation": node_label.get("incarnation"),
        **_container_facts(root),
        "hostname": platform.node(),
        "kernel": os.uname().release,
        "architecture": platform.machine(),
        "agent": node_label.get("agent"),
        "boot": host_facts.boot_id(),
        "cpu": _field(root / "proc/cpuinfo", "model name") or platform.machine(),
        "microcode": _field(root / "proc/cpuinfo", "microcode"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": _mib(_field(root / "proc/meminfo", "MemTotal")),
        "python": platform.python_version(),
        **_torch_facts(),
        **_program_paths(),
        **gpus.driver_facts(root),
        **{name: _line(root / path[1:]) for name, path in LINES.items()},
    }
    missing = {name: "not found" for name, value in facts.items() if value is None}
    return {**{name: value for name, value in facts.items() if value is not None}, "missing": missing}


class SystemFacts:
    """Writes the two files of one incarnation. The agent calls ``exited`` for every child that it reaps."""

    def __init__(self, directory: Path, node_label: Mapping[str, Any]) -> None:
        self._directory, self._label = directory, node_label
        self._facts: dict[str, Any] = {}
        self._query: subprocess.Popen[bytes] | None = None

    @property
    def groups(self) -> tuple[int, ...]:
        return (self._query.pid,) if self._query else ()

    def digest(self) -> str | None:
        """The SHA-256 of system.json; None until the file is complete."""
        if self._query or not self._facts:
            return None
        with contextlib.suppress(OSError):
            return hashlib.sha256((self._directory / SYSTEM).read_bytes()).hexdigest()
        return None

    def write(self) -> None:
        """Write system.json. On a full disk the node starts without it; gather reports the missing file."""
        self._facts = collect_facts(self._label)
        self._store()

    def start_gpu_query(self, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        """Start nvidia-smi in the background, if it is installed, with a time limit."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._directory / GPUS)
        try:
            self._query = gpus.start_report(self._partial_report)
        except OSError as error:
            self._store_missing_gpus(f"nvidia-smi: {error.strerror}")
            return
        if self._query is None:
            self._store_missing_gpus("nvidia-smi is not installed")
            return
        call_later(GPUS_S, self.end_gpu_query)

    def end_gpu_query(self) -> None:
        """Kill nvidia-smi if it still runs."""
        if self._query:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._query.pid, signal.SIGKILL)

    def exited(self, pid: int, code: int) -> bool:
        """A child was reaped: keep the report if it was nvidia-smi; whether it was."""
        if self._query is None or self._query.pid != pid:
            return False
        self._query.returncode, self._query = code, None
        if code == 0:
            with contextlib.suppress(OSError):
                os.replace(self._partial_report, self._directory / GPUS)
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._partial_report)
            ended = f"did not end within {GPUS_S:g} s" if code == -signal.SIGKILL else f"exited with code {code}"
            self._store_missing_gpus(f"nvidia-smi {ended}")
        return True

    @property
    def _partial_report(self) -> Path:
        return self._directory / f".{GPUS}"

    def _store_missing_gpus(self, reason: str) -> None:
        self._facts = {**self._facts, "missing": {**self._facts.get("missing", {}), GPUS: reason}}
        self._store()

    def _store(self) -> None:
        with contextlib.suppress(OSError):
            plain_files.write_json(self._directory / SYSTEM, self._facts)


def _container_facts(root: Path) -> dict[str, Any]:
    """Image and engine as the environment of a container names them; empty outside of containers."""
    if container.IMAGE_VARIABLE not in os.environ and not (root / ".dockerenv").exists():
        return {}
    return {"image": os.environ.get(container.IMAGE_VARIABLE), "engine": os.environ.get(container.ENGINE_VARIABLE)}


def _torch_facts() -> dict[str, Any]:
    """The versions of the imported torch, and of the CUDA and NCCL that it was built with."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {"torch": None}
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if versions["cuda"]:
        with contextlib.suppress(Exception):
            versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {name: value for name, value in versions.items() if value}


def _program_paths() -> dict[str, str | None]:
    """The paths of programs that some algorithms need. collectives/rank/mpi_names.py searches the same directories."""
    bin_dir = Path(sys.executable).parent
    spec = importlib.util.find_spec("mpi4py")
    return {
        "mpirun": shutil.which("mpirun", path=bin_dir) or shutil.which("mpirun"),
        "mpi4py": spec.origin if spec else None,
    }


def _line(path: Path) -> str | None:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return None


def _field(path: Path, name: str) -> str | None:
    """The first ``name : value`` line in the first 8 KiB: reading all of /proc/cpuinfo of a large host takes long."""
    try:
        with open(path, "rb") as file:
            text = file.read(8192).decode(errors="replace")
    except OSError:
        return None
    match = re.search(rf"^{re.escape(name)}\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return match[1] if match else None


def _mib(kib: str | None) -> int | None:
    return int(kib.split()[0]) // 1024 if kib else None
