"""Make a bed's nodes from the hosts of an inventory: their names, devices, containers, and the hash of their spec."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal

from ... import products
from ...model import codec
from ...model.bed import BedSpec, ContainerSpec, Host, HostSpec, Inventory, LinkSpec, NodeSpec, PortSpec, Role
from ...model.errors import UsageError
from ...model.requirements import CPU_IMAGE, ENGINE_SOCKET
from ..inventory import causes, ssh_options, variables
from ..inventory.ansible_defaults import is_local, with_provider
from ..spec import written_values
from . import departed, gpu_devices, links

START_TIMEOUT_S = 60.0
#: Up to so many nodes of a host all have reserve ranks, of 40 MiB each.
RESERVED_NODES = 80
#: Of more nodes so many have them: a gang on all nodes waits for the cores, and a small one is on these.
FEW_RESERVED_NODES = 4
_OWNER_DIGITS = 8
_NO_PROXY = ("no_proxy", "NO_PROXY")
#: A host's spares have reserve ranks first, then its nodes.
_START_ORDER: Mapping[Role, int] = {"spare": 0, "node": 1, "replacement": 2}
#: The variables that say how many nodes a host holds, and their defaults.
_COUNTS: tuple[tuple[str, int], ...] = (("nodes", 1), ("spares", 0), ("standby", 0))
#: Providers whose hosts are other machines, so the address of a node is not known here.
_REMOTE = ("docker", "slurm")


def assemble_bed(
    inventory: Inventory,
    *,
    agent: str,
    state: str,
    home: str,
    recorded: Callable[[str], BedSpec | None] = lambda name: None,
    owner: Callable[[], str] = lambda: "",
    engine: str = "",
) -> BedSpec:
    """``agent``: hash of the agent archive; ``state``: the state directory; ``home`` replaces ``~``.
    ``engine``: the socket of this machine's engine, where the inventory names none; empty: the usual one.

    ``owner``: the id of all beds of the state directory, read where beds of several owners may share a directory.
    ``recorded``: bed name -> the bed as it was last brought up; its nodes keep their names, its hosts are remembered.

    Raises UsageError with every problem of hosts that do not fit together.
    """
    inventory = with_provider(inventory)
    problems = [*_unsupported_ssh_options(inventory)] or [
        *_disagreements(inventory),
        *_provider_problems(inventory),
        *_duplicate_hosts(inventory),
        *_room_problems(inventory),
    ]
    problems += [
        *_container_problems(inventory, engine),
        *_fabric_problems(inventory),
        *_interpreter_problems(inventory),
    ]
    cluster = products.part("slurm", "cluster") if _value(inventory.hosts[0], "provider") == "slurm" else None
    problems += cluster.problems(inventory) if cluster else ()
    shared = _bed_wide(inventory)
    name, name_problems = _name(inventory, shared)
    problems += name_problems
    if not any(_value(host, "nodes", 1) for host in inventory.hosts):
        positions = (host.positions.get("ccbed_nodes") for host in inventory.hosts)
        position = next((position for position in positions if position), inventory.path)
        problems.append(f"{position}: no node; set ccbed_nodes to 1 or more (got {_counts(inventory)})")
    if problems:
        raise UsageError(*causes.fold(problems, [host.name for host in inventory.hosts]))
    provider = shared.get("provider", "process")
    slurm = cluster.read(inventory.hosts[0], home) if cluster else None
    if cluster:
        inventory = replace(inventory, hosts=cluster.expand(inventory.hosts[0]))
    link = links.widest([_link(host) for host in inventory.hosts])
    isolated = shared.get("isolation") == "namespace"
    earlier = recorded(name)
    made = _nodes(inventory, agent, home, isolated=isolated, earlier=earlier)
    nodes = tuple(node for node in made if node.role != "replacement")
    hosts = tuple(_with_engine(_host(host, home), host, engine, earlier) for host in inventory.hosts)
    workdir, hostdir = _directories(name, inventory, _absolute(shared.get("workdir"), home), state, owner)
    return _with_hash(
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
            hosts=hosts if provider in _REMOTE else (),
            hostdir=hostdir,
            network=_network(inventory, shared) if provider == "docker" else "private" if isolated else "",
            slurm=slurm,
            link=link,
            departed=departed.departed_hosts([host.name for host in inventory.hosts], earlier),
            replacements=made[len(nodes) :],
        )
    )


def with_inventory_path(spec: BedSpec, inventory: str) -> BedSpec:
    """The bed with another path of its inventory: errors show the user's path, the bed file has the absolute path."""
    return replace(spec, inventory=inventory)


