"""Requests that create the containers of nodes (Engine API v1.41, ``POST /containers/create``), and how two of them differ.

In every container the agent is the main process, behind an init. It runs as an ordinary user without capabilities and
cannot gain any; its root file system is read-only. Of its host it sees only its node directory, the bed's shared directory,
code and data. It is never privileged and has no engine socket.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from ...model import container
from ...model.bed import BedSpec, ContainerSpec, NodeSpec, mac_address
from ..spec import written_values
from . import gpu_devices
from .engine_kind import Engine

Body = Mapping[str, Any]

MIB = 1024 * 1024
#: /dev/shm in bytes, for DataLoader workers and NCCL. Only used bytes take memory.
SHM, SHM_WITH_GPUS = 1024 * MIB, 8192 * MIB
TMP = 2048 * MIB
RUN = 16 * MIB
#: Threads count as well: 8 ranks with loaders and NCCL have some thousands.
PIDS = 16384
STOP_S = 2
#: Under memory pressure the kernel kills the bed's processes before the host's own (-1000 to 1000).
OOM_FIRST = 500
#: The stack size for CUDA libraries (bytes).
STACK = 64 * MIB
#: Path in the request -> the variable that decides it. Another path is named as it is.
_VARIABLES = {
    "Image": "ccbed_image", "User": "ccbed_user", "Entrypoint": "ccbed_python", "HostConfig.NanoCpus": "ccbed_cpus",
    "HostConfig.Memory": "ccbed_memory", "HostConfig.MemorySwap": "ccbed_memory", "HostConfig.Tmpfs": "ccbed_memory",
    "HostConfig.ShmSize": "ccbed_shm_size", "HostConfig.DeviceRequests": "ccbed_gpus", "HostConfig.Devices": "ccbed_rdma",
    "HostConfig.CapAdd": "ccbed_rdma", "HostConfig.Ulimits": "ulimits", "mount 1": "ccbed_shared_dir", "no_proxy": "ccbed_no_proxy",
}  # fmt: skip


def request(
    bed: BedSpec,
    node: NodeSpec,
    *,
    archive: str,
    owner: tuple[int, int],
    addresses: Mapping[str, str],
    tag: str,
    env: Mapping[str, str] | None = None,
    owner_label: str = "",
    engine: Engine | None = None,
) -> dict[str, Any]:
    """The body of the request. ``model.container.fill_incarnation`` fills in the incarnation.

    ``archive``: path of agent.pyz on the host. ``owner``: numeric uid and gid of the bed's directory there (a share with
    squashed root has no names). ``addresses``: known addresses of nodes and spares; in a private network the node is
    assigned its own. ``tag``: the bed's part of a process tag. ``env``: variables for the main process, such as the id of
    its image (model/container.py). ``owner_label``: shown if the container's name is in use. ``engine``: by default one
    that lacks nothing.
    The directory HOME is in the node's directory; the agent creates it. Raises ValueError if the container could not read
    the bed's directory.
    """
    spec = node.container
    if spec is None:
        raise ValueError(f"{node.name}: its spec has no container")
    engine = engine or Engine(version="")
    return {
        "Image": spec.image,
        "Hostname": node.name,
        "User": _user(spec, owner, engine),
        "Entrypoint": [node.python or "python3", archive, "node", "--directory", directory(bed, node)],
        "Cmd": [],
        "WorkingDir": directory(bed, node),
        "Env": _environment(bed, node, spec, addresses, {**(env or {}), **_engine_text(engine)}),
        "Labels": _labels(node, tag, owner_label, engine),
        "Healthcheck": {"Test": ["NONE"]},
        "StopTimeout": STOP_S,
        "HostConfig": _host_config(bed, node, spec, addresses),
        **_networking(bed, node, addresses),
    }


def limit_problem(spec: ContainerSpec, engine: Engine) -> str:
    """Return why the engine cannot limit the container as it must; empty if it can. podman leaves such limits out without a word."""
    limits = {"cpu": ("ccbed_cpus", spec.cpus), "memory": ("ccbed_memory", spec.memory)}
    missing = [(name, cgroup) for cgroup, (name, value) in limits.items() if value and cgroup not in engine.controllers]
    for name, cgroup in missing:
        return (
            f"{name}: {engine.text} cannot limit it on this host: it has no cgroup of the controller {cgroup}; remove "
            f"{name}, or use an engine that runs as root, or cgroups of version 2 with {cgroup} delegated to the user"
        )
    return ""


def _user(spec: ContainerSpec, owner: tuple[int, int], engine: Engine) -> str:
    """The owner of the bed's directory: no other user can read it. Raises ValueError.

    In the containers of an engine that runs without root, its user has the number 0, and without capabilities no more rights.
    """
    if engine.is_rootless and spec.user:
        raise ValueError(
            f"ccbed_user {spec.user}: {engine.text} runs its containers as its own user; remove ccbed_user"
        )
    if engine.is_rootless:
        return "0:0"
    if spec.user and spec.user.partition(":")[0] != str(owner[0]):
        raise ValueError(
            f"ccbed_user {spec.user}: the bed's directory belongs to uid {owner[0]}, and no other user can read it; remove "
            f"ccbed_user, set it to {owner[0]}, or run ccbed as that user (on hosts behind SSH: set ansible_user)"
        )
    return spec.user or f"{owner[0]}:{owner[1]}"


def directory(bed: BedSpec, node: NodeSpec) -> str:
    """The node's directory: the same path on its host and in its container."""
    return f"{bed.hostdir}/nodes/{node.name}"


