"""Reads the facts of a host without any change. Runs alone on the host (standard library of Python 3.7 or newer).

Sent over SSH or by a playbook to an interpreter's standard input, with a call of ``main`` at its end; prints one JSON
object. The request: hostdir, engine (path of its socket), image (name), gpus (whether to read them), tag (which labels
the containers of the bed).
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

#: The limit of each reading; an engine that hangs counts as one that does not respond.
LIMIT_S = 8.0
_UNSYNCHRONISED = 0x40
OLDEST_PYTHON = (3, 10)
PYTHONS = ("python3.13", "python3.12", "python3.11", "python3.10")


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """All facts. A fact that cannot be read is empty, with its reason if there is one."""
    name, home, group = _account(os.getuid(), os.getgid())
    engine = request.get("engine") or "/var/run/docker.sock"
    keeper = _json(os.path.join(request["hostdir"], "keeper", "keeper.json"))
    return {
        "asked": request,
        "python": list(sys.version_info[:3]),
        "pythons": _pythons(),
        "user": name,
        "uid": os.getuid(),
        "home": home,
        "group": group,
        "system": _system(),
        "machine": _text("/etc/machine-id"),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "reached": os.environ.get("SSH_CONNECTION", "").split(" ")[2:],
        "synchronised": _synchronised(),
        "engine": _engine(engine),
        "images": {request["image"]: _image(engine, request["image"])} if request.get("image") else {},
        "gpus": _gpus() if request.get("gpus") else {},
        "infiniband": os.path.isdir("/dev/infiniband"),
        "workdir": _workdir(request["hostdir"]),
        "shm": _space("/dev/shm"),
        "limits": _limits(),
        "firewall": _firewall(),
        "programs": [name for name in ("docker", "podman", "zstd", "gzip", "systemctl", "sudo") if shutil.which(name)],
        "systemd": os.path.isdir("/run/systemd/system"),
        "may_become_root": os.getuid() == 0 or _output(["sudo", "-n", "id", "-u"]) == "0",
        "lingers": os.path.exists(f"/var/lib/systemd/linger/{name}"),
        "user_systemd": os.path.exists(f"/run/user/{os.getuid()}/systemd/private"),
        "unit": _unit(request.get("tag", ""), home),
        "stamp": _json(os.path.join(request["hostdir"], "prepared.json")),
        "label": {name: str(keeper.get(name, "")) for name in ("owner", "owner_id")},
        "owners": _owners(engine, request.get("tag", "")),
        "keepers": _keepers(request.get("tag", "")),
        "driven": _driven(request["hostdir"]),
    }


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _account(uid: int, gid: int) -> tuple[str, str, str]:
    """Name, home and group of a user; an id without an entry, as in a container, is its own name."""
    name, home, group = str(uid), os.environ.get("HOME", "/nonexistent"), str(gid)
    with contextlib.suppress(KeyError):
        entry = pwd.getpwuid(uid)
        name, home = entry.pw_name, entry.pw_dir
        group = grp.getgrgid(entry.pw_gid).gr_name
    return name, home, group


def _pythons() -> dict[str, list[int]]:
    """Newer interpreters beside the running one, by path, if that is too old."""
    versions = {sys.executable: list(sys.version_info[:2])}
    for name in PYTHONS if sys.version_info < OLDEST_PYTHON else ():
        path = shutil.which(name)
        if path:
            version = _output([path, "-c", "import sys; print(*sys.version_info[:2])"])
            if version:
                versions[path] = [int(part) for part in version.split()]
    return versions


def _output(argv: list[str]) -> str:
    """The output of a program; empty if it is missing, fails or hangs."""
    output, problem = _run(argv)
    return "" if problem else output


def _run(argv: list[str]) -> tuple[str, str]:
    """The output of a program, also of one that fails, and how it failed; empty if it did not."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    output, errors = (stream.decode(errors="replace").strip() for stream in (done.stdout, done.stderr))
    return output, f"exit code {done.returncode}: {errors or output}" if done.returncode else ""


