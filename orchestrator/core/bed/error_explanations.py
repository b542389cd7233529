"""Explain errors of SSH, Ansible and container engines: pattern -> the cause in plain words, and the fix."""

from __future__ import annotations

import re

from ...model.bed import HostSpec
from ...model.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``text``: the cause in plain words; ``fix``: what to do next."""

    text: str
    fix: str


#: How to install the NVIDIA runtime, according to NVIDIA's manual.
TOOLKIT = (
    "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker && "
    "sudo systemctl restart docker (ccbed up does it where Ansible may)"
)


#: (pattern of an engine's message, text, fix); text and fix may use the pattern's named groups.
_ENGINE: tuple[tuple[str, str, str], ...] = (
    (
        r'could not select device driver "cdi"',
        "the engine does not support CDI devices",
        "Docker Engine 25 or newer with features.cdi in its daemon.json; or name GPUs by index or UUID",
    ),
    (
        r"could not select device driver .* with capabilities: \[\[gpu",
        "the node requests GPUs, but the engine has no NVIDIA runtime",
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
        "make nvidia-smi on the host work first: load the driver, or reboot after its update",
    ),
    (
        r"nvidia-container-cli: device error: (?P<name>[^\s:]+): (?:unknown|invalid) device",
        "no GPU {name} on this host",
        "list the GPUs with nvidia-smi -L; correct ccbed_gpus",
    ),
    (
        r'custom device "(?P<name>/dev/infiniband)[^"]*": no such file',
        "ccbed_rdma is set, but the host has no {name}",
        "load the RDMA driver of its network card, or remove ccbed_rdma",
    ),
    (
        r"bind source path does not exist: (?P<name>\S+)",
        "{name} does not exist",
        "create the directory on the host, or correct ccbed_mounts, ccbed_shared_dir or ccbed_data_dir",
    ),
    (
        r'exec:? "?(?P<name>[^\s"]*python[^\s"]*)"?:? (?:executable file not found|stat \S+ no such file|failed: No such file)',
        "the image has no {name}",
        "use an image with Python and PyTorch (ccbed image build), or set ccbed_python to the image's interpreter",
    ),
    (
        r"Python (?P<name>[\d.]+) is too old",
        "the image has Python {name}",
        "use an image with a newer Python (ccbed image build), or set ccbed_python to a newer interpreter in the image",
    ),
    (
        r"No module named 'torch'",
        "the image has no PyTorch",
        "use an image with PyTorch (ccbed image build), or set ccbed_python to the image's interpreter that has it",
    ),
    (
        r"torch (?P<name>\S+) in \S+ is too old",
        "the image has PyTorch {name}",
        "use an image with a newer PyTorch (ccbed image build), or set ccbed_python to an interpreter that has it",
    ),
    (
        r"[Nn]o such image: (?P<name>\S+)",
        "image {name} is not on this host",
        "ccbed up copies it to the host; ccbed image build builds it; or correct ccbed_image",
    ),
    (
        r"container-init binary not found",
        "podman has no init for containers",
        "install catatonit on the host (Debian, Ubuntu: sudo apt-get install catatonit)",
    ),
    (
        r"cgroups in hybrid mode not supported",
        "crun does not start containers on a host with cgroups of both versions",
        'boot with cgroups of version 2, or set runtime = "runc" under [engine] in containers.conf',
    ),
    (
        r"range of CPUs is from \S+ to (?P<name>[\d.]+)",
        "ccbed_cpus is more than the host has ({name})",
        "lower ccbed_cpus",
    ),
    (
        r"error setting rlimit.*operation not permitted",
        "the engine is not allowed to set a limit as high as requested",
        "raise the engine's own limits (systemctl edit docker: LimitMEMLOCK=infinity, LimitSTACK=infinity)",
    ),
    (
        r"(?:permission denied|[Pp]ermission denied).*(?P<name>docker\.sock)",
        "this user may not use the engine's socket",
        "sudo usermod -aG docker USER on that host, then log in again",
    ),
    (
        r"no space left on device",
        "no space is left on the engine's disk",
        "docker system df shows the usage; docker image prune frees space",
    ),
    (
        r"network (?:with name or ID )?(?P<name>ccbed-[^\s:]+):? (?:network )?not found",
        "network {name} of the bed is gone",
        "do not prune networks while a bed starts; podman finds none without its network plugins (install netavark)",
    ),
    (
        r"[Aa]ddress already in use",
        "another container in the bed's network has the node's address",
        "find the container with docker network inspect",
    ),
)
#: (pattern of a message about an unreachable host, text, fix). ``{…}``: fields of the connection.
_UNREACHABLE = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .*(?:mismatch|does not match)",
        "its host key has changed: it is another machine, or it was reinstalled",
        "if that is expected: ssh-keygen -R '{known}' and accept the new key",
    ),
    (
        r"Host key verification failed|not found in known_hosts|unknown host key",
        "its host key is not known",
        "ssh-keyscan -p {port} {address} >> {file}, after comparing it; or set ccbed_ssh_first_contact: true",
    ),
    (
        r"Permission denied|Authentication failed|Too many authentication failures|no acceptable key",
        "user {user} is not allowed to log in",
        "ssh-copy-id -p {port} {user}@{address}; or set ansible_user and ansible_ssh_private_key_file",
    ),
    (
        r"identity file|no such identity|private key|Load key",
        "the SSH key {key} cannot be used",
        "set ansible_ssh_private_key_file to a key of yours (mode 0600)",
    ),
    (r"Connection refused", "nothing listens on {address} port {port}", "start sshd there, or set ansible_port"),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        "{address} does not answer on port {port}",
        "check that it is on and that ansible_host is correct: ping {address}",
    ),
    (
        r"Could not resolve|Name or service not known|Temporary failure in name resolution",
        "the name {address} is not known",
        "set ansible_host to its address",
    ),
    (
        r"Connection reset|Connection closed|Broken pipe|closed by (?:remote host|.* port)",
        "the connection to {address} was closed",
        "read the log of sshd on {name}",
    ),
)
#: The same for a failure on a reachable host.
_FAILED = (
    (
        r"[Mm]issing sudo password|a password is required|Incorrect sudo password",
        "user {user} may not become root",
        "allow {user} to use sudo without a password, or put ansible_become_password in a vault",
    ),
    (
        r"sudo: (?:command )?not found|No such file or directory: b?'sudo'",
        "there is no sudo, and {user} is not root",
        "install sudo there, or set ansible_user: root",
    ),
    (
        r"[Nn]o space left on device",
        "its disk is full ({message})",
        "free space on {name}: check df -h; docker system prune",
    ),
    (
        r"Request failed|urlopen error|No package|Unable to locate package|Cannot download|Failed to (?:update|fetch|download)|Depsolve",
        "{message}",
        "give {name} access to its packages (docker_repository, nvidia_repository: mirrors), or install it manually",
    ),
    (
        r"Could not get lock|is another process using it|dpkg was interrupted",
        "{message}",
        "wait until its package manager ends: ps -C apt,dpkg,dnf",
    ),
    (
        r"requires a minimum of Python|future feature annotations is not defined|SyntaxError",
        "the Python at {python} is too old",
        "install a newer Python there, and set ansible_python_interpreter to it",
    ),
    (
        r"no Python at|python\S*: (?:command not found|not found|No such file)|No such file.*python|interpreter.*not found",
        "there is no Python at {python}",
        "install python3 there, or set ansible_python_interpreter",
    ),
)


def explain_engine(message: str) -> Explanation | None:
    """The explanation of an engine's message, or of a container's output when its start fails; None if unknown."""
    for pattern, text, fix in _ENGINE:
        if match := re.search(pattern, message):
            named = match.groupdict()
            return Explanation(text=text.format(**named), fix=fix.format(**named) if "{" in fix else fix)
    return None


def explain_host(host: HostSpec, message: str, *, reachable: bool = False) -> Explanation:
    """The explanation of a message of SSH or Ansible; unknown messages are shown. ``reachable``: it failed on the host."""
    message = _shorten(message)
    fields = {
        "name": host.name,
        "address": host.address or host.name,
        "port": host.port,
        "user": host.user or "your user",
        "key": host.key or "",
        "python": host.python,
        "file": host.known_hosts or "~/.ssh/known_hosts",
        "known": host.address if host.port == 22 else f"[{host.address}]:{host.port}",
        "message": message,
    }
    for pattern, text, fix in _FAILED if reachable else (*_UNREACHABLE, *_FAILED):
        if re.search(pattern, message):
            return Explanation(text=text.format(**fields), fix=fix.format(**fields))
    return Explanation(text=message or "it failed without a message", fix=f"log in and check: ssh {_login(host)}")


def _login(host: HostSpec) -> str:
    port = f"-p {host.port} " if host.port != 22 else ""
    return f"{port}{host.user + '@' if host.user else ''}{host.address or host.name}"


def _shorten(message: str) -> str:
    """The lines that are not empty, joined and shortened."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = " ".join(lines)
    return text if len(text) <= 400 else f"{text[:200]} … {text[-180:]}"