def _with_hash(spec: BedSpec) -> BedSpec:
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
        return stem, [f"{inventory.path}: the file's name is the bed's name and {error}; or set ccbed_bed"]


def _value(host: Host, name: str, default: Any = None) -> Any:
    return host.variables.get(variables.PREFIX + name, default)


def _bed_wide(inventory: Inventory) -> dict[str, Any]:
    names = [name for name, variable in variables.KNOWN.items() if variable.bed_wide]
    shared = {}
    for name in names:
        settings = [_value(host, name) for host in inventory.hosts if _value(host, name) is not None]
        if settings:
            shared[name] = settings[0]
    return shared


def _disagreements(inventory: Inventory) -> Iterable[str]:
    for name, variable in variables.KNOWN.items():
        key = variables.PREFIX + name
        settings = {host.name: host.variables.get(key) for host in inventory.hosts}
        if variable.bed_wide and len({json.dumps(_common(name, value)) for value in settings.values()}) > 1:
            position = next(host.positions[key] for host in inventory.hosts if key in host.positions)
            listed = ", ".join(f"{host}: {_format(name, value)}" for host, value in settings.items())
            what = "groups, uplink, and whether there is a rate " if name == "link" else ""
            yield f"{position}: {what}must be the same for all hosts (got {listed}); set it under all.vars"


def _common(name: str, value: Any) -> Any:
    """The part of a setting that all hosts share: the switches of a link; its rate, delay and loss are those of each host."""
    if name != "link":
        return value
    link = LinkSpec(**value or {})
    return link.groups, link.uplink, bool(link.rate)


def _link(host: Host) -> LinkSpec | None:
    value = _value(host, "link")
    return LinkSpec(**value) if value is not None else None


def _format(name: str, value: Any) -> str:
    return links.text(LinkSpec(**value)) if name == "link" and value else written_values.show(value)


def _provider_problems(inventory: Inventory) -> Iterable[str]:
    reported: set[str] = set()
    for host in inventory.hosts:
        provider = _value(host, "provider", "process")
        if not is_local(host) and provider == "process":
            connection = host.variables.get("ansible_connection", "ssh, ansible's default")
            default = f"{host.position or inventory.path}.ansible_connection"
            position = host.positions.get("ansible_connection", default)
            yield f"{position}: provider process runs on the controller only: must be local (got {connection})"
        for key, position in host.positions.items():
            variable = (
                variables.KNOWN.get(key.removeprefix(variables.PREFIX)) if key.startswith(variables.PREFIX) else None
            )
            if variable and provider not in variable.honoured_by and position not in reported:
                reported.add(position)
                yield f"{position}: unsupported by provider {provider} in this version; remove it"


def _duplicate_hosts(inventory: Inventory) -> Iterable[str]:
    """Hosts that cannot be in the same bed of containers: a host that appears twice, or the controller with others."""
    docker = [host for host in inventory.hosts if _value(host, "provider", "process") == "docker"]
    if docker and len({is_local(host) for host in docker}) > 1:
        local = next(host for host in docker if is_local(host))
        position = local.positions.get("ansible_connection", local.position)
        yield f"{position}: the controller's engine cannot be in a bed with hosts behind SSH; connect to it by SSH too"
    names: dict[tuple[str, int, str], str] = {}
    for host in docker:
        spec = _host(host, "")
        proxy = ssh_options.first(spec.ssh, "proxyjump") or ssh_options.first(spec.ssh, "proxycommand")
        key = (spec.address, spec.port, proxy)
        if key in names:
            position = host.positions.get("ansible_host", host.position)
            yield f"{position}: {host.name} and {names[key]} are the same host ({spec.address} port {spec.port})"
        names.setdefault(key, host.name)


def _unsupported_ssh_options(inventory: Inventory) -> Iterable[str]:
    """Arguments of ssh that ccbed's own connection does not support, with their positions, without repetition."""
    problems: dict[str, str] = {}
    for host in inventory.hosts:
        for name in ssh_options.VARIABLES if not is_local(host) else ():
            try:
                ssh_options.read(str(host.variables.get(name, "")))
            except ValueError as error:
                problems.setdefault(host.positions.get(name, f"{host.position}.{name}"), str(error))
    return [f"{position}: {text}" for position, text in problems.items()]


