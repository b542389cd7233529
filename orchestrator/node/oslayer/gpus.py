"""The NVIDIA GPUs of this host: driver and models from /proc, health and full report from nvidia-smi, and leases across beds and users."""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...model import gang

#: What the health check queries of each GPU.
HEALTH_FIELDS = ("index", "uuid", "name", "ecc.errors.uncorrected.volatile.total", "retired_pages.pending")
#: The values of a healthy GPU, by field.
HEALTHY_VALUES = {HEALTH_FIELDS[3]: ("0", "[N/A]"), HEALTH_FIELDS[4]: ("No", "[N/A]")}
_DRIVER = "proc/driver/nvidia"


def driver_facts(root: Path = Path("/")) -> dict[str, Any]:
    """``driver``: its version; ``gpus``: the models by PCI address; ``vbios``: their firmware, where the driver shows it.

    Empty if no driver is loaded. Does not touch a GPU.
    """
    try:
        with open(root / _DRIVER / "version") as file:
            line = file.readline().strip()
    except OSError:
        return {}
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", line)
    files = sorted((root / _DRIVER / "gpus").glob("*/information"))
    firmware = [_field(path, "Video BIOS") for path in files]
    return {
        "driver": version[1] if version else line, "gpus": [_field(path, "Model") for path in files],
        **({"vbios": firmware} if set(firmware) - {"unknown"} else {}),
    }  # fmt: skip


def check_health(limit_s: float = 2.0) -> dict[str, Any]:
    """``{count, problems}`` from nvidia-smi; ``{reason}`` if it cannot be run, or fails and lists no GPU."""
    try:
        table, problem = _query(HEALTH_FIELDS, limit_s)
    except OSError as error:
        return {"reason": f"nvidia-smi: {error}"}
    health = parse_health(table)
    if problem and not health["count"]:
        return {"reason": f"nvidia-smi: {problem}"}
    return {**health, "problems": [*health["problems"], *([f"nvidia-smi: {problem}"] if problem else [])]}


def _query(fields: Sequence[str], limit_s: float) -> tuple[str, str]:
    """nvidia-smi's table of these fields, and why it failed: it lists other GPUs beside one that is lost. Raises OSError."""
    argv = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(str(error)) from None
    if done.returncode:
        return done.stdout, (done.stderr or done.stdout).strip()[-200:]
    return done.stdout, ""


def parse_health(text: str) -> dict[str, Any]:
    """``{count, problems}`` from nvidia-smi's table of ``HEALTH_FIELDS``."""
    rows = [
        dict(zip(HEALTH_FIELDS, (cell.strip() for cell in row), strict=False))
        for row in csv.reader(text.splitlines())
        if len(row) == len(HEALTH_FIELDS)
    ]
    problems = [
        f"GPU {row.get('index')} ({row.get('name')}): {field} is {row.get(field)}"
        for row in rows
        for field, healthy in HEALTHY_VALUES.items()
        if row.get(field) not in healthy
    ]
    return {"count": len(rows), "problems": problems}


