"""Diagnose hosts: compare a host's facts (prepare/facts.py) with the requirements of a bed; every problem has a fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ...model import requirements
from ...model.bed import BedSpec, HostSpec, NodeSpec
from ...model.frozen import dataclass, field
from ...model.requirements import Requirement, size_text, version_text
from . import container_requests, engine_kind, gpu_devices
from .engine_kind import Engine

#: The limit of a clock's offset. ccbed measures a smaller offset and corrects for it.
MAX_CLOCK_OFFSET_S = 0.5


#: What starts podman's socket for a user.
_PODMAN = "systemctl --user enable --now podman.socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSurvey:
    """A host's facts. ``clock_offset_s``: its clock minus the controller's, ± ``clock_uncertainty_s``."""

    host: HostSpec
    facts: Mapping[str, Any]
    clock_offset_s: float = 0.0
    clock_uncertainty_s: float = 0.0
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def diagnose(bed: BedSpec, survey: HostSurvey, controller_image: str | None) -> tuple[Requirement, ...]:
    """The findings about a host. ``controller_image``: the image's id on the controller, empty if absent, None if unknown."""
    nodes = [node for node in bed.nodes if node.host == survey.host.name]
    return (
        *((_ssh(survey),) if survey.host.connection == "ssh" else ()),
        _python(survey),
        *(_containers(bed, survey, nodes, controller_image) if bed.provider == "docker" else ()),
        *_sudo(bed, survey),
        *_keeper_unit(bed, survey),
        _workdir(survey.facts, survey.host),
        _shm(survey.facts),
        *_clock(survey),
    )


def find_same_machine(surveys: Sequence[HostSurvey]) -> dict[str, Requirement]:
    """Hosts that are the same machine: name -> finding. They share the boot id, and the address or the directory.

    A machine may have several addresses, and hosts that are namespaces of a machine share its boot id.
    """
    names: dict[tuple[Any, ...], str] = {}
    problems = {}
    for survey in surveys:
        name = survey.host.name
        for key, evidence in _identities(survey):
            if key in names and name not in problems:
                text = f"is the same machine as {names[key]} ({evidence})"
                fix = f"set ansible_host of {name} to its own address"
                problems[name] = Requirement.fail("host", text, fix)
            names.setdefault(key, name)
    return problems