def _container_problems(inventory: Inventory, engine: str) -> Iterable[str]:
    """Devices that the host's nodes cannot have, and mounts that are forbidden in containers."""
    for host in inventory.hosts:
        position = host.positions.get("ccbed_gpus", host.position)
        try:
            shares = [gpu for shares in _shares(host).values() for share in shares for gpu in share]
        except ValueError as error:
            yield f"{position}: {error}"
            continue
        cdi = [gpu for gpu in shares if gpu_devices.is_cdi(gpu)]
        if cdi and _value(host, "provider", "process") != "docker":
            yield f"{position}: {cdi[0]} is a CDI name, which only containers support; name GPUs by index or UUID"
        image, provider = _value(host, "image", ""), _value(host, "provider", "process")
        if provider == "docker" and image.startswith(("/", "~/")):
            position = host.positions.get("ccbed_image", host.position)
            yield f"{position}: must be the name of an image such as {CPU_IMAGE} (got {image})"
        position = host.positions.get("ccbed_mounts", host.position)
        sockets = (_value(host, "engine") or engine or ENGINE_SOCKET, ENGINE_SOCKET, "/run/docker.sock")
        sources = [mount.partition(":")[0] for mount in _value(host, "mounts", ())]
        if unsafe := [source for source in sources if any(_contains(source, socket) for socket in sockets)]:
            yield f"{position}: {unsafe[0]} contains the engine's socket, which gives root on the host; mount less"


def _fabric_problems(inventory: Inventory) -> Iterable[str]:
    """A link without a fabric, variables that a fabric itself sets, and more groups than nodes."""
    for host in inventory.hosts:
        isolated = _value(host, "isolation") == "namespace"
        position = host.positions.get("ccbed_link", host.position)
        if "ccbed_link" in host.positions and not isolated:
            yield f"{position}: only a node in its own network namespace has a link; set ccbed_isolation: namespace"
        for name in ("address", "interface") if isolated else ():
            if f"ccbed_{name}" in host.positions:
                yield f"{host.positions[f'ccbed_{name}']}: the fabric sets it for nodes in network namespaces; remove it"
    groups = max((_groups(host) for host in inventory.hosts), default=1)
    members = sum(_value(host, "nodes", 1) for host in inventory.hosts)
    if groups > max(members, 1):
        position = next(host.positions["ccbed_link"] for host in inventory.hosts if _groups(host) == groups)
        yield f"{position}: groups: must be <= {members}, the number of nodes (got {groups})"


def _interpreter_problems(inventory: Inventory) -> Iterable[str]:
    """Process nodes are forked by one keeper, so they share its interpreter; that of a container is a path in its image."""
    chosen = {_value(host, "python") for host in inventory.hosts if _value(host, "provider", "process") == "process"}
    for host in inventory.hosts:
        python, position = _value(host, "python"), host.positions.get("ccbed_python", host.position)
        if _value(host, "provider", "process") == "docker":
            if python and python.startswith("~"):
                yield f"{position}: must be an absolute path in the image (got {python})"
        elif python and len(chosen) > 1:
            yield f"{position}: must be the same for all process nodes of this machine; set it under all.vars"
            return


def _room_problems(inventory: Inventory) -> Iterable[str]:
    """Hosts that are to hold more nodes than they may."""
    for host in inventory.hosts:
        most, count = _value(host, "max_nodes"), sum(_value(host, *key) for key in _COUNTS)
        if most is not None and most < count:
            position = host.positions.get("ccbed_max_nodes", host.position)
            yield f"{position}: must be at least {count}, the nodes, spares and standbys of {host.name} (got {most})"


def _room(host: Host) -> int:
    """Return how many more nodes the host may hold."""
    count: int = sum(_value(host, *key) for key in _COUNTS)
    most: int = _value(host, "max_nodes", count)
    return max(0, most - count)


def _groups(host: Host) -> int:
    return int(_value(host, "link", {}).get("groups", 1))


def _contains(directory: str, path: str) -> bool:
    return posixpath.commonpath([posixpath.normpath(directory), path]) == posixpath.normpath(directory)