def _system() -> dict[str, str]:
    """``id``, ``like`` (debian, rhel, …), ``version`` and ``codename`` of the distribution."""
    lines = _text("/etc/os-release").splitlines()
    release = {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines)}
    ids = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    family = "debian" if {"debian", "ubuntu"} & set(ids) else "rhel" if {"rhel", "fedora", "centos"} & set(ids) else ""
    return {
        "id": ids[0],
        "family": family,
        "version": release.get("VERSION_ID", ""),
        "codename": release.get("VERSION_CODENAME", ""),
        "name": release.get("PRETTY_NAME", ids[0]),
    }


def _synchronised() -> bool | None:
    """Return whether the kernel's clock is synchronised (adjtimex); None if that is not known."""
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


def ask(engine: str, path: str, method: str = "GET") -> tuple[int, Any]:
    """Status and JSON response of a request to the container engine; an error may be plain text. Raises OSError."""
    connection = _Unix(engine)
    try:
        connection.request(method, path, "{}" if method == "POST" else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        is_text = response.status >= 400 and "json" not in (response.getheader("Content-Type") or "")
        return response.status, content.decode(errors="replace") if is_text else json.loads(content or b"null")
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"no response of an engine: {error}") from None
    finally:
        connection.close()


def _engine(path: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"socket": path, "exists": os.path.exists(path), "version": "", "error": ""}
    try:
        version, info = _engine_response(path, "/version"), _engine_response(path, "/info")
    except OSError as error:
        return {**facts, "error": error.strerror or str(error), "denied": isinstance(error, PermissionError)}
    root = str(info.get("DockerRootDir", ""))
    return {
        **facts,
        "version": str(version.get("Version", "")),
        "api": str(version.get("ApiVersion", "")),
        **_podman(path, version),
        "options": json.dumps(info.get("SecurityOptions") or []),
        "runtimes": sorted(info.get("Runtimes") or ()),
        "root": root,
        "free": _space(root)["free"],
    }


def _podman(engine: str, version: dict[str, Any]) -> dict[str, Any]:
    """Return what podman says of itself beside Docker's API (``core/bed/engine_kind.py``); empty for Docker. Raises OSError."""
    if not any(part.get("Name") == "Podman Engine" for part in version.get("Components") or ()):
        return {}
    status, response = ask(engine, "/containers/ccbed-no-such-container/update", "POST")
    return {"podman": _engine_response(engine, "/v4.0.0/libpod/info"), "update": [status, json.dumps(response)]}


def _engine_response(engine: str, path: str) -> dict[str, Any]:
    """A response of the engine about itself. Raises OSError."""
    status, response = ask(engine, path)
    if status != 200 or not isinstance(response, dict):
        raise OSError(f"no response of an engine to {path}: {status} {json.dumps(response)[:200]}")
    return response


def _image(engine: str, name: str) -> str:
    """The id of an image; empty if it is missing."""
    try:
        status, response = ask(engine, f"/images/{urllib.parse.quote(name, safe='/:@')}/json")
    except OSError:
        return ""
    return str(response.get("Id", "")) if status == 200 and isinstance(response, dict) else ""


def _gpus() -> dict[str, Any]:
    """Devices, driver and container toolkit, as NVIDIA's tools report them."""
    fields = "index,uuid,name,driver_version"
    table, problem = _run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"])
    rows = [[cell.strip() for cell in row] for row in csv.reader(table.splitlines())]
    devices = [dict(zip(fields.split(","), row)) for row in rows if len(row) == 4]  # noqa: B905 (Python 3.7)
    toolkit = _output(["nvidia-ctk", "--version"]) or _output(["nvidia-container-cli", "--version"])
    specs = [path for path in ("/etc/cdi", "/var/run/cdi") if os.path.isdir(path) and os.listdir(path)]
    return {
        "devices": devices,
        "smi": bool(shutil.which("nvidia-smi")),
        "problem": " ".join(problem.split())[:300],
        "toolkit": toolkit.partition("\n")[0],
        "hook": bool(shutil.which("nvidia-container-runtime-hook")),
        "cdi": bool(specs),
    }


