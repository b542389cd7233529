"""Cgroups of version 1 and 2: the limits of a process, and child cgroups that limit processes further."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .processes import Process

#: What can be limited -> the controller that does it.
CONTROLLERS = {"cpu_percent": "cpu", "memory_mib": "memory", "pids": "pids"}
PERIOD_US = 100_000
_PROC = Path("/proc")
_MIB = 1 << 20
#: A memory limit of version 1 from this size on means no limit: the kernel rounds LONG_MAX down to pages.
_NO_LIMIT_BYTES = 1 << 60


def find(pid: int | str, controller: str, proc: Path = _PROC) -> Path | None:
    """The directory of a process's cgroup for a controller; None if it is not visible."""
    membership = _read(proc / str(pid) / "cgroup")
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return _mounted("cgroup", controller, path, proc)
    unified = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), None)
    return None if unified is None else _mounted("cgroup2", "", unified, proc)


def oom_kills(proc: Path = _PROC, of: str = "") -> tuple[str, int]:
    """The memory cgroup ``of``, or this process's; and how many of its processes the kernel has killed for memory; 0 if not visible."""
    cgroup = Path(of or find("self", "memory", proc) or "/none")
    text = _read(cgroup / "memory.events") or _read(cgroup / "memory.oom_control")
    counts = (line.split() for line in text.splitlines() if line.startswith("oom_kill "))
    return str(cgroup), next((int(count) for _, count in counts), 0)


def explain_oom(before: tuple[str, int], proc: Path = _PROC, of: str = "") -> str:
    """Return what to say of a process that SIGKILL ended since ``before``; empty if the kernel killed none for memory.

    ``of``: its cgroup.
    """
    cgroup, count = oom_kills(proc, of)
    rose = count > (before[1] if before[0] == cgroup else 0)
    return f"out of memory: the kernel killed a process of its cgroup (oom_kill {count} in {cgroup})" if rose else ""


def is_available(names: Iterable[str], proc: Path = _PROC) -> bool:
    """Can this process limit these by a child of its own cgroup, without a change to its parents?"""
    return all(_may_limit(find("self", CONTROLLERS[name], proc), CONTROLLERS[name]) for name in names)


def limit(
    members: Iterable[Process], child: str, amounts: Mapping[str, int], proc: Path = _PROC
) -> dict[str, list[int]]:
    """Move processes into the cgroup ``child`` below this process's own, and limit it; the pids. Raises OSError."""
    pids = [process.pid for process in members]
    for name, amount in amounts.items():
        cgroup = _own(name, proc) / child
        cgroup.mkdir(exist_ok=True)
        _write_limit(cgroup, name, amount)
        for pid in pids:
            _move(pid, cgroup)
    return {"limited": pids}


def release(child: str, names: Iterable[str], proc: Path = _PROC) -> dict[str, list[int]]:
    """Move every process of the cgroup ``child`` back and remove it; the pids. Raises OSError."""
    released: set[int] = set()
    for name in names:
        parent = _own(name, proc)
        if not (parent / child).is_dir():
            continue
        for pid in map(int, _read(parent / child / "cgroup.procs").split()):
            _move(pid, parent)
            released.add(pid)
        (parent / child).rmdir()
    return {"released": sorted(released)}


def limits(process: Process, names: Iterable[str], proc: Path = _PROC) -> dict[str, float | None]:
    """The limits of a process's cgroups; None: no limit. Those that are not visible are left out."""
    cgroups = {name: find(process.pid, CONTROLLERS[name], proc) for name in names}
    return {name: _read_limit(cgroup, name) for name, cgroup in cgroups.items() if cgroup is not None}


def are_limited(
    members: Iterable[Process], amounts: Mapping[str, int], on: bool, proc: Path = _PROC
) -> tuple[bool | None, dict[str, Any]]:
    """Do these limits hold for all of the processes, or (not ``on``) for none? None: not known. With the limits."""
    limits_by_pid = {process.pid: limits(process, amounts, proc) for process in members}
    evidence = {name: {str(pid): shown.get(name) for pid, shown in limits_by_pid.items()} for name in amounts}
    if any(len(shown) < len(amounts) for shown in limits_by_pid.values()):
        return None, evidence
    states = [shown[name] == amount for shown in limits_by_pid.values() for name, amount in amounts.items()]
    return (bool(states) and all(states)) if on else not any(states), evidence


def _may_limit(cgroup: Path | None, controller: str) -> bool:
    if cgroup is None or not os.access(cgroup, os.W_OK):
        return False
    enabled = cgroup / "cgroup.subtree_control"
    return not enabled.exists() or controller in _read(enabled).split()


def _own(name: str, proc: Path) -> Path:
    cgroup = find("self", CONTROLLERS[name], proc)
    if cgroup is None:
        raise FileNotFoundError(f"no cgroup of the controller {CONTROLLERS[name]}")
    return cgroup


def _move(pid: int, cgroup: Path) -> None:
    """Move a process into a cgroup, unless it has ended."""
    try:
        (cgroup / "cgroup.procs").write_text(str(pid))
    except ProcessLookupError:
        return


def _write_limit(cgroup: Path, name: str, amount: int) -> None:
    quota = amount * PERIOD_US // 100
    files = {
        "cpu_percent": {"cpu.max": f"{quota} {PERIOD_US}", "cpu.cfs_quota_us": str(quota)},
        "memory_mib": {"memory.max": str(amount * _MIB), "memory.limit_in_bytes": str(amount * _MIB)},
        "pids": {"pids.max": str(amount)},
    }[name]
    for file, content in files.items():
        if (cgroup / file).exists():
            (cgroup / file).write_text(content)
            return
    raise FileNotFoundError(f"{cgroup} has no {' or '.join(files)}")


def _read_limit(cgroup: Path, name: str) -> float | None:
    if name == "pids":
        return _number(_read(cgroup / "pids.max"))
    if name == "memory_mib":
        size = _number(_read(cgroup / "memory.max") or _read(cgroup / "memory.limit_in_bytes"))
        return None if size is None or size >= _NO_LIMIT_BYTES else size / _MIB
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(cgroup / "cpu.cfs_quota_us"), _read(cgroup / "cpu.cfs_period_us")
    amount, per = _number(quota), _number(period)
    return None if amount is None or not per else 100 * amount / per


def _number(text: str) -> float | None:
    """A number; None for ``max``, -1 and no text, which mean no limit."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number >= 0 else None


def _mounted(kind: str, controller: str, path: str, proc: Path) -> Path | None:
    """The directory of a cgroup, as this process sees the file system."""
    for line in _read(proc / "self" / "mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        filesystem, *_, options = rest.split(" ")
        if filesystem != kind or (controller and controller not in options.split(",")):
            continue
        root, point = fields.split(" ")[3:5]
        if path == root or root == "/" or path.startswith(f"{root}/"):
            return Path(point) / os.path.relpath(path, root)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