def _directories(
    name: str, inventory: Inventory, workdir: str | None, state: str, owner: Callable[[], str]
) -> tuple[str, str]:
    """The bed's directories on the controller and on its hosts: they are the same if all hosts are local.

    The nodes of a Slurm job share a file system, also with other users, machines and beds: there the bed has a directory of
    its own below that of the inventory.
    """
    local = f"{state}/beds/{name}"
    if all(is_local(host) for host in inventory.hosts):
        return (workdir or local,) * 2
    if inventory.hosts[0].variables.get("ccbed_provider") == "slurm":
        return local, f"{workdir}/{name}-{owner()[:_OWNER_DIGITS]}" if workdir else local
    return local, workdir or f"/var/lib/ccbed/{name}"


def _network(inventory: Inventory, shared: Mapping[str, Any]) -> Literal["host", "private"]:
    """The containers of this machine have a private network. Those of hosts behind SSH use the network of their host, as training
    over several hosts does: their engine may have no bridge, and the bed may get more hosts."""
    chosen = shared.get("network") or ("private" if all(map(is_local, inventory.hosts)) else "host")
    return "private" if chosen == "private" else "host"


def _host(host: Host, home: str) -> HostSpec:
    settings = host.variables
    key = settings.get("ansible_ssh_private_key_file")
    ssh = ssh_options.absolute(_ssh(host), home)
    return HostSpec(
        name=host.name,
        connection="slurm" if _value(host, "provider") == "slurm" else "local" if is_local(host) else "ssh",
        address=str(settings.get("ansible_host", host.name)),
        port=int(settings.get("ansible_port", 0) or ssh_options.first(ssh, "port") or 22),
        user=str(settings.get("ansible_user", "") or ssh_options.first(ssh, "user")),
        key=_absolute(key, home) or ssh_options.first(ssh, "identityfile") or None,
        python=str(settings.get("ansible_python_interpreter", "python3")),
        engine=_value(host, "engine", ENGINE_SOCKET),
        known_hosts=_absolute(_value(host, "known_hosts") or ssh_options.known_hosts(ssh), home),
        first_contact=_value(host, "ssh_first_contact", ssh_options.first_contact(ssh)),
        ssh=ssh,
        power=_value(host, "power", {}),
        switch_port=_value(host, "switch_port", {}),
        engine_control=_value(host, "engine_control", {}),
        ssh_control=_value(host, "ssh_control", {}),
        has_become_password=host.has_become_password,
    )


def _with_engine(spec: HostSpec, host: Host, engine: str, earlier: BedSpec | None) -> HostSpec:
    """This machine with its engine, where the inventory names none: that of the bed while it is up, else ``engine``."""
    if spec.connection != "local" or _value(host, "engine"):
        return spec
    known = next((known.engine for known in earlier.hosts if known.name == spec.name), "") if earlier else ""
    return replace(spec, engine=known or engine or spec.engine)


def _ssh(host: Host) -> ssh_options.Options:
    """Read the options in Ansible's order: its own check of host keys comes after ssh_args. Raises ValueError."""
    checks = host.variables.get("ansible_host_key_checking", True)
    first, *others = (str(host.variables.get(name, "")) for name in ssh_options.VARIABLES)
    return ssh_options.read(first, "-o StrictHostKeyChecking=no" if not checks else "", *others)


def _nodes(
    inventory: Inventory, agent: str, home: str, *, isolated: bool, earlier: BedSpec | None
) -> tuple[NodeSpec, ...]:
    wanted = [(host, "node") for host in inventory.hosts for _ in range(_value(host, "nodes", 1))]
    for kind in ("standby", "spares"):
        wanted += [(host, kind) for host in inventory.hosts for _ in range(_value(host, kind, 0))]
    wanted += [(host, "replacement") for host in inventory.hosts for _ in range(_room(host))]
    shares = {host.name: _shares(host) for host in inventory.hosts}
    ports = (
        links.ports([kind for _, kind in wanted], [_link(host) for host, _ in wanted])
        if isolated
        else (None,) * len(wanted)
    )
    names = departed.node_names([(host.name, _role(kind)) for host, kind in wanted], earlier)
    specs = (
        _with_port(_node(name, host, kind, home, shares[host.name][kind].pop(0)), int(name[1:]), port)
        for name, (host, kind), port in zip(names, wanted, ports, strict=True)
    )
    return _with_reserves([replace(spec, hash=_hash(spec, agent)) for spec in specs])