def start_report(path: Path) -> subprocess.Popen[bytes] | None:
    """Start nvidia-smi, which writes its full report as XML into a file. None if it is not installed. Raises OSError."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    with open(path, "wb") as out:
        return subprocess.Popen(
            [program, "-q", "-x"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _field(path: Path, name: str) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return "unknown"
    match = re.search(rf"^{name}\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return match[1] if match else "unknown"


LEASES = Path("/var/tmp/ccbed-leases")
ALL = "all"
QUERY_S = 5.0
_LARGEST = 4096
_REMEDY = "all users must be able to write there: install -d -m 1777 {}"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class LeaseError(Exception):
    """``GPU 3 of h2 is used by bed x of user y (pid 4711, since …)``, or ``GPU 3 of h2 cannot be leased: …``."""


def list_uuids() -> dict[str, str]:
    """Index -> UUID of the GPUs of this host, by nvidia-smi; empty where it is missing or fails."""
    rows: list[list[str]] = []
    with suppress(OSError):
        rows = [line.split(",") for line in _query(("index", "uuid"), QUERY_S)[0].splitlines() if line.count(",") == 1]
    return {index.strip(): uuid.strip() for index, uuid in rows}


def devices(wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """The GPUs that a node is started with: indices, UUIDs, or ``all``. ``wanted``: the value of its node.apply."""
    requests = ((wanted.get("request") or {}).get("HostConfig") or {}).get("DeviceRequests") or ()
    names: list[str] = []
    for request in requests:
        names += [ALL] if request.get("Count") == -1 else [str(name) for name in request.get("DeviceIDs") or ()]
    if not requests and wanted.get("gpus"):
        visible = gang.within_step(wanted.get("env") or {}, os.environ).get("CUDA_VISIBLE_DEVICES", "")
        names = visible.split(",") if visible else [ALL]
    return tuple(dict.fromkeys(name.rpartition("=")[2] for name in names))  # a CDI name ends with the index or the UUID


class GpuLeases:
    """The leases of one bed on this host. ``uuids``: returns index -> UUID; it is called once, when a node has GPUs.

    The directory is writable for all users of the host, with the sticky bit. The lock is the lease; the text of the file only
    says who has it. On a host on which the directory cannot be used, no node gets a GPU: nothing would keep two beds apart.
    """

    def __init__(self, bed: str, directory: Path = LEASES, uuids: Callable[[], Mapping[str, str]] = list_uuids) -> None:
        self._bed = bed
        self._directory = directory
        self._query = uuids
        self._uuids: Mapping[str, str] | None = None
        #: UUID -> the locked file, and the nodes that use the GPU.
        self._leases: dict[str, tuple[int, set[str]]] = {}

    def take(self, node: str, names: Sequence[str]) -> None:
        """Lease the GPUs for a node of the bed: all of them, or none. Raises LeaseError."""
        before = {uuid for uuid, (_, nodes) in self._leases.items() if node in nodes}
        try:
            for index, uuid in self._resolve(names):
                self._take(node, index, uuid)
        except LeaseError:
            self._release(node, keep=before)
            raise

    def release(self, node: str) -> None:
        """The node has ended. A GPU that no other node of the bed uses is free."""
        self._release(node, keep=set())

    def _release(self, node: str, keep: set[str]) -> None:
        for uuid, (fd, nodes) in list(self._leases.items()):
            if uuid not in keep:
                nodes.discard(node)
            if not nodes:
                os.ftruncate(fd, 0)
                fcntl.flock(fd, fcntl.LOCK_UN)  # also where a node inherited the file
                os.close(fd)
                del self._leases[uuid]

    def _resolve(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """(index, UUID) of each name. Without nvidia-smi an index stands for its UUID, and ``all`` for all of them."""
        if not names:
            return []
        if self._uuids is None:
            self._uuids = self._query()
        indices = {uuid: index for index, uuid in self._uuids.items()}
        chosen = list(self._uuids) or [ALL] if ALL in names else list(names)
        return [(indices.get(name, name), self._uuids.get(name, name)) for name in chosen if _NAME.fullmatch(name)]

    def _take(self, node: str, index: str, uuid: str) -> None:
        if uuid in self._leases:
            self._leases[uuid][1].add(node)
            return
        gpu = f"GPU {index} of {socket.gethostname()}"
        try:
            fd = _open(self._directory, f"gpu-{uuid}")
        except OSError as error:
            raise LeaseError(f"{gpu} cannot be leased: {_obstacle(self._directory, error)}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _owner(fd)
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise LeaseError(f"{gpu} is used by {owner}") from None
            raise LeaseError(f"{gpu} cannot be leased: {_obstacle(self._directory, error)}") from None
        _write(fd, {"bed": self._bed, "user": _user(), "pid": os.getpid(), "node": node, "gpu": index, "since": _now()})
        self._leases[uuid] = (fd, {node})


def _open(directory: Path, name: str) -> int:
    """Created only if it is new: a kernel may forbid to create a file that another user owns in a sticky directory."""
    if not directory.is_dir():
        directory.mkdir(mode=0o700, exist_ok=True)
        directory.chmod(0o1777)
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(directory / name, flags)
    except FileNotFoundError:
        fd = os.open(directory / name, flags | os.O_CREAT, 0o600)
        os.fchmod(fd, 0o666)
        return fd


def _obstacle(directory: Path, error: OSError) -> str:
    """Return why the directory of the leases cannot be used, its owner, and what helps."""
    with suppress(OSError, KeyError):
        status = directory.lstat()
        kind = f"{stat.filemode(status.st_mode)}, of user {pwd.getpwuid(status.st_uid).pw_name}"
        return f"{error.filename or directory}: {error.strerror} ({directory} is {kind}); {_REMEDY.format(directory)}"
    return f"{error.filename or directory}: {error.strerror}; {_REMEDY.format(directory)}"


def _owner(fd: int) -> str:
    """``bed x of user y (pid 4711, since …)``, as the owner wrote it; other text than that is not shown."""
    try:
        record = json.loads(os.pread(fd, _LARGEST, 0))
        bed, user, pid, since = (str(record[name]) for name in ("bed", "user", "pid", "since"))
    except (OSError, ValueError, KeyError, TypeError):
        return "another bed"
    if not all(_NAME.fullmatch(text.replace(":", "-")) for text in (bed, user, pid, since)):
        return "another bed"
    return f"bed {bed} of user {user} (pid {pid}, since {since})"


def _write(fd: int, record: Mapping[str, Any]) -> None:
    """Write the lease. It has no text on a full disk; its lock holds all the same."""
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(record).encode(), 0)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