def _without_proxy(bed: BedSpec, spec: ContainerSpec, addresses: Mapping[str, str]) -> dict[str, str]:
    """The bed's own names and addresses are reached directly, whatever proxy the image, the engine or the inventory names."""
    own = (*(member.name for member in bed.all_nodes), *(addresses.get(member.name, "") for member in bed.all_nodes))
    hosts = ",".join(dict.fromkeys(item for item in (*spec.no_proxy, "localhost", "127.0.0.1", "::1", *own) if item))
    return {"no_proxy": hosts, "NO_PROXY": hosts}


def _engine_text(engine: Engine) -> dict[str, str]:
    return {container.ENGINE_VARIABLE: engine.text} if engine.version else {}


def _labels(node: NodeSpec, tag: str, owner_label: str, engine: Engine) -> dict[str, str]:
    return {
        container.BED: tag,
        container.NODE: node.name,
        container.ROLE: node.role,
        container.SPEC: node.hash,
        container.INCARNATION: "",
        container.ORDINAL: "",
        **({container.OWNER: owner_label} if owner_label else {}),
        **({container.LACKS: ",".join(engine.lacks)} if engine.lacks else {}),
    }


def _environment(
    bed: BedSpec, node: NodeSpec, spec: ContainerSpec, addresses: Mapping[str, str], more: Mapping[str, str]
) -> list[str]:
    """A home directory and writable caches; then the inventory's variables; then the variables that ccbed relies on."""
    home = f"{directory(bed, node)}/home"
    variables = {
        "HOME": home,
        "USER": "ccbed",
        "LOGNAME": "ccbed",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "TORCH_HOME": f"{home}/.cache/torch",
        "TRITON_CACHE_DIR": f"{home}/.cache/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/.cache/inductor",
        "PYTHONDONTWRITEBYTECODE": "1",
        **gpu_devices.environment(spec),
        **more,
        **node.env,
        **_without_proxy(bed, spec, addresses),
        container.MARK_VARIABLE: "",
        container.LABEL_VARIABLE: "",
    }
    return [f"{name}={value}" for name, value in variables.items()]


def _host_config(bed: BedSpec, node: NodeSpec, spec: ContainerSpec, addresses: Mapping[str, str]) -> dict[str, Any]:
    return {
        "NetworkMode": container.network_name(bed.name) if bed.network == "private" else "host",
        "ExtraHosts": _hosts(bed, node, addresses),
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "IpcMode": "private",
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": ["IPC_LOCK"] if spec.rdma else [],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "Mounts": _mounts(bed, node, spec),
        "Tmpfs": _tmpfs(spec),
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}},
        "OomScoreAdj": OOM_FIRST,
        "DeviceRequests": gpu_devices.requests(spec),
        "Devices": gpu_devices.rdma(spec),
        **_limits(spec),
    }


def _hosts(bed: BedSpec, node: NodeSpec, addresses: Mapping[str, str]) -> list[str]:
    """The names and addresses of nodes and spares; a private network adds the container's own name itself.

    The mapped form of an address, which torch looks up, has its own name, as in ``fabric.hosts_file``: without it every
    connection asks the name server, and one that does not answer delays each start by 5 s.
    """
    own = node.name if bed.network == "private" else None
    known = [(other.name, addresses[other.name]) for other in bed.all_nodes if addresses.get(other.name)]
    mapped = [f"{name}.bed:::ffff:{address}" for name, address in known if ":" not in address]
    return [f"{name}:{address}" for name, address in known if name != own] + mapped


def _limits(spec: ContainerSpec) -> dict[str, int | list[dict[str, str | int]]]:
    """Limits without swap: a rank that swaps is an unplanned straggler."""
    limits: dict[str, int | list[dict[str, str | int]]] = {
        "ShmSize": shm_bytes(spec),
        "PidsLimit": PIDS,
        "Ulimits": _ulimits(spec),
    }
    if spec.cpus:
        limits["NanoCpus"] = round(float(spec.cpus) * 1_000_000_000)
    if spec.memory:
        limits |= {"Memory": written_values.size(spec.memory), "MemorySwap": written_values.size(spec.memory)}
    return limits


def shm_bytes(spec: ContainerSpec) -> int:
    """The requested size; else the default, but no more than half of the container's memory."""
    if spec.shm_size:
        return written_values.size(spec.shm_size)
    return _half(spec, SHM_WITH_GPUS if spec.gpu_devices else SHM)


