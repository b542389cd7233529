"""What exists of a bed of containers on this host: the engine's labels, the keeper's lock, and /proc."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model import container as names
from ..files import label
from ..oslayer import engine_api as engines
from ..oslayer import process_tag as marks
from ..oslayer import processes
from . import lease
from .container_node import READY

SIOCGIFADDR = 0x8915
#: The engine's init and the agent: what a node has while it only waits.
IDLE = 2
#: What preparation leaves in a bed's directory.
STAMP = "prepared.json"
AGAIN = "started again by hand, and not by its keeper"


def look(hostdir: str, bed: str, engine: str, memory: bool = False) -> dict[str, Any]:
    """Everything of the bed that is on this host. ``memory``: measure it too, milliseconds for each process."""
    directory = Path(hostdir) / marks.KEEPER
    found = containers(hostdir, bed, engine)
    keeper = label.read(directory / label.KEEPER)
    return {
        "keeper": {**keeper, "alive": bool(label.living(directory, label.KEEPER))},
        "owners": owners(found),
        "nodes": nodes(hostdir, found, engine, memory),
        "leases": list(lease.texts(directory / "leases")),
        "interfaces": interfaces(),
        "engine": _version(engine) if memory else "",
        "stamp": label.read(Path(hostdir) / STAMP),
        "machine": label.machine_id(),
        "place": place(hostdir),
    }


def place(hostdir: str) -> str:
    """Which directory of which machine it is, by whatever way it was reached; empty where there is none."""
    try:
        found = os.stat(hostdir)
    except OSError:
        return ""
    return f"{label.boot_id()}:{found.st_dev}:{found.st_ino}"


def containers(hostdir: str, bed: str, engine: str) -> list[dict[str, Any]]:
    """The bed's containers, as the engine lists them. Raises EngineError."""
    filters = engines.labelled(bed=marks.tag(bed, hostdir))
    found = engines.Engine(engine).ask("GET", engines.query("/containers/json", all=1, filters=filters))
    if not isinstance(found, list):
        raise engines.EngineError(
            f"{engine}: what answers there is no container engine; set ccbed_engine to its socket"
        )
    return found


def owners(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whose the containers are, as people call them."""
    return sorted({str(one["Labels"].get(names.OWNER, "")) for one in found} - {""})


def _version(engine: str) -> str:
    return str(engines.Engine(engine).ask("GET", "/version").get("Version", ""))


def nodes(hostdir: str, found: Sequence[Mapping[str, Any]], engine: str, memory: bool = False) -> list[dict[str, Any]]:
    """The node of each container."""
    return [_node(hostdir, one, engine, memory) for one in found]


def _node(hostdir: str, found: Mapping[str, Any], engine: str, memory: bool) -> dict[str, Any]:
    labels = found["Labels"]
    name = labels[names.NODE]
    running = found["State"] in ("running", "paused")
    again = running and _is_over(hostdir, labels)
    pid = _pid(hostdir, found, engine) if running else 0
    living = [one for one in (processes.find(pid), *processes.descendants(pid)) if one] if pid else []
    pages = [processes.memory(one.pid) for one in living] if memory else []
    return {
        "name": name,
        "state": "dead" if again else _state(hostdir, found, len(living)),
        "reason": AGAIN if again else "" if running else str(found["Status"]).lower(),
        "spec_hash": labels.get(names.SPEC, ""),
        "incarnation": labels.get(names.INCARNATION, ""),
        "ordinal": int(labels.get(names.ORDINAL) or 0),
        "pid": pid,
        "own_mib": round(sum(own for own, _ in pages), 1),
        "shared_mib": round(max((shared for _, shared in pages), default=0.0), 1),
        "address": _address(found),
        "image": found.get("ImageID", ""),
    }


def _is_over(hostdir: str, labels: Mapping[str, str]) -> bool:
    """Has a keeper reported the end of this incarnation? What runs under its name nevertheless is nobody's node."""
    record = Path(hostdir) / marks.KEEPER / "nodes" / f"{labels[names.NODE]}.exit"
    return bool(labels.get(names.INCARNATION)) and label.read(record).get("incarnation") == labels[names.INCARNATION]


def _state(hostdir: str, found: Mapping[str, Any], living: int) -> str:
    if found["State"] == "paused":
        return "paused"
    if found["State"] != "running" or not living:
        return "dead"
    labels = found["Labels"]
    said = label.read(Path(hostdir) / "nodes" / labels[names.NODE] / READY)
    if said.get("incarnation") != labels.get(names.INCARNATION):
        return "starting"
    return "busy" if living > IDLE else "warm"


def _pid(hostdir: str, found: Mapping[str, Any], engine: str) -> int:
    """Of the main process: as the keeper has noted it, else as the engine says."""
    record = Path(hostdir) / marks.KEEPER / "nodes" / f"{found['Labels'][names.NODE]}.json"
    noted = label.read(record).get("label", {})
    if noted.get("container") == found["Id"] and processes.alive(int(noted.get("pid", 0)), int(noted.get("start", -1))):
        return int(noted["pid"])
    try:
        return int(engines.Engine(engine).ask("GET", engines.container(found["Id"]))["State"]["Pid"])
    except engines.EngineError:
        return 0


def _address(found: Mapping[str, Any]) -> str:
    """In its private network; empty where it has its host's."""
    networks = found.get("NetworkSettings", {}).get("Networks", {})
    return next((str(one["IPAddress"]) for one in networks.values() if one.get("IPAddress")), "")


def interfaces() -> dict[str, str]:
    """The IPv4 address of each interface that has one; that of the default route comes first."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    first = _default_interface()
    return {name: found[name] for name in sorted(found, key=lambda name: name != first)}


def _default_interface() -> str:
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == "00000000":
            return fields[0]
    return ""
