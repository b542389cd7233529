"""Reads the facts of all hosts of a bed at once, and checks them against the requirements."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.bed import doctor_rules, error_explanations, links, node_addresses
from ..model.bed import BedSpec, BedStatus, HostSpec, HostStatus
from ..model.requirements import Requirement
from ..providers import interpreters
from ..providers.process import fabric_checks
from ..system import host_facts
from . import facts, host_access, hosts

COMMAND_S = 30.0
_CONNECTIONS = 64


def examine(bed: BedSpec) -> dict[str, tuple[Requirement, ...]]:
    """The requirements of each host, in the order of the inventory."""
    known = bed.hosts or tuple(HostSpec(name=name) for name in dict.fromkeys(node.host for node in bed.nodes))
    with ThreadPoolExecutor(max_workers=min(len(known), _CONNECTIONS)) as pool:
        results = list(pool.map(lambda host: _check_host(bed, host), known))
    looked = [result for result in results if isinstance(result, doctor_rules.HostSurvey)]
    addresses = _addresses(bed, looked)
    doubled = {} if bed.provider == "process" else doctor_rules.find_same_machine(looked)  # those are all this machine
    requirements: dict[str, tuple[Requirement, ...]] = {}
    for host, result in zip(known, results, strict=True):
        if isinstance(result, Requirement):
            requirements[host.name] = (result,)
        else:
            extra = (doubled[host.name],) if host.name in doubled else ()
            requirements[host.name] = (
                *extra,
                *doctor_rules.diagnose(bed, result, _local_image_id(bed, host)),
                *addresses.get(host.name, ()),
                *_interpreter(bed),
                *_fabric(bed),
            )
    return requirements


def _addresses(bed: BedSpec, surveys: Sequence[doctor_rules.HostSurvey]) -> dict[str, tuple[Requirement, ...]]:
    """Host -> the addresses of its nodes, which `up` would choose, or refuse."""
    hosts = tuple(HostStatus(name=survey.host.name, interfaces=survey.interfaces) for survey in surveys)
    requirements: dict[str, dict[Requirement, None]] = {}
    for node, choice in node_addresses.choices(bed, BedStatus(name=bed.name, hosts=hosts)).items():
        text = f"{choice.address} on {choice.interface}, {choice.reason}"
        fix = "set ccbed_interface or ccbed_address of that host"
        requirement = (
            Requirement.fail("address", choice.problem, fix) if choice.problem else Requirement.ok("address", text)
        )
        requirements.setdefault(bed.node(node).host, {})[requirement] = None
    return {host: tuple(requirements) for host, requirements in requirements.items()}


def _interpreter(bed: BedSpec) -> tuple[Requirement, ...]:
    """Return whether torch can be imported in the interpreter of process nodes; those of containers are in their images."""
    if bed.provider != "process":
        return ()
    interpreter = interpreters.probe(interpreters.path_of(bed), import_torch=True)
    return (interpreters.requirement(interpreter, named=bool(bed.nodes[0].python)),)


def _fabric(bed: BedSpec) -> tuple[Requirement, ...]:
    """Return whether this machine can emulate the bed's fabric."""
    if not bed.fabric:
        return ()
    return fabric_checks.lacking(bed.link) or (Requirement.ok("fabric", links.bed_text(bed)),)


def _check_host(bed: BedSpec, host: HostSpec) -> doctor_rules.HostSurvey | Requirement:
    try:
        with host_access.connect_host(host) as access:
            return _read(bed, host, access)
    except host_access.UnreachableError as error:
        name = "ssh" if host.connection == "ssh" else "host"
        return Requirement.fail(name, str(error))


def _read(bed: BedSpec, host: HostSpec, access: host_access.HostAccess) -> doctor_rules.HostSurvey | Requirement:
    interpreter = sys.executable if host.connection == "local" else host.python
    output = access.run([interpreter, "-"], _script(bed, host), COMMAND_S)
    if output.code:
        advised = error_explanations.explain_host(replace(host, python=interpreter), output.stderr, reachable=True)
        return Requirement.fail("python", advised.text, advised.fix)
    try:
        read: Mapping[str, Any] = json.loads(output.stdout[output.stdout.index("{") :])
    except ValueError:
        text = "its output is not JSON; its shell may print text at log-in"
        return Requirement.fail("python", text, f"try: ssh {host.address} true")
    offset_s, within = _clock(access)
    return doctor_rules.HostSurvey(
        host=host, facts=read, clock_offset_s=offset_s, clock_uncertainty_s=within,
        interfaces=_interfaces(access, interpreter) if host.connection == "ssh" else {},
    )  # fmt: skip


def _interfaces(access: host_access.HostAccess, interpreter: str) -> Mapping[str, tuple[str, ...]]:
    """The host's own ``host_facts.interfaces()``; empty where they cannot be read."""
    program = Path(host_facts.__file__).read_text(encoding="utf-8")
    output = access.run([interpreter, "-"], f"{program}\nimport json\nprint(json.dumps(interfaces()))\n", COMMAND_S)
    try:
        content = json.loads(output.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return {name: tuple(addresses) for name, addresses in content.items()}


def _clock(access: host_access.HostAccess) -> tuple[float, float]:
    """The host's clock minus this machine's, and half of the time of the request, in seconds."""
    before = time.time()
    output = access.run(["date", "+%s.%N"], "", COMMAND_S)
    after = time.time()
    try:
        host_time = float(output.stdout)
    except ValueError:
        return 0.0, 0.0
    return host_time - (before + after) / 2, (after - before) / 2


def _script(bed: BedSpec, host: HostSpec) -> str:
    request = {
        "hostdir": bed.hostdir or bed.workdir,
        "engine": host.engine,
        "image": _image(bed, host),
        "gpus": any(node.gpus for node in bed.nodes if node.host == host.name),
    }
    program = Path(facts.__file__).read_text(encoding="utf-8")
    return f"{program}\nmain({json.dumps(json.dumps(request))})\n"


def _image(bed: BedSpec, host: HostSpec) -> str:
    nodes = (node for node in bed.nodes if node.host == host.name and node.container)
    return next((node.container.image for node in nodes if node.container), "")


def _local_image_id(bed: BedSpec, host: HostSpec) -> str | None:
    name = _image(bed, host)
    return hosts.local_image(name) if name and host.connection == "ssh" else None