def _identities(survey: HostSurvey) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Identities that no other machine has, each with its evidence in words."""
    boot, address, workdir = survey.facts.get("boot"), survey.facts.get("reached", ()), survey.facts["workdir"]
    if address:
        yield (boot, *address), " port ".join(map(str, address))
    if workdir.get("id"):
        path = workdir.get("above", workdir["path"])
        yield (boot, "directory", *workdir["id"]), f"{path} is the same directory on both"


def _ssh(survey: HostSurvey) -> Requirement:
    return Requirement.ok("ssh", f"as {survey.facts['user']}")


def _python(survey: HostSurvey) -> Requirement:
    known = {path: tuple(version) for path, version in survey.facts["pythons"].items()}
    newest = max(known.values())
    text = f"{newest[0]}.{newest[1]}"
    if newest >= requirements.HOST_PYTHON:
        return Requirement.ok("python", text)
    fix = "install python3.11 there (`ccbed up` does so on RHEL), or set ansible_python_interpreter"
    return Requirement.fail("python", f"{text} is too old, {version_text(requirements.HOST_PYTHON)} is needed", fix)


def _containers(
    bed: BedSpec, survey: HostSurvey, nodes: Sequence[NodeSpec], controller_image: str | None
) -> Iterator[Requirement]:
    engine = survey.facts["engine"]
    yield _engine(survey.facts, survey.host, engine, nodes)
    if any(node.gpus for node in nodes):
        yield _gpus(survey.facts["gpus"], nodes)
    if any(node.container and node.container.rdma for node in nodes):
        yield _infiniband(survey.facts)
    if engine["version"]:
        yield from _images(survey.facts, controller_image)


def _engine(
    facts: Mapping[str, Any], host: HostSpec, engine: Mapping[str, Any], nodes: Sequence[NodeSpec]
) -> Requirement:
    name, version = "engine", engine["version"]
    if engine.get("denied"):
        text = f"user {facts['user']} may not use {engine['socket']}"
        fix = f"sudo usermod -aG docker {facts['user']}, and log in again"
        if _is_podman(engine):
            fix = f"set ccbed_engine to the socket of podman without root: {_PODMAN}"
        return Requirement.fail(name, text, fix)
    if not version:
        text = f"no engine responds at {engine['socket']} ({engine['error']})"
        return Requirement.fail(name, text, _start_hint(facts, host, engine))
    known = engine_of(engine)
    if known.is_too_old:
        fix = f"upgrade {known.name} to {known.oldest} or newer"
        return Requirement.fail(name, f"{known.text} is too old", fix)
    if problem := next(filter(None, (_engine_problem(node, known) for node in nodes)), ""):
        text, _, fix = problem.partition("; ")
        return Requirement.fail(name, text, fix)
    if known.lacks:
        text = f"{known.text} cannot inject {', '.join(_FAULTS[item] for item in known.lacks)}"
        fix = "to inject them, use Docker, or podman as root; ccbed run rejects them here"
        return Requirement.warn(name, text, fix)
    return Requirement.ok(name, known.text)


#: A capability that an engine may lack -> the fault that needs it.
_FAULTS = {"limit": "slow-node", "pause": "pause-node"}


def engine_of(facts: Mapping[str, Any]) -> Engine:
    podman, (status, message) = facts.get("podman"), facts.get("update", (0, ""))
    return engine_kind.read(
        {"Version": facts["version"]}, podman, options=facts.get("options", ""),
        can_update=podman is None or engine_kind.knows_update(status, message),
    )  # fmt: skip


def _engine_problem(node: NodeSpec, engine: Engine) -> str:
    """Return why the engine cannot run the node; empty if it can."""
    if node.container is None:
        return ""
    return gpu_devices.version_problem(node.container, engine) or container_requests.limit_problem(
        node.container, engine
    )


def _is_podman(engine: Mapping[str, Any]) -> bool:
    return "podman" in engine["socket"]


def _start_hint(facts: Mapping[str, Any], host: HostSpec, engine: Mapping[str, Any]) -> str:
    if _is_podman(engine):
        return f"{_PODMAN}, or set ccbed_engine to its socket"
    if "docker" in facts["programs"]:
        start = "sudo systemctl start docker" if facts["systemd"] else "start dockerd"
        return f"{start}, or set ccbed_engine to its socket"
    if host.connection == "ssh" and facts["system"]["family"]:
        return "`ccbed up` installs Docker there; or set ccbed_engine to the socket of its engine"
    return "install Docker there, or set ccbed_engine to the socket of its engine"


def _gpus(facts: Mapping[str, Any], nodes: Sequence[NodeSpec]) -> Requirement:
    devices = facts.get("devices", ())
    required = sum(max(node.gpus, 1 if node.gpus else 0) for node in nodes)
    if problem := facts.get("problem", "") if facts.get("smi") else "":
        text = f"nvidia-smi lists {len(devices)} and fails ({problem})"
        return Requirement.fail("gpus", text, next(fix for part, fix in _SMI_FIXES.items() if part in problem))
    if not devices:
        text = "nvidia-smi shows none" if facts.get("smi") else "none: nvidia-smi is not installed"
        fix = "install the NVIDIA driver, or set ccbed_gpus: 0"
        return Requirement.fail("gpus", text, fix)
    if required > len(devices):
        text = f"{len(devices)} available, {required} required"
        return Requirement.fail("gpus", text, "lower ccbed_gpus, ccbed_nodes or ccbed_spares")
    if not (facts.get("toolkit") or facts.get("hook")):
        text = f"{len(devices)}, but no NVIDIA container toolkit"
        fix = "install nvidia-container-toolkit (`ccbed up` installs it)"
        return Requirement.fail("gpus", text, fix)
    text = f"{len(devices)} x {devices[0]['name']}, driver {devices[0]['driver_version']}"
    return Requirement.ok("gpus", text)


#: Part of what nvidia-smi prints when it fails -> the fix.
_SMI_FIXES = {
    "version mismatch": "the driver was updated while the former one is loaded: reboot the host",
    "communicate with the NVIDIA driver": "install the NVIDIA driver, or load it: sudo modprobe nvidia",
    "is lost": "reboot the host; if the GPU stays lost, name the others in ccbed_gpus",
    "": "see dmesg | grep -i nvrm there; or set ccbed_gpus: 0",
}


def _infiniband(facts: Mapping[str, Any]) -> Requirement:
    if facts["infiniband"]:
        return Requirement.ok("rdma", "ok")
    fix = "load the RDMA driver, or remove ccbed_rdma"
    return Requirement.fail("rdma", "no /dev/infiniband", fix)


def _images(facts: Mapping[str, Any], controller_image: str | None) -> Iterator[Requirement]:
    for name, host_image in facts["images"].items():
        if host_image and controller_image in (None, "", host_image):
            yield Requirement.ok("image", f"{name} present")
            continue
        free = facts["engine"].get("free", 0)
        if free < requirements.IMAGE_BYTES:
            text = f"{name} must be copied, but only {size_text(free)} are free in {facts['engine'].get('root')}"
            yield Requirement.fail("image", text, "docker system prune there, or another disk")
        elif controller_image:
            text = f"{name} differs from the controller's image" if host_image else f"{name} is missing"
            yield Requirement.warn("image", text, "`ccbed up` copies the controller's image")
        elif name.startswith("ccbed/"):
            text = f"{name} is missing on the host and on the controller"
            yield Requirement.fail("image", text, "ccbed image build, or docker load on the controller")
        else:
            text = f"{name} is missing"
            yield Requirement.warn("image", text, "`ccbed up` pulls it if a registry has it")


def _sudo(bed: BedSpec, survey: HostSurvey) -> Iterator[Requirement]:
    """Yield what `ccbed up` does as root on a host behind SSH, where its user may not become root."""
    facts, host = survey.facts, survey.host
    if host.connection != "ssh" or host.has_become_password or facts.get("may_become_root", True):
        return
    workdir, limit = facts["workdir"], facts.get("limits", {}).get("nofile", -1)
    works = {
        "install Docker": bed.provider == "docker"
        and not facts["engine"]["version"]
        and not facts["engine"].get("denied")
        and not _is_podman(facts["engine"]),
        f"add {facts['user']} to group docker": facts["engine"].get("denied", False)
        and not _is_podman(facts["engine"]),
        f"create {workdir['path']}": not workdir["there"] and not workdir["writable"],
        "raise the limit of open files": 0 <= limit < requirements.OPEN_FILES
        and "nofile" not in facts["limits"]["file"],
        "open the firewall": bool(facts.get("firewall")),
    }
    needed = [work for work, is_needed in works.items() if is_needed]
    if needed:
        text = f"{facts['user']} may not become root, and `ccbed up` must {', '.join(needed)}"
        fix = f"allow {facts['user']} to use sudo without a password, or put ansible_become_password in a vault"
        yield Requirement.fail("sudo", text, fix)


def _keeper_unit(bed: BedSpec, survey: HostSurvey) -> Iterator[Requirement]:
    """Yield how the keeper starts again after a reboot of a host behind SSH (``node/hostlink/keeper_unit.py``)."""
    facts, name = survey.facts, "host agent unit"
    if survey.host.connection != "ssh" or bed.provider != "docker":
        return
    user = facts["user"]
    without = "after a reboot, only `ccbed up` starts the host agent"
    if not facts["systemd"]:
        yield Requirement.ok(name, "none (no systemd)")
    elif facts.get("may_become_root", True):
        yield Requirement.ok(name, "of the system")
    elif not facts.get("lingers"):
        text = f"{user} may not become root and does not linger: {without}"
        yield Requirement.warn(name, text, f"sudo loginctl enable-linger {user}")
    elif not facts.get("user_systemd"):
        text = f"the systemd of user {user} does not respond: {without}"
        yield Requirement.warn(name, text, f"sudo systemctl restart user@{facts['uid']}")
    else:
        yield Requirement.ok(name, f"of user {user}")


def _workdir(facts: Mapping[str, Any], host: HostSpec) -> Requirement:
    workdir = facts["workdir"]
    path = workdir["path"]
    if workdir["there"] and workdir["owner"] != facts["uid"]:
        fix = f"sudo chown -R {facts['user']} {path}"
        return Requirement.fail("directory", f"{path} does not belong to {facts['user']}", fix)
    if not workdir["writable"]:
        create = "`ccbed up` creates it with sudo" if host.connection == "ssh" else f"sudo mkdir -p {path}"
        fix = f"{create}; or set ccbed_workdir to a directory of {facts['user']}"
        is_created = host.connection == "ssh" and not workdir["there"]
        outcome: Literal["fail", "warn"] = "warn" if is_created else "fail"
        return Requirement(name="directory", outcome=outcome, text=f"{facts['user']} cannot write {path}", fix=fix)
    fix = "free space, or set ccbed_workdir to another disk"
    return requirements.space("disk", workdir["free"], requirements.DISK_BYTES, fix, of=f"for {path}")


def _shm(facts: Mapping[str, Any]) -> Requirement:
    fix = "free space in /dev/shm, or mount it larger"
    return requirements.space("shm", facts["shm"]["free"], requirements.SHM_BYTES, fix, of="in /dev/shm")


def _clock(survey: HostSurvey) -> Iterator[Requirement]:
    if survey.host.connection == "ssh":
        offset, uncertainty = survey.clock_offset_s, survey.clock_uncertainty_s
        text = f"{offset * 1000:+.0f} ms (± {uncertainty * 1000:.0f})"
        if abs(offset) - uncertainty > MAX_CLOCK_OFFSET_S:
            text = f"{offset:+.1f} s from the controller's"
            yield Requirement.warn("clock", text, "synchronise both with chrony or timesyncd")
        else:
            yield Requirement.ok("clock", text)
    if survey.facts["synchronised"] is False and survey.host.connection == "ssh":
        fix = "start chrony or systemd-timesyncd there"
        yield Requirement.warn("time", "the clock is not synchronised", fix)
