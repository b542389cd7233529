"""Inventory -> BedSpec: which nodes shall exist, where, and the hash that says when one must be replaced."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal

from ...model import codec
from ...model.bed import BedSpec, ContainerSpec, Host, HostSpec, Inventory, LinkSpec, NodeSpec, PortSpec, Role
from ...model.errors import UsageError
from ...model.requirements import CPU_IMAGE, ENGINE_SOCKET
from ..inventory import ssh_options, variables
from ..spec import values
from . import departed, devices, fabric, gpu_allocation, links

START_TIMEOUT_S = 60.0


def assemble(
    inventory: Inventory,
    *,
    agent: str,
    state: str,
    home: str,
    recorded: Callable[[str], BedSpec | None] = lambda name: None,
) -> BedSpec:
    """``agent``: hash of the agent archive; ``state``: the state directory; ``home`` stands for ``~``.

    ``recorded``: the bed of a name as it was last brought up; its nodes keep their names, its hosts are not forgotten.

    Raises UsageError with every problem of hosts that do not fit together.
    """
    problems = [*_unheard(inventory)] or [*_disagreements(inventory), *_misfits(inventory), *_strangers(inventory)]
    problems += [*_refused(inventory), *_unplugged(inventory)]
    shared = _bed_wide(inventory)
    name, named = _name(inventory, shared)
    problems += named
    if not any(_value(host, "nodes", 1) for host in inventory.hosts):
        place = next((one for host in inventory.hosts if (one := host.places.get("ccbed_nodes"))), inventory.path)
        problems.append(f"{place}: no node; set ccbed_nodes to 1 or more (got {_counts(inventory)})")
    if problems:
        raise UsageError(*problems)
    link = LinkSpec(**shared["link"]) if "link" in shared else None
    isolated = shared.get("isolation") == "namespace"
    before = recorded(name)
    nodes = _nodes(inventory, agent, isolated=isolated, link=link, before=before)
    provider = shared.get("provider", "process")
    workdir, hostdir = _directories(name, inventory, _absolute(shared.get("workdir"), home), state)
    return _hashed(
        BedSpec(
            name=name,
            provider=provider,
            nodes=nodes,
            inventory=inventory.path,
            workdir=workdir,
            shared_dir=_absolute(shared.get("shared_dir"), home) or f"{hostdir}/shared",
            agent=agent,
            data_dir=_absolute(shared.get("data_dir"), home),
            allow_faults=shared.get("allow_faults", "container"),
            start_timeout_s=shared.get("start_timeout", START_TIMEOUT_S),
            hosts=tuple(_host(host, home) for host in inventory.hosts) if provider == "docker" else (),
            hostdir=hostdir,
            network=_network(inventory, shared) if provider == "docker" else "private" if isolated else "",
            link=link,
            departed=departed.hosts([host.name for host in inventory.hosts], before),
        )
    )


def placed(spec: BedSpec, inventory: str) -> BedSpec:
    """The same bed with another path of its inventory: errors show it as it was given, the bed file has it absolute."""
    return replace(spec, inventory=inventory)


def _hashed(spec: BedSpec) -> BedSpec:
    content = {key: value for key, value in codec.plain(spec).items() if key != "inventory"}
    return replace(spec, hash=_digest(content))


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _name(inventory: Inventory, shared: Mapping[str, Any]) -> tuple[str, list[str]]:
    if "bed" in shared:
        return str(shared["bed"]), []
    stem = PurePath(inventory.path).name.partition(".")[0]
    try:
        return variables.bed_name(stem), []
    except ValueError as error:
        return stem, [f"{inventory.path}: the bed's name is the file's, which {error}; or set ccbed_bed"]


def _value(host: Host, name: str, default: Any = None) -> Any:
    return host.variables.get(variables.PREFIX + name, default)


def _bed_wide(inventory: Inventory) -> dict[str, Any]:
    names = [name for name, variable in variables.KNOWN.items() if variable.bed_wide]
    found = {}
    for name in names:
        given = [_value(host, name) for host in inventory.hosts if _value(host, name) is not None]
        if given:
            found[name] = given[0]
    return found


def _disagreements(inventory: Inventory) -> Iterable[str]:
    for name, variable in variables.KNOWN.items():
        key = variables.PREFIX + name
        given = {host.name: host.variables.get(key) for host in inventory.hosts}
        if variable.bed_wide and len({json.dumps(value) for value in given.values()}) > 1:
            place = next(host.places[key] for host in inventory.hosts if key in host.places)
            listed = ", ".join(f"{host}: {_shown(name, value)}" for host, value in given.items())
            yield f"{place}: must be the same for all hosts (got {listed}); set it under all.vars"


def _shown(name: str, value: Any) -> str:
    return links.text(LinkSpec(**value)) if name == "link" and value else values.show(value)


def _misfits(inventory: Inventory) -> Iterable[str]:
    seen: set[str] = set()
    for host in inventory.hosts:
        provider = _value(host, "provider", "process")
        if not _local(host) and provider == "process":
            got = host.variables.get("ansible_connection", "ssh, ansible's default")
            place = host.places.get("ansible_connection", f"{host.place or inventory.path}.ansible_connection")
            yield f"{place}: provider process runs on this machine only: must be local (got {got})"
        for key, place in host.places.items():
            variable = (
                variables.KNOWN.get(key.removeprefix(variables.PREFIX)) if key.startswith(variables.PREFIX) else None
            )
            if variable and provider not in variable.honoured_by and place not in seen:
                seen.add(place)
                yield f"{place}: provider {provider} does not honour it in this version; remove it"


def _strangers(inventory: Inventory) -> Iterable[str]:
    """Hosts of a bed of containers that cannot be in one bed: the same one twice, or this machine beside others."""
    docker = [host for host in inventory.hosts if _value(host, "provider", "process") == "docker"]
    if docker and len({_local(host) for host in docker}) > 1:
        near = next(host for host in docker if _local(host))
        place = near.places.get("ansible_connection", near.place)
        yield f"{place}: this machine's engine and hosts behind SSH are not in one bed; reach it by SSH as well"
    seen: dict[tuple[str, int, str], str] = {}
    for host in docker:
        reached = _host(host, "")
        way = ssh_options.first(reached.ssh, "proxyjump") or ssh_options.first(reached.ssh, "proxycommand")
        key = (reached.address, reached.port, way)
        if key in seen:
            place = host.places.get("ansible_host", host.place)
            yield f"{place}: {host.name} and {seen[key]} are the same host ({reached.address} port {reached.port})"
        seen.setdefault(key, host.name)


def _unheard(inventory: Inventory) -> Iterable[str]:
    """Arguments for ssh that ccbed's own connection cannot keep to: each once, at its place."""
    found: dict[str, str] = {}
    for host in inventory.hosts:
        for name in ssh_options.VARIABLES if not _local(host) else ():
            try:
                ssh_options.read(str(host.variables.get(name, "")))
            except ValueError as error:
                found.setdefault(host.places.get(name, f"{host.place}.{name}"), str(error))
    return [f"{place}: {text}" for place, text in found.items()]


