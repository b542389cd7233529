"""The GPUs and RDMA devices of a container, as the engine is asked for them."""

from __future__ import annotations

from typing import Any

from ...model.bed import ContainerSpec

ALL = ("all",)
#: The first engine whose device requests know CDI names.
CDI_ENGINE = 25
INFINIBAND = "/dev/infiniband"


def is_cdi(device: str) -> bool:
    """``vendor/class=name``, as in ``nvidia.com/gpu=0``."""
    return "=" in device and "/" in device.partition("=")[0]


def requests(spec: ContainerSpec) -> list[dict[str, Any]]:
    """DeviceRequests: one for what the NVIDIA runtime knows (all, indices, UUIDs), one for CDI names."""
    cdi = [device for device in spec.gpu_devices if is_cdi(device)]
    plain = [device for device in spec.gpu_devices if not is_cdi(device)]
    found: list[dict[str, Any]] = []
    if tuple(plain) == ALL:
        found.append({"Driver": "", "Count": -1, "Capabilities": [["gpu"]]})
    elif plain:
        found.append({"Driver": "", "DeviceIDs": plain, "Capabilities": [["gpu"]]})
    return [*found, {"Driver": "cdi", "DeviceIDs": cdi}] if cdi else found


def environment(spec: ContainerSpec) -> dict[str, str]:
    """What the NVIDIA runtime goes by. Images of CUDA ask for all GPUs in their own environment: void says none.

    The GPUs that a container gets are numbered anew from 0, in PCI order, so LOCAL_RANK names them and no
    CUDA_VISIBLE_DEVICES is set. With CDI names the runtime's own hook has to stay out: void as well.
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
    """Devices: all of /dev/infiniband, and only where the inventory asks for it."""
    if not spec.rdma:
        return []
    return [{"PathOnHost": INFINIBAND, "PathInContainer": INFINIBAND, "CgroupPermissions": "rw"}]


def unfit(spec: ContainerSpec, engine: str) -> str:
    """Why an engine of this version cannot give these devices; empty where it can."""
    cdi = [device for device in spec.gpu_devices if is_cdi(device)]
    major = engine.partition(".")[0]
    if not cdi or (major.isdigit() and int(major) >= CDI_ENGINE):
        return ""
    return (
        f"CDI device {cdi[0]} needs Docker Engine {CDI_ENGINE} or newer (found {engine}); or name GPUs by index or UUID"
    )
