"""All hosts of a bed looked at, at once, reading only: what each has, or why it is not reached."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.bed import diagnosis, error_explanations, links
from ..model.bed import BedSpec, HostSpec
from ..model.requirements import Requirement
from ..providers.process import fabric
from . import facts, host_access, hosts

LOOK_S = 30.0
_MOST = 64


def examine(bed: BedSpec) -> dict[str, tuple[Requirement, ...]]:
    """Per host what was found, in the order of the inventory."""
    known = bed.hosts or _this_machine(bed)
    with ThreadPoolExecutor(max_workers=min(len(known), _MOST)) as pool:
        results = list(pool.map(lambda host: _look(bed, host), known))
    looked = [result for result in results if isinstance(result, diagnosis.HostSurvey)]
    doubled = diagnosis.find_same_machine(looked)
    requirements: dict[str, tuple[Requirement, ...]] = {}
    for host, result in zip(known, results, strict=True):
        if isinstance(result, Requirement):
            requirements[host.name] = (result,)
        else:
            extra = (doubled[host.name],) if host.name in doubled else ()
            requirements[host.name] = (*extra, *diagnosis.diagnose(bed, result, _here(bed, host)), *_fabric(bed))
    return requirements


def _this_machine(bed: BedSpec) -> tuple[HostSpec, ...]:
    return tuple(HostSpec(name=name) for name in dict.fromkeys(node.host for node in bed.nodes))


def _fabric(bed: BedSpec) -> tuple[Requirement, ...]:
    """Whether this machine can have the bed's emulated fabric."""
    if not bed.fabric:
        return ()
    problems = fabric.lacking(bed.link)
    fine = Requirement(name="fabric", outcome="ok", text=links.text(bed.link))
    lacks = (Requirement(name="fabric", outcome="fail", text=problem.text, fix=problem.fix) for problem in problems)
    return tuple(lacks) or (fine,)


def _look(bed: BedSpec, host: HostSpec) -> diagnosis.HostSurvey | Requirement:
    try:
        with host_access.reach(host) as way:
            return _read(bed, host, way)
    except host_access.UnreachableError as error:
        name = "ssh" if host.connection == "ssh" else "host"
        return Requirement(name=name, outcome="fail", text=str(error))


def _read(bed: BedSpec, host: HostSpec, way: host_access.Reach) -> diagnosis.HostSurvey | Requirement:
    interpreter = sys.executable if host.connection == "local" else host.python
    answer = way.run([interpreter, "-"], _script(bed, host), LOOK_S)
    if answer.code:
        advised = error_explanations.explain_host(replace(host, python=interpreter), answer.errors, reachable=True)
        return Requirement(name="python", outcome="fail", text=advised.text, fix=advised.fix)
    try:
        host_facts: Mapping[str, Any] = json.loads(answer.output[answer.output.index("{") :])
    except ValueError:
        text = "what it prints is no answer; does its shell print something at log-in?"
        return Requirement(name="python", outcome="fail", text=text, fix=f"try: ssh {host.address} true")
    offset_s, within = _clock(way)
    return diagnosis.HostSurvey(host=host, facts=host_facts, clock_offset_s=offset_s, clock_uncertainty_s=within)


def _clock(way: host_access.Reach) -> tuple[float, float]:
    """How far the host's clock is ahead of this one, and the half of the time that asking took."""
    before = time.time()
    answer = way.run(["date", "+%s.%N"], "", LOOK_S)
    after = time.time()
    try:
        host_time = float(answer.output)
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
    return f"{Path(facts.__file__).read_text()}\nmain({json.dumps(json.dumps(request))})\n"


def _image(bed: BedSpec, host: HostSpec) -> str:
    nodes = (node for node in bed.nodes if node.host == host.name and node.container)
    return next((node.container.image for node in nodes if node.container), "")


def _here(bed: BedSpec, host: HostSpec) -> str | None:
    name = _image(bed, host)
    return hosts.local_image(name) if name and host.connection == "ssh" else None