def _half(spec: ContainerSpec, usual: int) -> int:
    return min(usual, written_values.size(spec.memory) // 2) if spec.memory else usual


def _ulimits(spec: ContainerSpec) -> list[dict[str, str | int]]:
    """The limit of open files is the engine's; the agent raises its own soft limit."""
    limits = {"core": 0}
    if spec.gpu_devices:
        limits["stack"] = STACK
    if spec.rdma:
        limits["memlock"] = -1
    return [{"Name": name, "Soft": limit, "Hard": limit} for name, limit in limits.items()]


def _tmpfs(spec: ContainerSpec) -> dict[str, str]:
    """Compiled kernels are loaded from /tmp, so it must not be noexec, which is the default."""
    return {
        "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={_half(spec, TMP)}",
        "/run": f"rw,noexec,nosuid,nodev,mode=755,size={RUN}",
    }


def _mounts(bed: BedSpec, node: NodeSpec, spec: ContainerSpec) -> list[dict[str, str | bool | dict[str, str]]]:
    """Mounts instead of Binds: a missing source is an error, not a new empty directory that belongs to root."""
    mounts = [
        _bind(directory(bed, node), directory(bed, node)),
        _bind(bed.shared_dir, bed.shared_dir),
        _bind(f"{bed.hostdir}/payloads", f"{bed.hostdir}/payloads", read_only=True),
        _bind(f"{bed.hostdir}/agent", f"{bed.hostdir}/agent", read_only=True),
    ]
    if bed.data_dir:
        mounts.append(_bind(bed.data_dir, bed.data_dir, read_only=True))
    for mount in spec.mounts:
        source, target, mode = (*mount.split(":"), "")[:3]
        mounts.append(_bind(source, target, read_only=mode == "ro"))
    return list({mount["Target"]: mount for mount in mounts}.values())


def _bind(source: str, target: str, *, read_only: bool = False) -> dict[str, str | bool | dict[str, str]]:
    return {
        "Type": "bind",
        "Source": posixpath.normpath(source),
        "Target": posixpath.normpath(target),
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def _networking(bed: BedSpec, node: NodeSpec, addresses: Mapping[str, str]) -> dict[str, Any]:
    """Attach the node to the bed's private network, with its address, and its name as an alias."""
    if bed.network != "private":
        return {}
    endpoint: dict[str, str | list[str] | dict[str, str]] = {"Aliases": [node.name]}
    if address := addresses.get(node.name):
        endpoint |= {"IPAMConfig": {"IPv4Address": address}, "MacAddress": mac_address(address)}
    return {"NetworkingConfig": {"EndpointsConfig": {container.network_name(bed.name): endpoint}}}


#: Of these each entry is compared, or the part that a start does not set.
_BY_ENTRY = ("Entrypoint", "Env", "ExtraHosts", "HostConfig", "Labels", "Mounts")


def changes(before: Body, after: Body) -> tuple[str, ...]:
    """A short line for each field that differs. Values of the environment may be secret: it is named without them.

    A node that the bed no longer has may keep its name in /etc/hosts.
    """
    old, new = dict(_fields(before)), dict(_fields(after))
    lines: dict[str, str] = {}
    for path in (path for path in {**old, **new} if old.get(path) != new.get(path)):
        kind, _, name = path.partition(" ")
        variable = _VARIABLES.get(path, path)
        values = [fields.get(path, "none") for fields in (old, new)]
        if kind == "env":
            lines[kind] = f"{lines.get(kind, 'ccbed_env')} {name}"
        elif kind != "host" or path in new:
            is_text = all(isinstance(value, str) for value in values)
            lines.setdefault(variable, f"{variable} {values[0]} -> {values[1]}" if is_text else f"{variable} changed")
    return tuple(lines.values())


def _fields(request: Body) -> Iterator[tuple[str, object]]:
    """(path, value): of the environment, mounts and hosts each entry by its name."""
    host = request["HostConfig"]
    env = dict(item.split("=", 1) for item in request["Env"])
    hosts = dict(item.split(":", 1) for item in host["ExtraHosts"])
    direct = {*env.pop("no_proxy", "").split(","), *env.pop("NO_PROXY", "").split(",")}
    yield "no_proxy", sorted(direct - {*hosts, *hosts.values()})
    yield "role", request["Labels"][container.ROLE]
    yield "Entrypoint", request["Entrypoint"][0]
    yield from ((f"env {name}", value) for name, value in env.items() if not name.startswith("CCBED_"))  # of this start
    yield from ((f"host {name}", address) for name, address in hosts.items() if "." not in name)
    for index, mount in enumerate(host["Mounts"]):  # the second is the shared directory, whatever its path
        text = mount["Source"] + (":ro" if mount["ReadOnly"] else "")
        yield f"mount {index if index == 1 else mount['Target']}", text
    for prefix, part in (("", request), ("HostConfig.", host)):
        yield from ((f"{prefix}{name}", value) for name, value in part.items() if name not in _BY_ENTRY)
