"""What a host has -> what it lacks for a bed, each with the fix. Pure: the facts come from prepare/facts.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...model import requirements
from ...model.bed import BedSpec, HostSpec, NodeSpec
from ...model.requirements import Requirement, size_text, version_text

#: More makes the times of two hosts hard to compare; ccbed measures the rest and corrects for it.
CLOCK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A host as it was found. ``clock_s``: how far its clock is ahead of this machine's, ``within_s`` either way."""

    host: HostSpec
    facts: Mapping[str, Any]
    clock_s: float = 0.0
    within_s: float = 0.0


def findings(bed: BedSpec, looked: Looked, image_here: str | None) -> tuple[Requirement, ...]:
    """Everything about one host. ``image_here``: id of its image on this machine, empty if not there, None if unknown."""
    nodes = [node for node in bed.nodes if node.host == looked.host.name]
    found = looked.facts
    return (
        *((_ssh(looked),) if looked.host.connection == "ssh" else ()),
        _python(looked),
        *(_containers(bed, looked, nodes, image_here) if bed.provider == "docker" else ()),
        _workdir(found, looked.host),
        _shm(found),
        *_clock(looked),
    )


def same_machine(looked: Sequence[Looked]) -> dict[str, Requirement]:
    """Hosts that turn out to be one machine, by name: started at the same time, and found in the same place or with the
    same directory. A machine may have several addresses, and hosts that are namespaces of one machine start with it."""
    seen: dict[tuple[Any, ...], str] = {}
    wrong = {}
    for one in looked:
        name = one.host.name
        for key, how in _marks(one):
            if key in seen and name not in wrong:
                text = f"is the same machine as {seen[key]} ({how})"
                fix = f"set ansible_host of {name} to its own address"
                wrong[name] = Requirement(name="host", outcome="fail", text=text, fix=fix)
            seen.setdefault(key, name)
    return wrong


def _marks(one: Looked) -> Iterator[tuple[tuple[Any, ...], str]]:
    """What no other machine has, and how it is told."""
    boot, reached, found = one.facts.get("boot"), one.facts.get("reached", ()), one.facts["workdir"]
    if reached:
        yield (boot, *reached), " port ".join(map(str, reached))
    if found.get("id"):
        yield (boot, "directory", *found["id"]), f"{found.get('above', found['path'])} is the same directory on both"


def _ssh(looked: Looked) -> Requirement:
    return Requirement(name="ssh", outcome="ok", text=f"as {looked.facts['user']}")


def _python(looked: Looked) -> Requirement:
    known = {path: tuple(version) for path, version in looked.facts["pythons"].items()}
    newest = max(known.values())
    text = f"{newest[0]}.{newest[1]}"
    if newest >= requirements.HOST_PYTHON:
        return Requirement(name="python", outcome="ok", text=text)
    fix = "install python3.11 there (`ccbed up` does on RHEL), or set ansible_python_interpreter"
    return Requirement(
        name="python",
        outcome="fail",
        text=f"{text} is too old, {version_text(requirements.HOST_PYTHON)} is needed",
        fix=fix,
    )


def _containers(
    bed: BedSpec, looked: Looked, nodes: Sequence[NodeSpec], image_here: str | None
) -> Iterator[Requirement]:
    engine = looked.facts["engine"]
    yield _engine(looked.facts, looked.host, engine)
    if any(node.gpus for node in nodes):
        yield _gpus(looked.facts["gpus"], nodes)
    if any(node.container and node.container.rdma for node in nodes):
        yield _infiniband(looked.facts)
    if engine["version"]:
        yield from _images(looked.facts, image_here)


def _engine(facts: Mapping[str, Any], host: HostSpec, engine: Mapping[str, Any]) -> Requirement:
    name, version = "engine", engine["version"]
    if engine.get("denied"):
        text = f"user {facts['user']} may not use {engine['socket']}"
        fix = f"sudo usermod -aG docker {facts['user']}, and log in again"
        return Requirement(name=name, outcome="fail", text=text, fix=fix)
    if not version:
        text = f"none answers at {engine['socket']} ({engine['error']})"
        return Requirement(name=name, outcome="fail", text=text, fix=_start(facts, host, engine))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < requirements.ENGINE:
        fix = f"upgrade Docker to {version_text(requirements.ENGINE)} or newer"
        return Requirement(name=name, outcome="fail", text=f"{version} is too old", fix=fix)
    return Requirement(name=name, outcome="ok", text=version)


def _start(facts: Mapping[str, Any], host: HostSpec, engine: Mapping[str, Any]) -> str:
    if "docker" in facts["programs"]:
        start = "sudo systemctl start docker" if facts["systemd"] else "start dockerd"
        return f"{start}, or set ccbed_engine to its socket"
    if host.connection == "ssh" and facts["system"]["family"]:
        return "`ccbed up` installs Docker there; or set ccbed_engine to the socket of what is there"
    return "install Docker there, or set ccbed_engine to the socket of what is there"