def _refused(inventory: Inventory) -> Iterable[str]:
    """Devices that the host's nodes cannot have, and mounts that no container gets."""
    for host in inventory.hosts:
        place = host.places.get("ccbed_gpus", host.place)
        try:
            shares = [gpu for shares in _shares(host).values() for share in shares for gpu in share]
        except ValueError as error:
            yield f"{place}: {error}"
            continue
        if _value(host, "provider", "process") != "docker" and (cdi := [gpu for gpu in shares if devices.is_cdi(gpu)]):
            yield f"{place}: {cdi[0]} is a CDI name, which only containers understand; name GPUs by index or UUID"
        place = host.places.get("ccbed_mounts", host.place)
        sockets = (_value(host, "engine", ENGINE_SOCKET), ENGINE_SOCKET, "/run/docker.sock")
        sources = [mount.partition(":")[0] for mount in _value(host, "mounts", ())]
        if found := [source for source in sources if any(_holds(source, socket) for socket in sockets)]:
            yield f"{place}: {found[0]} holds the engine's socket, with which a container rules its host; mount less"


def _unplugged(inventory: Inventory) -> Iterable[str]:
    """A link without a fabric, what a fabric itself gives its nodes, and more groups than nodes."""
    for host in inventory.hosts:
        isolated = _value(host, "isolation") == "namespace"
        place = host.places.get("ccbed_link", host.place)
        if "ccbed_link" in host.places and not isolated:
            yield f"{place}: only a node in its own network namespace has one; set ccbed_isolation: namespace"
        for name in ("address", "interface") if isolated else ():
            if f"ccbed_{name}" in host.places:
                yield f"{host.places[f'ccbed_{name}']}: a node in its own network namespace is given one; remove it"
    groups = max((_groups(host) for host in inventory.hosts), default=1)
    members = sum(_value(host, "nodes", 1) for host in inventory.hosts)
    if groups > max(members, 1):
        place = next(host.places["ccbed_link"] for host in inventory.hosts if _groups(host) == groups)
        yield f"{place}: groups: must be <= {members}, the number of nodes (got {groups})"


def _groups(host: Host) -> int:
    return int(_value(host, "link", {}).get("groups", 1))


def _holds(directory: str, path: str) -> bool:
    return posixpath.commonpath([posixpath.normpath(directory), path]) == posixpath.normpath(directory)


def _local(host: Host) -> bool:
    return bool(host.variables.get("ansible_connection") == "local")


def _directories(name: str, inventory: Inventory, workdir: str | None, state: str) -> tuple[str, str]:
    """The bed's directory on this machine, and the one on its hosts: two only where hosts are elsewhere."""
    here = f"{state}/beds/{name}"
    if all(_local(host) for host in inventory.hosts):
        return (workdir or here,) * 2
    return here, workdir or f"/var/lib/ccbed/{name}"


def _network(inventory: Inventory, shared: Mapping[str, Any]) -> Literal["host", "private"]:
    """One engine gives its containers a network of their own; several hosts share theirs with them."""
    chosen = shared.get("network") or ("host" if len(inventory.hosts) > 1 else "private")
    return "private" if chosen == "private" else "host"


