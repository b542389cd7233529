"""What an engine says, or an init in a container's output, when a start fails -> what that means, and what to do. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: What installs the NVIDIA runtime, as NVIDIA's manual has it.
TOOLKIT = (
    "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker && "
    "sudo systemctl restart docker (ccbed up does it where Ansible may)"
)


@dataclass(frozen=True, slots=True)
class Explained:
    """``text``: what is wrong, in a sentence. ``fix``: what to do about it."""

    text: str
    fix: str


#: Pattern -> sentence and fix; both may use the pattern's groups by name.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r'could not select device driver "cdi"',
        "the engine knows no CDI devices",
        "Docker Engine 25 or newer with features.cdi in its daemon.json; or name GPUs by index or UUID",
    ),
    (
        r"could not select device driver .* with capabilities: \[\[gpu",
        "GPUs are asked for, and the engine has no NVIDIA runtime",
        TOOLKIT,
    ),
    (
        r"unresolvable CDI devices (?P<name>[^\s:]+)",
        "no CDI device {name} on this host",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; nvidia-ctk cdi list shows the names",
    ),
    (
        r"nvidia-container-cli: .*(?:driver not loaded|driver/library version mismatch|libnvidia-ml\.so)",
        "the NVIDIA driver of the host does not answer",
        "nvidia-smi on the host has to work first: load the driver, or reboot after its update",
    ),
    (
        r"nvidia-container-cli: device error: (?P<name>[^\s:]+): (?:unknown|invalid) device",
        "no GPU {name} on this host",
        "nvidia-smi -L lists what is there; mend ccbed_gpus",
    ),
    (
        r'custom device "(?P<name>/dev/infiniband)[^"]*": no such file',
        "ccbed_rdma is set, and the host has no {name}",
        "load the RDMA driver of its network card, or remove ccbed_rdma",
    ),
    (
        r"bind source path does not exist: (?P<name>\S+)",
        "{name} is not there",
        "make the directory on the host, or mend ccbed_mounts, ccbed_shared_dir or ccbed_data_dir",
    ),
    (
        r'exec: "python3": executable file not found|exec python3 failed: No such file',
        "the image has no python3 on its PATH",
        "take an image with Python and PyTorch: ccbed image build, or any PyTorch image",
    ),
    (
        r"Python (?P<name>[\d.]+) is too old",
        "the image has Python {name}",
        "take an image with Python 3.10 or newer and PyTorch: ccbed image build, or any newer PyTorch image",
    ),
    (
        r"No module named '(?P<name>torch)'",
        "the image has no PyTorch",
        "take an image with PyTorch: ccbed image build, or any PyTorch image",
    ),
    (
        r"[Nn]o such image: (?P<name>\S+)",
        "image {name} is not on this host",
        "ccbed up brings it there; ccbed image build makes it; or mend ccbed_image",
    ),
    (
        r"range of CPUs is from \S+ to (?P<name>[\d.]+)",
        "ccbed_cpus is more than the host has ({name})",
        "lower ccbed_cpus",
    ),
    (
        r"error setting rlimit.*operation not permitted",
        "the engine may not set a limit as high as it is asked for",
        "raise the engine's own limits (systemctl edit docker: LimitMEMLOCK=infinity, LimitSTACK=infinity)",
    ),
    (
        r"(?:permission denied|[Pp]ermission denied).*(?P<name>docker\.sock)",
        "this user may not use the engine's socket",
        "sudo usermod -aG docker USER on that host, then log in anew",
    ),
    (
        r"no space left on device",
        "no space is left where the engine keeps its containers",
        "docker system df shows what takes it; docker image prune frees some",
    ),
    (
        r"[Aa]ddress already in use",
        "the node's address is taken in the bed's network",
        "another container is in it: docker network inspect shows which",
    ),
)


def explain(message: str) -> Explained | None:
    """None for what is not known: then the engine's own words have to do."""
    for pattern, text, fix in _KNOWN:
        if found := re.search(pattern, message):
            named = found.groupdict()
            return Explained(text.format(**named), fix.format(**named) if "{" in fix else fix)
    return None