def _gpus(found: Mapping[str, Any], nodes: Sequence[NodeSpec]) -> Requirement:
    devices = found.get("devices", ())
    wanted = sum(max(node.gpus, 1 if node.gpus else 0) for node in nodes)
    if not devices:
        text = "nvidia-smi shows none" if found.get("smi") else "none: there is no nvidia-smi"
        fix = "install the NVIDIA driver, or set ccbed_gpus: 0"
        return Requirement(name="gpus", outcome="fail", text=text, fix=fix)
    if wanted > len(devices):
        text = f"{len(devices)} there, {wanted} asked for"
        return Requirement(name="gpus", outcome="fail", text=text, fix="lower ccbed_gpus, ccbed_nodes or ccbed_spares")
    if not (found.get("toolkit") or found.get("hook")):
        text = f"{len(devices)}, but no NVIDIA container toolkit"
        fix = "install nvidia-container-toolkit (`ccbed up` does)"
        return Requirement(name="gpus", outcome="fail", text=text, fix=fix)
    text = f"{len(devices)} x {devices[0]['name']}, driver {devices[0]['driver_version']}"
    return Requirement(name="gpus", outcome="ok", text=text)


def _infiniband(facts: Mapping[str, Any]) -> Requirement:
    if facts["infiniband"]:
        return Requirement(name="rdma", outcome="ok", text="ok")
    fix = "load the RDMA driver, or remove ccbed_rdma"
    return Requirement(name="rdma", outcome="fail", text="no /dev/infiniband", fix=fix)


def _images(facts: Mapping[str, Any], here: str | None) -> Iterator[Requirement]:
    for name, there in facts["images"].items():
        if there and here in (None, "", there):
            yield Requirement(name="image", outcome="ok", text=f"{name} there")
            continue
        room = facts["engine"].get("free", 0)
        if room < requirements.IMAGE_BYTES:
            text = f"{name} is to be brought, and {size_text(room)} are free in {facts['engine'].get('root')}"
            yield Requirement(name="image", outcome="fail", text=text, fix="docker system prune there, or another disk")
        elif here:
            text = f"{name} there is another one" if there else f"{name} is not there"
            yield Requirement(name="image", outcome="warn", text=text, fix="`ccbed up` brings the one of this machine")
        elif name.startswith("ccbed/"):
            text = f"{name} is neither there nor here"
            yield Requirement(name="image", outcome="fail", text=text, fix="ccbed image build, or docker load it here")
        else:
            text = f"{name} is not there"
            yield Requirement(
                name="image", outcome="warn", text=text, fix="`ccbed up` pulls it, where a registry has it"
            )


def _workdir(facts: Mapping[str, Any], host: HostSpec) -> Requirement:
    found = facts["workdir"]
    path = found["path"]
    if found["there"] and found["owner"] != facts["uid"]:
        fix = f"sudo chown -R {facts['user']} {path}"
        return Requirement(name="directory", outcome="fail", text=f"{path} is not {facts['user']}'s", fix=fix)
    if not found["writable"]:
        made = "`ccbed up` makes it, if the user may sudo" if host.connection == "ssh" else f"sudo mkdir -p {path}"
        fix = f"{made}; or set ccbed_workdir to a directory of {facts['user']}'s"
        outcome: Literal["fail", "warn"] = "fail" if found["there"] else "warn"
        return Requirement(name="directory", outcome=outcome, text=f"{facts['user']} cannot write {path}", fix=fix)
    if found["free"] < requirements.DISK_BYTES:
        text = f"{size_text(found['free'])} free for {path}, {size_text(requirements.DISK_BYTES)} needed"
        return Requirement(
            name="disk", outcome="fail", text=text, fix="free space, or set ccbed_workdir to another disk"
        )
    return Requirement(name="disk", outcome="ok", text=f"{size_text(found['free'])} for {path}")


def _shm(facts: Mapping[str, Any]) -> Requirement:
    free = facts["shm"]["free"]
    if free >= requirements.SHM_BYTES:
        return Requirement(name="shm", outcome="ok", text=size_text(free))
    text = f"{size_text(free)} free in /dev/shm, {size_text(requirements.SHM_BYTES)} needed"
    return Requirement(name="shm", outcome="fail", text=text, fix="free space in /dev/shm, or mount it larger")


def _clock(looked: Looked) -> Iterator[Requirement]:
    if looked.host.connection == "ssh":
        off, within = looked.clock_s, looked.within_s
        text = f"{off * 1000:+.0f} ms (± {within * 1000:.0f})"
        if abs(off) - within > CLOCK_S:
            text = f"{off:+.1f} s from this machine's"
            yield Requirement(name="clock", outcome="warn", text=text, fix="synchronise both with chrony or timesyncd")
        else:
            yield Requirement(name="clock", outcome="ok", text=text)
    if looked.facts["synchronised"] is False and looked.host.connection == "ssh":
        fix = "start chrony or systemd-timesyncd there"
        yield Requirement(name="time", outcome="warn", text="the clock is not synchronised", fix=fix)
