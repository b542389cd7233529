"""A node -> the request that creates its container (Engine API v1.41, ``POST /containers/create``). Pure.

What every container is: its agent is the main process, behind an init; it runs as an ordinary user with no capability and
no way to gain one; its root is read-only; it sees its own node directory, the bed's shared directory, code and data, and
nothing else of its host. It is never privileged, and no engine socket is in it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from ...model import container
from ...model.bed import BedSpec, ContainerSpec, NodeSpec
from ..spec import values
from . import devices

MIB = 1024 * 1024
#: /dev/shm, bytes: what DataLoader workers and NCCL use. Only what is used takes memory.
SHM, SHM_WITH_GPUS = 1024 * MIB, 8192 * MIB
TMP = 2048 * MIB
RUN = 16 * MIB
#: Threads count too: 8 ranks with loaders and NCCL have some thousands.
PIDS = 16384
STOP_S = 2
#: Under memory pressure a host shall lose the bed's processes before its own (-1000 to 1000).
OOM_FIRST = 500
#: CUDA libraries are told to be run with it (bytes).
STACK = 64 * MIB


def request(
    bed: BedSpec,
    node: NodeSpec,
    *,
    archive: str,
    owner: tuple[int, int],
    addresses: Mapping[str, str],
    tag: str,
    env: Mapping[str, str] | None = None,
    whose: str = "",
) -> dict[str, Any]:
    """The body of the request. Its incarnation is left open: ``model.container.filled`` puts it in.

    ``archive``: path of agent.pyz on the host. ``owner``: uid and gid of the bed's directory there, by number, since a share
    with root squashed knows no other. ``addresses``: of every node and spare, as far as they are known; in a private
    network the node's own is what it gets. ``tag``: the bed's part of a mark. ``env``: more for the main process,
    such as the id of its image and its engine's version (model/container.py).
    ``whose``: for people who find its name taken.
    The directory HOME lies in the node's directory; the agent makes it (agent/home.py). Raises ValueError where the
    container could not read what lies there.
    """
    spec = node.container
    if spec is None:
        raise ValueError(f"{node.name} is not to be a container")
    return {
        "Image": spec.image,
        "Hostname": node.name,
        "User": _user(spec, owner),
        "Entrypoint": ["python3", archive, "node", "--directory", directory(bed, node)],
        "Cmd": [],
        "WorkingDir": directory(bed, node),
        "Env": _environment(bed, node, spec, env or {}),
        "Labels": _labels(node, tag, whose),
        "Healthcheck": {"Test": ["NONE"]},
        "StopTimeout": STOP_S,
        "HostConfig": _host_config(bed, node, spec, addresses),
        **_networking(bed, node, addresses),
    }


def _user(spec: ContainerSpec, owner: tuple[int, int]) -> str:
    """The owner of the bed's directory: nobody else may read what lies there. Raises ValueError."""
    if spec.user and spec.user.partition(":")[0] != str(owner[0]):
        raise ValueError(
            f"ccbed_user {spec.user}: the bed's directory belongs to uid {owner[0]}, and nobody else may read it; leave "
            f"ccbed_user out, set it to {owner[0]}, or run ccbed as that user (on hosts elsewhere: ansible_user)"
        )
    return spec.user or f"{owner[0]}:{owner[1]}"


def directory(bed: BedSpec, node: NodeSpec) -> str:
    """The node's own: the same path on its host and in its container."""
    return f"{bed.hostdir}/nodes/{node.name}"


def _labels(node: NodeSpec, tag: str, whose: str) -> dict[str, str]:
    return {
        container.BED: tag,
        container.NODE: node.name,
        container.ROLE: node.role,
        container.SPEC: node.hash,
        container.INCARNATION: "",
        container.ORDINAL: "",
        **({container.OWNER: whose} if whose else {}),
    }