def _hash(spec: NodeSpec, agent: str) -> str:
    return _digest([{key: value for key, value in codec.plain(spec).items() if key != "has_reserves"}, agent])


def _with_reserves(nodes: Sequence[NodeSpec]) -> tuple[NodeSpec, ...]:
    """The nodes, of which some have reserve ranks: a host's spares first, then its nodes in the order in which gangs use them."""
    by_host: dict[str, list[NodeSpec]] = {}
    for node in sorted(nodes, key=lambda node: _START_ORDER[node.role]):
        by_host.setdefault(node.host, []).append(node)
    few = {
        node.name for members in by_host.values()
        for node in members[: None if len(members) <= RESERVED_NODES else FEW_RESERVED_NODES]
    }  # fmt: skip
    return tuple(replace(node, has_reserves=node.name in few) for node in nodes)


def _role(kind: str) -> Role:
    return kind if kind in ("node", "replacement") else "spare"  # type: ignore[return-value]


def _with_port(node: NodeSpec, number: int, port: PortSpec | None) -> NodeSpec:
    """The node with its switch port; on a fabric the number of the port determines the address."""
    if port is None:
        return node
    return replace(node, address=links.address(number), interface=links.INTERFACE, port=port)


def _shares(host: Host) -> dict[str, list[tuple[str, ...]]]:
    """The GPUs of the nodes, spares, replacements and standbys of a host, in order. Raises ValueError; see ``gpu_devices.allocate``."""
    nodes, spares, room = _value(host, "nodes", 1), _value(host, "spares", 0), _room(host)
    members, standby = gpu_devices.allocate(_value(host, "gpus", 0), nodes + spares + room, _value(host, "standby", 0))
    first = nodes + spares
    return {"node": members[:nodes], "spares": members[nodes:first], "replacement": members[first:], "standby": standby}


def _node(name: str, host: Host, kind: str, home: str, gpus: tuple[str, ...]) -> NodeSpec:
    """The node without its hash."""
    env = dict(_value(host, "env", {}))
    docker = _value(host, "provider", "process") == "docker"
    if gpus and not docker and gpus != gpu_devices.ALL:  # the numbering of nvidia-smi
        env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus), **env}
    if docker:
        env = {name: value for name, value in {**_proxies(host), **env}.items() if name not in _NO_PROXY}
    return NodeSpec(
        name=name,
        host=host.name,
        role=_role(kind),
        address=_address(host, docker),
        hash="",
        interface=_value(host, "interface", "" if _value(host, "provider") in _REMOTE else "lo"),
        gpus=-1 if gpus == gpu_devices.ALL else len(gpus),
        env=env,
        container=_container(host, gpus) if docker else None,
        python=_absolute(_value(host, "python"), home) or "",
    )


def _proxies(host: Host) -> dict[str, str]:
    """The proxies of programs in a node; some programs read lower case, some upper case."""
    given = {name: _value(host, name) for name in ("http_proxy", "https_proxy")}
    return {form: str(value) for name, value in given.items() if value for form in (name, name.upper())}


def _no_proxy(host: Host) -> tuple[str, ...]:
    """Return what the inventory excepts from proxies, by its own variable and by variables of the environment."""
    env = _value(host, "env", {})
    given = (_value(host, "no_proxy", ""), *(env.get(name, "") for name in _NO_PROXY))
    return tuple(dict.fromkeys(item for value in given for item in value.split(",") if item))


def _address(host: Host, docker: bool) -> str:
    """The inventory's address; for containers without one, that by which their host is reached, or that of their private network."""
    address = _value(host, "address")
    if _value(host, "provider") == "slurm":
        return ""
    if address or not docker:
        return str(address or "127.0.0.1")
    if _value(host, "network") == "private":
        return ""
    try:
        return "" if is_local(host) else str(ipaddress.ip_address(str(host.variables.get("ansible_host", host.name))))
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
        no_proxy=_no_proxy(host),
    )


def _counts(inventory: Inventory) -> str:
    return ", ".join(f"{host.name}: {_value(host, 'nodes', 1)}" for host in inventory.hosts)


def _absolute(path: Any, home: str) -> str | None:
    if path is None:
        return None
    text = str(path)
    return home + text[1:] if text.startswith("~/") else text
