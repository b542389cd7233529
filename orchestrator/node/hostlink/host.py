"""Operations on a host, for an orchestrator on it or one that reaches it: plain arguments in, plain values out.

Each raises OSError, ValueError or RuntimeError with a sentence that says what is wrong. ``engine`` is the path of the
engine's socket, ``hostdir`` the bed's directory on the host.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import preflight_checks
from ..files import inbox, label, payloads
from ..keeper import container_status, launch
from ..oslayer import engine_api as engines
from ..oslayer import process_tag as marks
from . import leftovers

#: What a bed's directory holds; the rest of it is not ours to remove.
OURS = ("keeper", "agent", "payloads", "nodes", "shared", "run.lock", "open-run.json", "run-secrets.json", "hosts")


def prepare(hostdir: str, nodes: Sequence[str], shared_dir: str) -> dict[str, Any]:
    """The directories of a bed, readable by their owner alone; ``{uid, gid}`` of that owner."""
    parts = ("keeper/inbox", "keeper/done", "agent", "payloads", *(f"nodes/{node}/inbox" for node in nodes))
    for path in (*(Path(hostdir) / part for part in parts), Path(shared_dir)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.stat(hostdir)
    return {"uid": found.st_uid, "gid": found.st_gid}


def place(path: str, data: bytes) -> None:
    """A file, renamed into place."""
    inbox.place(Path(path), data)


def keeper(
    hostdir: str, bed: str, archive: str, engine: str, python: str, owner: str, owner_id: str = ""
) -> dict[str, Any]:
    """A keeper that runs ``archive``; ``{pid, hash}``. Raises RuntimeError where the bed is another owner's."""
    directory, path = Path(hostdir) / marks.KEEPER, Path(archive)
    present = label.read(directory / label.KEEPER)
    if label.foreign(present, owner, owner_id):
        raise RuntimeError(
            f"bed {bed} belongs to {present.get('owner')} here; end it there, or choose another ccbed_bed"
        )
    digest = path.stem.removeprefix("agent-")
    more = ("--backend", "containers", "--engine", engine, "--owner", owner, "--owner-id", owner_id)
    launch.ensure(Path(hostdir), bed, path, digest, python, more)
    return {"pid": label.living(directory, label.KEEPER).get("pid", 0), "hash": digest}


def end(hostdir: str, bed: str, engine: str) -> dict[str, Any]:
    """The keeper first, so that it starts nothing anew; then the bed's containers; ``{pids}``."""
    keeper_pid = launch.end(Path(hostdir) / marks.KEEPER)
    found = container_status.containers(hostdir, bed, engine)
    pids = [one["pid"] for one in container_status.nodes(hostdir, found, engine) if one["state"] != "dead"]
    client = engines.Engine(engine)
    asked = [client.send("DELETE", f"/containers/{one['Id']}?force=1&v=1", deadline_s=20.0) for one in found]
    for one in asked:
        try:
            one.answer()
        except engines.EngineError as error:
            if error.status not in (engines.GONE, engines.CONFLICT):
                raise
    return {"pids": [pid for pid in (keeper_pid, *pids) if pid]}


def remove(hostdir: str) -> None:
    """What the bed had here on disk; the directory itself too where nothing else is in it."""
    root = Path(hostdir)
    for path in (root / name for name in OURS):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if root.is_dir() and not any(root.iterdir()):
        root.rmdir()


def forget(hostdir: str, shared_dir: str, run: str) -> None:
    """What a run has left: files of nodes, checkpoints, kept outcomes."""
    root = Path(hostdir)
    for directory in (*root.glob(f"nodes/*/runs/{run}"), Path(shared_dir) / run):
        shutil.rmtree(directory, ignore_errors=True)
    for outcome in (*root.glob(f"nodes/*/done/{run}.*"), *root.glob(f"keeper/done/{run}.*")):
        outcome.unlink(missing_ok=True)


def put(hostdir: str, files: Mapping[str, bytes]) -> str:
    """Place a payload; its path."""
    return str(payloads.put(Path(hostdir) / "payloads", files))


def routes() -> list[str]:
    """The IPv4 networks that this host has routes to, as ``10.0.0.0/8``; the default route is left out."""
    found = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        fields = line.split()
        network, mask = int(fields[1], 16), int(fields[7], 16)
        if mask:
            address = socket.inet_ntoa(network.to_bytes(4, "little"))
            found.append(f"{address}/{mask.bit_count()}")
    return found


OPS: Mapping[str, Callable[..., Any]] = {
    "prepare": prepare,
    "place": place,
    "keeper": keeper,
    "look": container_status.look,
    "end": end,
    "remove": remove,
    "forget": forget,
    "put": put,
    "routes": routes,
    "leftovers": leftovers.listed,
    "remove_leftovers": leftovers.removed,
    **preflight_checks.OPS,
}
