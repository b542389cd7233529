"""The status of a bed of containers on this host: from the labels of its containers, the keeper's lock, and /proc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model import container as names
from ...system import host_facts, plain_files
from ..files import label
from ..oslayer import container_engine, processes
from ..oslayer.container_engine import EngineClient
from . import process_status

#: An idle node has two processes: the engine's init and the agent.
IDLE = 2
#: An engine may take so long to respond: podman starts other programs for its version, on a busy machine for seconds.
RESPONSE_S = 9.0
REBOOTED = "its host was rebooted"
STARTED_BY_HAND = "started again by hand, and not by its host agent"


def bed_status(hostdir: str, bed: str, engine: str, memory: bool = False) -> dict[str, Any]:
    """Everything of the bed on this host. ``memory``: measure it too, which takes milliseconds per process."""
    rows = list_containers(hostdir, bed, engine)
    return {
        **process_status.host_status(hostdir),
        "unit": plain_files.read_json(Path(hostdir) / label.KEEPER_DIR / label.UNIT),
        "owners": owners(rows),
        "lacks": sorted({item for row in rows for item in row["Labels"].get(names.LACKS, "").split(",")} - {""}),
        "nodes": list_nodes(hostdir, rows, engine, memory),
        "engine": _engine_version(engine) if memory else "",
        "stamp": plain_files.read_json(Path(hostdir) / label.STAMP),
    }


def list_containers(hostdir: str, bed: str, engine: str) -> list[dict[str, Any]]:
    """The bed's containers, as the engine lists them. Raises EngineError."""
    filters = container_engine.label_filter(bed=processes.bed_tag(bed, hostdir))
    path = container_engine.with_query("/containers/json", all=1, filters=filters)
    rows = EngineClient(engine).request("GET", path, deadline_s=RESPONSE_S)
    if not isinstance(rows, list):
        raise container_engine.EngineError(f"{engine}: not a container engine; set ccbed_engine to its socket")
    return rows


def owners(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({str(row["Labels"].get(names.OWNER, "")) for row in rows} - {""})


def _engine_version(engine: str) -> str:
    version = EngineClient(engine).request("GET", "/version", deadline_s=RESPONSE_S)
    number = str(version.get("Version", ""))
    return f"podman {number}" if names.is_podman(version) else number


def list_nodes(
    hostdir: str, rows: Sequence[Mapping[str, Any]], engine: str, memory: bool = False
) -> list[dict[str, Any]]:
    return [_node_status(hostdir, row, engine, memory) for row in rows]


def _node_status(hostdir: str, row: Mapping[str, Any], engine: str, memory: bool) -> dict[str, Any]:
    labels = row["Labels"]
    name = labels[names.NODE]
    is_running = row["State"] in ("running", "paused")
    record = _record(hostdir, name)
    is_rebooted = record.get("boot", host_facts.boot_id()) != host_facts.boot_id()
    is_own = record.get("incarnation") == labels.get(names.INCARNATION)
    is_stale = is_running and (is_rebooted or _is_exit_reported(hostdir, labels))
    pid = _main_pid(hostdir, row, engine) if is_running else 0
    living = [process for process in (processes.find(pid), *processes.descendants(pid)) if process] if pid else []
    pages = [processes.resident_mib(process.pid) for process in living] if memory else []
    own = plain_files.read_json(Path(hostdir) / "nodes" / name / label.NODE_LABEL)
    versions = own if own.get("incarnation") == labels.get(names.INCARNATION) else {}
    return {
        "name": name,
        "state": "dead" if is_stale else _state(hostdir, row, len(living)),
        "reason": _reason(hostdir, row, record, is_stale=is_stale and bool(living), is_rebooted=is_rebooted),
        "spec_hash": labels.get(names.SPEC, ""),
        "incarnation": labels.get(names.INCARNATION, ""),
        "ordinal": int(labels.get(names.ORDINAL) or 0),
        "pid": pid,
        "own_mib": round(sum(own for own, _ in pages), 1),
        "shared_mib": round(max((shared for _, shared in pages), default=0.0), 1),
        "address": _address(row),
        "image": row.get("ImageID", ""),
        "request": _record(hostdir, name, "wanted").get("request") if memory and is_own else None,
        **{fact: str(versions.get(fact, "")) for fact in ("python", "torch")},
    }


def _reason(
    hostdir: str, row: Mapping[str, Any], record: Mapping[str, Any], *, is_stale: bool, is_rebooted: bool
) -> str:
    """Return why a node does not run. A node that ended before its host was rebooted has its own reason too: it may have ended by itself,
    or because its host was about to reboot."""
    exit_record = plain_files.read_json(_exit_path(hostdir, row["Labels"][names.NODE]))
    is_ended_before = exit_record.get("incarnation") == record.get("incarnation") and exit_record.get(
        "boot"
    ) == record.get("boot")
    if is_rebooted and not is_ended_before:
        return REBOOTED
    if is_stale:
        return STARTED_BY_HAND
    if row["State"] in ("running", "paused"):
        return ""
    exited = str(row["Status"]).lower()
    return f"{exited}, then {REBOOTED}" if is_rebooted else exited


def _record(hostdir: str, node: str, part: str = "label") -> dict[str, Any]:
    """The keeper's label of a node's newest incarnation, or what is ``wanted`` of it."""
    stored = plain_files.read_json(Path(hostdir) / label.KEEPER_DIR / "nodes" / f"{node}.json").get(part, {})
    return stored if isinstance(stored, dict) else {}


def _exit_path(hostdir: str, node: str) -> Path:
    return Path(hostdir) / label.KEEPER_DIR / "nodes" / f"{node}.exit"


def _is_exit_reported(hostdir: str, labels: Mapping[str, str]) -> bool:
    """Has a keeper reported the exit of this incarnation? A container that runs nevertheless is not a node of the bed."""
    incarnation = labels.get(names.INCARNATION)
    return (
        bool(incarnation)
        and plain_files.read_json(_exit_path(hostdir, labels[names.NODE])).get("incarnation") == incarnation
    )


def _state(hostdir: str, row: Mapping[str, Any], living: int) -> str:
    if row["State"] == "paused":
        return "paused"
    if row["State"] != "running" or not living:
        return "dead"
    labels = row["Labels"]
    directory, incarnation = Path(hostdir) / "nodes" / labels[names.NODE], labels.get(names.INCARNATION)
    if plain_files.read_json(directory / label.READY).get("incarnation") != incarnation:
        return "starting"
    return "busy" if living > IDLE + label.count_reserves(directory, str(incarnation)) else "warm"


def _main_pid(hostdir: str, row: Mapping[str, Any], engine: str) -> int:
    """The pid of the main process, from the keeper's record if that is valid, else from the engine."""
    recorded = _record(hostdir, row["Labels"][names.NODE])
    pid, start = int(recorded.get("pid", 0)), int(recorded.get("start", -1))
    if recorded.get("container") == row["Id"] and processes.is_alive(pid, start):
        return pid
    try:
        path = container_engine.container_path(row["Id"])
        return int(EngineClient(engine).request("GET", path)["State"]["Pid"])
    except container_engine.EngineError:
        return 0


def _address(row: Mapping[str, Any]) -> str:
    """Its address in the private network; empty if it uses the network of its host."""
    networks = row.get("NetworkSettings", {}).get("Networks", {})
    return next((str(network["IPAddress"]) for network in networks.values() if network.get("IPAddress")), "")
