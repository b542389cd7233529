"""Prepare the hosts on which recovery may start a node in place of a lost one."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.bed import selection
from ..model.bed import BedSpec
from ..model.errors import InfrastructureError
from ..model.provider import Provider


def prepare(provider: Provider, bed: BedSpec) -> Mapping[str, str]:
    """Prepare all hosts with room at once, or, where that fails, one by one; host -> why that failed.

    `up` has prepared them, but this process does not know how: the requests for their containers are made anew.
    """
    rooms = [host for host in selection.host_names(bed) if any(node.host == host for node in bed.replacements)]
    if not rooms or not _problem(provider, bed, rooms):
        return {}
    problems = {host: _problem(provider, bed, [host]) for host in rooms}
    return {host: f"cannot be prepared: {problem}" for host, problem in problems.items() if problem}


def _problem(provider: Provider, bed: BedSpec, hosts: list[str]) -> str:
    try:
        provider.prepare(selection.reaching(bed, hosts))
    except InfrastructureError as error:
        return "; ".join(error.problems)
    return ""