def _workdir(path: str) -> dict[str, Any]:
    """The directory, or its nearest existing parent."""
    existing = path
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    status = os.stat(existing)
    return {
        "path": path,
        "there": existing == path,
        "above": existing,
        "id": [status.st_dev, status.st_ino],
        "owner": status.st_uid,
        "mode": f"{status.st_mode & 0o7777:04o}",
        "ours": existing == path and _is_bed_directory(path),
        "removable": os.access(os.path.dirname(path), os.W_OK | os.X_OK),
        "writable": os.access(existing, os.W_OK | os.X_OK),
        **_space(existing),
    }


#: The entries of a bed's directory on a host (``node/hostlink/host_operations.py``), and of preparation.
BED_ENTRIES = (
    "prepared.json",
    "audit.jsonl",
    "keeper",
    "agent",
    "payloads",
    "nodes",
    "shared",
    "run.lock",
    "open-run.json",
)
#: The suffixes of image files that are being copied.
IMAGE_SUFFIXES = (".tar", ".tar.gz", ".tar.zst")


def _is_bed_directory(path: str) -> bool:
    """Return whether a directory holds only files of ccbed: any other is neither used nor removed."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return all(name in BED_ENTRIES or name.endswith(IMAGE_SUFFIXES) for name in names)


def _space(path: str) -> dict[str, int]:
    try:
        stats = os.statvfs(path)
    except OSError:
        return {"free": 0, "size": 0}
    return {"free": stats.f_bavail * stats.f_frsize, "size": stats.f_blocks * stats.f_frsize}


def _limits() -> dict[str, Any]:
    """The hard limits (-1: none), and the content of ccbed's file, which counts from the next log-in on."""
    kinds = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK}
    configured = _text("/etc/security/limits.d/90-ccbed.conf")
    return {"file": configured, **{name: resource.getrlimit(kind)[1] for name, kind in kinds.items()}}


def _firewall() -> str:
    """``firewalld`` or ``ufw``, if active."""
    if _output(["firewall-cmd", "--state"]) == "running":
        return "firewalld"
    return "ufw" if "ENABLED=yes" in _text("/etc/ufw/ufw.conf") else ""


def _owners(engine: str, tag: str) -> list[str]:
    owners = set()
    filters = urllib.parse.quote(json.dumps({"label": ["ccbed.bed=" + tag]}))
    with contextlib.suppress(OSError):
        status, listed = ask(engine, f"/containers/json?all=1&filters={filters}") if tag else (0, [])
        owners |= {str(container["Labels"].get("ccbed.owner", "")) for container in (listed if status == 200 else [])}
    return sorted(owners - {""})


def _keepers(tag: str) -> list[int]:
    """The processes with the tag of the bed's keeper, even if its directory is missing."""
    pids = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                is_tagged = f"CCBED_NODE={tag}/keeper/".encode() in file.read()
            pids += [int(name)] if tag and is_tagged else []
    return sorted(pids)


def _unit(tag: str, home: str) -> dict[str, str]:
    """The systemd unit of the bed's keeper: ``name``, ``scope`` (system or user) and ``path``; empty if there is none."""
    name = f"ccbed-keeper-{tag}.service"
    for scope, folder in (("system", "/etc/systemd/system"), ("user", f"{home}/.config/systemd/user")):
        if tag and os.path.exists(f"{folder}/{name}"):
            return {"name": name, "scope": scope, "path": f"{folder}/{name}"}
    return {}


def _driven(hostdir: str) -> str:
    """The run that an orchestrator drives on the host now; empty if there is none."""
    path = os.path.join(hostdir, "run.lock")
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return str(_json(path).get("run", "")) or "unknown"
    except OSError:
        pass
    return ""


def _json(path: str) -> dict[str, Any]:
    """The content of a JSON file; empty if there is none."""
    with contextlib.suppress(ValueError):
        content = json.loads(_text(path) or "{}")
        return content if isinstance(content, dict) else {}
    return {}


def main(request: str) -> None:
    """Print the facts. ``request``: JSON; the sender appends this call to the script."""
    print(json.dumps(facts(json.loads(request))))
