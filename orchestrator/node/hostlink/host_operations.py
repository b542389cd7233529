"""Operations on a host for the orchestrator, local or remote: plain JSON arguments and results.

Each raises OSError, ValueError or RuntimeError with a message for the user. ``engine``: the path of the engine's socket,
empty if the nodes are processes; ``hostdir``: the bed's directory on the host.
"""

from __future__ import annotations

import os
import syslog
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...system import host_facts, plain_files
from .. import preflight_checks
from ..files import label, payloads
from ..keeper import container_status, keeper_start, process_status
from ..oslayer import container_engine
from . import bed_files, keeper_unit


def write_file(path: str, data: bytes) -> None:
    plain_files.replace_file(path, data)


def start_keeper(
    hostdir: str,
    bed: str,
    archive: str,
    engine: str,
    python: str,
    owner: str,
    owner_id: str = "",
    named: str = "",
    unit: bool = False,
) -> dict[str, Any]:
    """Ensure that a keeper runs ``archive``; ``{pid, hash}``. Raises RuntimeError if the bed has another owner.

    ``named``: the interpreter as the specs of nodes that are processes name it. ``unit``: as a unit of systemd where that runs.
    """
    directory, path = Path(hostdir) / label.KEEPER_DIR, Path(archive)
    present = plain_files.read_json(directory / label.KEEPER_LABEL)
    if label.is_foreign(present, owner, owner_id):
        raise RuntimeError(
            f"bed {bed} belongs to {present.get('owner')} here; end it there, or choose another ccbed_bed"
        )
    digest = path.stem.removeprefix("agent-")
    backend = ("--backend", "containers", "--engine", engine) if engine else ("--backend", "processes")
    more = (*backend, "--owner", owner, "--owner-id", owner_id)
    env = {} if engine else keeper_start.HUGE_PAGES
    if unit:
        keeper_unit.ensure_keeper(
            keeper_unit.Wanted(
                hostdir=Path(hostdir), bed=bed, archive=path, digest=digest, python=python, named=named, more=more
            )
        )
    else:
        keeper_start.ensure_keeper(Path(hostdir), bed, path, digest, python, more, env, named)
    return {"pid": label.live_label(directory, label.KEEPER_LABEL).get("pid", 0), "hash": digest}


def end_bed(hostdir: str, bed: str, engine: str) -> dict[str, Any]:
    """End the keeper first, so that it starts nothing anew, then the bed's nodes; ``{pids}``."""
    if not engine:
        return {"pids": process_status.end_bed(Path(hostdir), bed)}
    directory = Path(hostdir) / label.KEEPER_DIR
    keeper_pid = label.lock_holder(directory)
    keeper_unit.remove(hostdir, bed)  # else systemd would start the keeper again
    keeper_start.end_keeper(directory)
    rows = container_status.list_containers(hostdir, bed, engine)
    pids = [node["pid"] for node in container_status.list_nodes(hostdir, rows, engine) if node["state"] != "dead"]
    client = container_engine.EngineClient(engine)
    removals = [client.send("DELETE", f"/containers/{row['Id']}?force=1&v=1", deadline_s=20.0) for row in rows]
    for removal in removals:
        try:
            removal.read_response()
        except container_engine.EngineError as error:
            if error.status not in (container_engine.NOT_FOUND, container_engine.CONFLICT):
                raise
    return {"pids": [pid for pid in (keeper_pid, *pids) if pid]}


def record_act(hostdir: str, line: str) -> None:
    """Append a line to the host's record of acts, which outlives the bed, and to its system log."""
    syslog.openlog("ccbed")
    syslog.syslog(syslog.LOG_NOTICE, line)
    if Path(hostdir).is_dir():
        with open(
            os.open(Path(hostdir) / label.ACTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600), "a"
        ) as file:
            file.write(f"{line}\n")


def call_engine(engine: str, method: str, path: str, body: Any = None, limit_s: float = 10.0) -> tuple[int, Any]:
    """(HTTP status, content) of a request to the engine; the content of an error is its message. Raises EngineError without any."""
    try:
        return 200, container_engine.EngineClient(engine).request(method, path, body, deadline_s=limit_s)
    except container_engine.EngineError as error:
        if not error.status:
            raise
        return error.status, error.message


def put_payload(hostdir: str, files: Mapping[str, bytes]) -> str:
    return str(payloads.put_payload(Path(hostdir) / "payloads", files))


def observe_bed(hostdir: str, bed: str, engine: str, memory: bool = False) -> dict[str, Any]:
    """Everything of the bed on this host. ``memory``: measure it too, which takes milliseconds per process."""
    if engine:
        return container_status.bed_status(hostdir, bed, engine, memory)
    return process_status.bed_status(hostdir, bed, memory)


#: The operations by the names that requests use.
OPS: Mapping[str, Callable[..., Any]] = {
    "prepare": bed_files.prepare_directories,
    "place": write_file,
    "keeper": start_keeper,
    "look": observe_bed,
    "end": end_bed,
    "remove": bed_files.remove_bed_files,
    "forget": bed_files.remove_run,
    "put": put_payload,
    "record_act": record_act,
    "sign": bed_files.sign_manifest,
    "engine": call_engine,
    "routes": host_facts.ipv4_routes,
    "leftovers": bed_files.list_prunable,
    "remove_leftovers": bed_files.remove_prunable,
    **preflight_checks.OPS,
}
