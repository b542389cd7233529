"""What a host has: one reading, no change. Runs by itself on the host (standard library of Python 3.7 or newer only).

Sent over SSH or by a playbook to an interpreter's standard input, with a call of ``main`` at its end; prints one JSON
object. What is asked: hostdir, engine (path of its socket), image (name), gpus (whether to look for them), tag (by which
the containers of the bed are known).
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import fcntl
import grp
import http.client
import json
import os
import pwd
import resource
import shutil
import socket
import subprocess
import sys
import urllib.parse
from typing import Any

#: Nothing here may take longer; an engine that hangs is one that does not answer.
LIMIT_S = 8.0
_UNSYNCHRONISED = 0x40
OLDEST_PYTHON = (3, 10)
PYTHONS = ("python3.13", "python3.12", "python3.11", "python3.10")


def facts(asked: dict[str, Any]) -> dict[str, Any]:
    """All of them. What cannot be found out is empty, with the reason beside it where there is one."""
    user = pwd.getpwuid(os.getuid())
    engine = asked.get("engine") or "/var/run/docker.sock"
    keeper = _json(os.path.join(asked["hostdir"], "keeper", "keeper.json"))
    return {
        "asked": asked,
        "python": list(sys.version_info[:3]),
        "pythons": _pythons(),
        "user": user.pw_name,
        "uid": user.pw_uid,
        "home": user.pw_dir,
        "group": grp.getgrgid(user.pw_gid).gr_name,
        "system": _system(),
        "machine": _text("/etc/machine-id"),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "reached": os.environ.get("SSH_CONNECTION", "").split(" ")[2:],
        "synchronised": _synchronised(),
        "engine": _engine(engine),
        "images": {asked["image"]: _image(engine, asked["image"])} if asked.get("image") else {},
        "gpus": _gpus() if asked.get("gpus") else {},
        "infiniband": os.path.isdir("/dev/infiniband"),
        "workdir": _workdir(asked["hostdir"]),
        "shm": _space("/dev/shm"),
        "limits": _limits(),
        "firewall": _firewall(),
        "programs": [name for name in ("docker", "zstd", "gzip", "systemctl", "sudo") if shutil.which(name)],
        "systemd": os.path.isdir("/run/systemd/system"),
        "stamp": _stamp(asked["hostdir"]),
        "label": {name: str(keeper.get(name, "")) for name in ("owner", "owner_id")},
        "owners": _owners(engine, asked.get("tag", "")),
        "keepers": _keepers(asked.get("tag", "")),
        "driven": _driven(asked["hostdir"]),
    }


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _pythons() -> dict[str, list[int]]:
    """Newer interpreters beside the one that reads this, by path: for hosts whose own is old."""
    found = {sys.executable: list(sys.version_info[:2])}
    for name in PYTHONS if sys.version_info < OLDEST_PYTHON else ():
        path = shutil.which(name)
        if path:
            version = _output([path, "-c", "import sys; print(*sys.version_info[:2])"])
            if version:
                found[path] = [int(part) for part in version.split()]
    return found


def _output(argv: list[str]) -> str:
    """What a program prints; empty if it is not there, fails or hangs."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


def _system() -> dict[str, str]:
    """``id``, ``like`` (debian, rhel, …), ``version`` and ``codename`` of the distribution."""
    lines = _text("/etc/os-release").splitlines()
    found = {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines)}
    ids = [found.get("ID", ""), *found.get("ID_LIKE", "").split()]
    family = "debian" if {"debian", "ubuntu"} & set(ids) else "rhel" if {"rhel", "fedora", "centos"} & set(ids) else ""
    return {
        "id": ids[0],
        "family": family,
        "version": found.get("VERSION_ID", ""),
        "codename": found.get("VERSION_CODENAME", ""),
        "name": found.get("PRETTY_NAME", ids[0]),
    }


def _synchronised() -> bool | None:
    """Whether the kernel's clock is disciplined (adjtimex); None where that cannot be asked."""
    try:
        status = ctypes.create_string_buffer(512)
        state: int = ctypes.CDLL(None).adjtimex(status)
        flags = ctypes.cast(ctypes.byref(status, 40), ctypes.POINTER(ctypes.c_int)).contents.value
    except (OSError, AttributeError):
        return None
    return None if state < 0 else not flags & _UNSYNCHRONISED


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=LIMIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(engine: str, path: str) -> tuple[int, Any]:
    """Status and JSON answer of a container engine's GET. Raises OSError."""
    connection = _Unix(engine)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"no engine's answer: {error}") from None
    finally:
        connection.close()


def _engine(path: str) -> dict[str, Any]:
    found: dict[str, Any] = {"socket": path, "exists": os.path.exists(path), "version": "", "error": ""}
    try:
        version, info = _said(path, "/version"), _said(path, "/info")
    except OSError as error:
        return {**found, "error": error.strerror or str(error), "denied": isinstance(error, PermissionError)}
    root = str(info.get("DockerRootDir", ""))
    return {
        **found,
        "version": str(version.get("Version", "")),
        "api": str(version.get("ApiVersion", "")),
        "runtimes": sorted(info.get("Runtimes") or ()),
        "root": root,
        "free": _space(root)["free"],
    }


