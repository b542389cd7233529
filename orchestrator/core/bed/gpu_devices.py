"""GPUs and RDMA devices: allocate a host's GPUs to its nodes, and request devices for a container."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.bed import ContainerSpec
from .engine_kind import Engine

ALL = ("all",)
#: The first Docker Engine whose device requests support CDI names.
CDI_ENGINE = 25
INFINIBAND = "/dev/infiniband"

Devices = tuple[str, ...]


def is_cdi(device: str) -> bool:
    """``vendor/class=name``, as in ``nvidia.com/gpu=0``."""
    return "=" in device and "/" in device.partition("=")[0]


def requests(spec: ContainerSpec) -> list[dict[str, str | int | list[str] | list[list[str]]]]:
    """DeviceRequests: one for the NVIDIA runtime (all, indices, UUIDs), one for CDI names."""
    cdi = [device for device in spec.gpu_devices if is_cdi(device)]
    plain = [device for device in spec.gpu_devices if not is_cdi(device)]
    result: list[dict[str, str | int | list[str] | list[list[str]]]] = []
    if tuple(plain) == ALL:
        result.append({"Driver": "", "Count": -1, "Capabilities": [["gpu"]]})
    elif plain:
        result.append({"Driver": "", "DeviceIDs": plain, "Capabilities": [["gpu"]]})
    return [*result, {"Driver": "cdi", "DeviceIDs": cdi}] if cdi else result


def environment(spec: ContainerSpec) -> dict[str, str]:
    """Variables for the NVIDIA runtime. Images of CUDA request all GPUs in their own environment: void means none.

    The GPUs of a container are numbered from 0, in PCI order, so LOCAL_RANK selects them without CUDA_VISIBLE_DEVICES.
    With CDI names void disables the runtime's own hook.
    """
    plain = [device for device in spec.gpu_devices if not is_cdi(device)]
    if not spec.gpu_devices:
        return {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {
        "NVIDIA_VISIBLE_DEVICES": ",".join(plain) or "void",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def rdma(spec: ContainerSpec) -> list[dict[str, str]]:
    """Devices: all of /dev/infiniband if the inventory requests RDMA."""
    if not spec.rdma:
        return []
    return [{"PathOnHost": INFINIBAND, "PathInContainer": INFINIBAND, "CgroupPermissions": "rw"}]


def version_problem(spec: ContainerSpec, engine: Engine) -> str:
    """Return why this engine cannot provide these devices; empty if it can."""
    if engine.is_podman and spec.gpu_devices:
        return f"ccbed_gpus: GPUs in containers of podman are unsupported in this version (found {engine.text}); use Docker"
    cdi = [device for device in spec.gpu_devices if is_cdi(device)]
    major = engine.version.partition(".")[0]
    if not cdi or (major.isdigit() and int(major) >= CDI_ENGINE):
        return ""
    return f"CDI device {cdi[0]} needs Docker Engine {CDI_ENGINE} or newer (found {engine.version}); or name GPUs by index or UUID"


def allocate(gpus: int | Sequence[str], members: int, standby: int) -> tuple[list[Devices], list[Devices]]:
    """The devices of the host's nodes and spares (``members`` in total), and those of its ``standby`` nodes.

    ``gpus``: the number per node (indices are counted up), or names: ``all``, or a list that is divided evenly. A standby
    replaces a lost node, so it has the GPUs of a node: the first standby those of the first node, and so on.
    Raises ValueError if the GPUs cannot be divided evenly.
    """
    count = max(members, 1)
    if isinstance(gpus, int):
        shares = [tuple(str(index * gpus + offset) for offset in range(gpus)) for index in range(count)]
    elif tuple(gpus) == ALL:
        shares = [_all_devices(count)]
    else:
        shares = _divide(gpus, count)
    return shares[:members], [shares[index % count] for index in range(standby)]


def _all_devices(count: int) -> Devices:
    if count > 1:
        raise ValueError(f"`all` needs a single node, but this host has {count}; give a number per node, or a list")
    return ALL


def _divide(names: Sequence[str], count: int) -> list[Devices]:
    per_node, remainder = divmod(len(names), count)
    if remainder:
        raise ValueError(f"{len(names)} GPUs cannot be divided evenly among the {count} nodes of this host")
    return [tuple(names[index * per_node : (index + 1) * per_node]) for index in range(count)]