def _environment(bed: BedSpec, node: NodeSpec, spec: ContainerSpec, more: Mapping[str, str]) -> list[str]:
    """A home, and caches that can be written; the inventory's own comes after it, and what ccbed goes by last."""
    home = f"{directory(bed, node)}/home"
    found = {
        "HOME": home,
        "USER": "ccbed",
        "LOGNAME": "ccbed",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "TORCH_HOME": f"{home}/.cache/torch",
        "TRITON_CACHE_DIR": f"{home}/.cache/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/.cache/inductor",
        "PYTHONDONTWRITEBYTECODE": "1",
        **devices.environment(spec),
        **more,
        **node.env,
        container.MARK_VARIABLE: "",
        container.LABEL_VARIABLE: "",
    }
    return [f"{name}={value}" for name, value in found.items()]


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
        "DeviceRequests": devices.requests(spec),
        "Devices": devices.rdma(spec),
        **_limits(spec),
    }


def _hosts(bed: BedSpec, node: NodeSpec, addresses: Mapping[str, str]) -> list[str]:
    """Every node and spare by name, and its name by address; a private network adds a container's own by itself."""
    own = node.name if bed.network == "private" else None
    names = [one.name for one in bed.nodes if one.name != own and addresses.get(one.name)]
    return [f"{name}:{addresses[name]}" for name in names]


def _limits(spec: ContainerSpec) -> dict[str, Any]:
    """No swap beside the memory: a rank that swaps is a straggler that nobody planned."""
    found: dict[str, Any] = {"ShmSize": shm(spec), "PidsLimit": PIDS, "Ulimits": _ulimits(spec)}
    if spec.cpus:
        found["NanoCpus"] = round(float(spec.cpus) * 1_000_000_000)
    if spec.memory:
        found |= {"Memory": values.size(spec.memory), "MemorySwap": values.size(spec.memory)}
    return found


def shm(spec: ContainerSpec) -> int:
    """As asked for; else what is usual, but no more than half of the container's memory."""
    if spec.shm_size:
        return values.size(spec.shm_size)
    return _half(spec, SHM_WITH_GPUS if spec.gpu_devices else SHM)


def _half(spec: ContainerSpec, usual: int) -> int:
    return min(usual, values.size(spec.memory) // 2) if spec.memory else usual


def _ulimits(spec: ContainerSpec) -> list[dict[str, Any]]:
    """Open files are left as the engine has them; the agent raises its own as far as it may (agent/home.py)."""
    limits = {"core": 0}
    if spec.gpu_devices:
        limits["stack"] = STACK
    if spec.rdma:
        limits["memlock"] = -1
    return [{"Name": name, "Soft": limit, "Hard": limit} for name, limit in limits.items()]


def _tmpfs(spec: ContainerSpec) -> dict[str, str]:
    """Compiled kernels are loaded from /tmp, so it must not be noexec, as it were by default."""
    return {
        "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={_half(spec, TMP)}",
        "/run": f"rw,noexec,nosuid,nodev,mode=755,size={RUN}",
    }


def _mounts(bed: BedSpec, node: NodeSpec, spec: ContainerSpec) -> list[dict[str, Any]]:
    """Mounts and no Binds: a source that is not there is an error, and not an empty directory of root's."""
    found = [
        _bind(directory(bed, node), directory(bed, node)),
        _bind(bed.shared_dir, bed.shared_dir),
        _bind(f"{bed.hostdir}/payloads", f"{bed.hostdir}/payloads", read_only=True),
        _bind(f"{bed.hostdir}/agent", f"{bed.hostdir}/agent", read_only=True),
    ]
    if bed.data_dir:
        found.append(_bind(bed.data_dir, bed.data_dir, read_only=True))
    for mount in spec.mounts:
        source, target, mode = (*mount.split(":"), "")[:3]
        found.append(_bind(source, target, read_only=mode == "ro"))
    return list({one["Target"]: one for one in found}.values())


def _bind(source: str, target: str, *, read_only: bool = False) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": posixpath.normpath(source),
        "Target": posixpath.normpath(target),
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def _networking(bed: BedSpec, node: NodeSpec, addresses: Mapping[str, str]) -> dict[str, Any]:
    """In the bed's private network: the node's own address, and its name as an alias."""
    if bed.network != "private":
        return {}
    endpoint: dict[str, Any] = {"Aliases": [node.name]}
    if address := addresses.get(node.name):
        endpoint["IPAMConfig"] = {"IPv4Address": address}
    return {"NetworkingConfig": {"EndpointsConfig": {container.network_name(bed.name): endpoint}}}