def _said(engine: str, path: str) -> dict[str, Any]:
    """What an engine says of itself. Raises OSError."""
    status, answer = ask(engine, path)
    if status != 200 or not isinstance(answer, dict):
        raise OSError(f"no engine's answer to {path}: {status} {json.dumps(answer)[:200]}")
    return answer


def _image(engine: str, name: str) -> str:
    """The image's id; empty if it is not there."""
    try:
        status, answer = ask(engine, f"/images/{urllib.parse.quote(name, safe='/:@')}/json")
    except OSError:
        return ""
    return str(answer.get("Id", "")) if status == 200 and isinstance(answer, dict) else ""


def _gpus() -> dict[str, Any]:
    """What NVIDIA's tools say: devices, driver, and the container toolkit."""
    fields = "index,uuid,name,driver_version"
    said = _output(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"])
    rows = [[cell.strip() for cell in row] for row in csv.reader(said.splitlines())]
    devices = [dict(zip(fields.split(","), row)) for row in rows if len(row) == 4]  # noqa: B905 (Python 3.7)
    toolkit = _output(["nvidia-ctk", "--version"]) or _output(["nvidia-container-cli", "--version"])
    specs = [path for path in ("/etc/cdi", "/var/run/cdi") if os.path.isdir(path) and os.listdir(path)]
    return {
        "devices": devices,
        "smi": bool(shutil.which("nvidia-smi")),
        "toolkit": toolkit.partition("\n")[0],
        "hook": bool(shutil.which("nvidia-container-runtime-hook")),
        "cdi": bool(specs),
    }


def _workdir(path: str) -> dict[str, Any]:
    """The directory, or the nearest one above it that is there."""
    there = path
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    found = os.stat(there)
    return {
        "path": path,
        "there": there == path,
        "above": there,
        "id": [found.st_dev, found.st_ino],
        "owner": found.st_uid,
        "mode": f"{found.st_mode & 0o7777:04o}",
        "ours": there == path and _ours(path),
        "removable": os.access(os.path.dirname(path), os.W_OK | os.X_OK),
        "writable": os.access(there, os.W_OK | os.X_OK),
        **_space(there),
    }


#: What a bed has in its directory on a host (``agent/host.py``), and what preparation leaves there.
OURS = ("prepared.json", "keeper", "agent", "payloads", "nodes", "shared", "run.lock", "open-run.json")
#: The ends of names of images on their way.
SENT = (".tar", ".tar.gz", ".tar.zst")


def _ours(path: str) -> bool:
    """Whether a directory holds nothing but what ccbed puts there: any other is neither taken nor removed."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return all(name in OURS or name.endswith(SENT) for name in names)


def _space(path: str) -> dict[str, int]:
    try:
        found = os.statvfs(path)
    except OSError:
        return {"free": 0, "size": 0}
    return {"free": found.f_bavail * found.f_frsize, "size": found.f_blocks * found.f_frsize}


def _limits() -> dict[str, Any]:
    """The hard ones (-1: none), and what ccbed's file asks for: it counts from the next log-in on."""
    kinds = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK}
    asked = _text("/etc/security/limits.d/90-ccbed.conf")
    return {"file": asked, **{name: resource.getrlimit(kind)[1] for name, kind in kinds.items()}}


def _firewall() -> str:
    """``firewalld`` or ``ufw`` where one is active."""
    if _output(["firewall-cmd", "--state"]) == "running":
        return "firewalld"
    return "ufw" if "ENABLED=yes" in _text("/etc/ufw/ufw.conf") else ""


def _owners(engine: str, tag: str) -> list[str]:
    """Whose the bed's containers are, as people call them."""
    found = set()
    filters = urllib.parse.quote(json.dumps({"label": ["ccbed.bed=" + tag]}))
    with contextlib.suppress(OSError):
        status, listed = ask(engine, f"/containers/json?all=1&filters={filters}") if tag else (0, [])
        found |= {str(one["Labels"].get("ccbed.owner", "")) for one in (listed if status == 200 else [])}
    return sorted(found - {""})


def _keepers(tag: str) -> list[int]:
    """The processes that carry the mark of the bed's keeper, also where its directory is gone."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = f"CCBED_NODE={tag}/keeper/".encode() in file.read()
            found += [int(name)] if tag and marked else []
    return sorted(found)


def _driven(hostdir: str) -> str:
    """The run that an orchestrator drives there now; empty where none does."""
    path = os.path.join(hostdir, "run.lock")
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return str(_json(path).get("run", "")) or "unknown"
    except OSError:
        pass
    return ""


def _stamp(hostdir: str) -> dict[str, Any]:
    """What the last preparation left; empty if there was none."""
    return _json(os.path.join(hostdir, "prepared.json"))


def _json(path: str) -> dict[str, Any]:
    """A JSON file; empty where there is none."""
    with contextlib.suppress(ValueError):
        found = json.loads(_text(path) or "{}")
        return found if isinstance(found, dict) else {}
    return {}


def main(asked: str) -> None:
    """Print the facts. ``asked``: JSON; the call is appended to this text by whoever sends it."""
    print(json.dumps(facts(json.loads(asked))))