def _host(host: Host, home: str) -> HostSpec:
    given = host.variables
    key = given.get("ansible_ssh_private_key_file")
    ssh = ssh_options.absolute(_ssh(host), home)
    return HostSpec(
        name=host.name,
        connection="local" if _local(host) else "ssh",
        address=str(given.get("ansible_host", host.name)),
        port=int(given.get("ansible_port", 0) or ssh_options.first(ssh, "port") or 22),
        user=str(given.get("ansible_user", "") or ssh_options.first(ssh, "user")),
        key=_absolute(key, home) or ssh_options.first(ssh, "identityfile") or None,
        python=str(given.get("ansible_python_interpreter", "python3")),
        engine=_value(host, "engine", ENGINE_SOCKET),
        known_hosts=_absolute(_value(host, "known_hosts") or ssh_options.known_hosts(ssh), home),
        first_contact=_value(host, "ssh_first_contact", ssh_options.first_contact(ssh)),
        ssh=ssh,
        power=_value(host, "power", {}),
        switch_port=_value(host, "switch_port", {}),
        engine_control=_value(host, "engine_control", {}),
        ssh_control=_value(host, "ssh_control", {}),
    )


def _ssh(host: Host) -> ssh_options.Options:
    """Raises ValueError."""
    return ssh_options.read(*(str(host.variables.get(name, "")) for name in ssh_options.VARIABLES))


def _nodes(
    inventory: Inventory, agent: str, *, isolated: bool, link: LinkSpec | None, before: BedSpec | None
) -> tuple[NodeSpec, ...]:
    wanted = [(host, "node") for host in inventory.hosts for _ in range(_value(host, "nodes", 1))]
    for kind in ("standby", "spares"):
        wanted += [(host, kind) for host in inventory.hosts for _ in range(_value(host, kind, 0))]
    shares = {host.name: _shares(host) for host in inventory.hosts}
    ports = fabric.ports([kind for _, kind in wanted], link) if isolated else (None,) * len(wanted)
    names = departed.names([(host.name, _role(kind)) for host, kind in wanted], before)
    specs = (
        _plugged(_node(name, host, kind, shares[host.name][kind].pop(0)), int(name[1:]), port)
        for name, (host, kind), port in zip(names, wanted, ports, strict=True)
    )
    return tuple(replace(spec, hash=_digest([codec.plain(spec), agent])) for spec in specs)


def _role(kind: str) -> Role:
    return "node" if kind == "node" else "spare"


def _plugged(node: NodeSpec, number: int, port: PortSpec | None) -> NodeSpec:
    """On a fabric it is the place on the switch that gives a node its address."""
    if port is None:
        return node
    return replace(node, address=fabric.address(number), interface=fabric.INTERFACE, port=port)


def _shares(host: Host) -> dict[str, list[tuple[str, ...]]]:
    """The GPUs of each node, spare and standby of a host, in their order. Raises ValueError; see allot."""
    nodes, spares = _value(host, "nodes", 1), _value(host, "spares", 0)
    members, standby = gpu_allocation.allot(_value(host, "gpus", 0), nodes + spares, _value(host, "standby", 0))
    return {"node": members[:nodes], "spares": members[nodes:], "standby": standby}


def _node(name: str, host: Host, kind: str, gpus: tuple[str, ...]) -> NodeSpec:
    """All of it but its hash."""
    env = dict(_value(host, "env", {}))
    docker = _value(host, "provider", "process") == "docker"
    if gpus and not docker and gpus != devices.ALL:  # as they are numbered in what the driver's tools show
        env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus), **env}
    return NodeSpec(
        name=name,
        host=host.name,
        role=_role(kind),
        address=_address(host, docker),
        hash="",
        interface=_value(host, "interface", "" if docker else "lo"),
        gpus=-1 if gpus == devices.ALL else len(gpus),
        env=env,
        container=_container(host, gpus) if docker else None,
    )


def _address(host: Host, docker: bool) -> str:
    """What the inventory says; for containers, where it says nothing, the address by which the host is reached."""
    given = _value(host, "address")
    if given or not docker:
        return str(given or "127.0.0.1")
    try:
        return "" if _local(host) else str(ipaddress.ip_address(str(host.variables.get("ansible_host", host.name))))
    except ValueError:
        return ""


def _container(host: Host, gpus: tuple[str, ...]) -> ContainerSpec:
    return ContainerSpec(
        image=_value(host, "image", CPU_IMAGE),
        cpus=_value(host, "cpus"),
        memory=_value(host, "memory"),
        shm_size=_value(host, "shm_size"),
        mounts=tuple(_value(host, "mounts", ())),
        user=_value(host, "user"),
        rdma=_value(host, "rdma", False),
        gpu_devices=gpus,
    )


def _counts(inventory: Inventory) -> str:
    return ", ".join(f"{host.name}: {_value(host, 'nodes', 1)}" for host in inventory.hosts)


def _absolute(path: Any, home: str) -> str | None:
    if path is None:
        return None
    text = str(path)
    return home + text[1:] if text.startswith("~/") else text
