"""Preflight: what a trial requires of a bed, tried before it starts; each problem carries its fix."""

from __future__ import annotations

from dataclasses import replace

from ...model.bed import BedSpec, BedStatus
from ...model.provider import Prober
from ...model.requirements import Requirement
from . import this_host
from .checked import Checked, failure, summary

__all__ = ["UNCHECKED", "Checked", "check", "examine", "failure", "summary"]

#: Nothing was checked.
UNCHECKED = Checked(requirements=())


def check(bed: BedSpec, status: BedStatus, prober: Prober | None = None) -> tuple[Requirement, ...]:
    return examine(bed, status, prober).requirements


def examine(bed: BedSpec, status: BedStatus, prober: Prober | None = None) -> Checked:
    """All requirements that were checked, and the measurements. ``prober``: of the hosts; a bed of this machine needs none.

    Takes about a millisecond on this machine, some tenths of a second on several hosts.
    """
    if prober:
        from . import many_hosts  # 12 modules that a bed of processes does not load

        checked = many_hosts.examine(bed, status, prober)
        if not bed.fabric:
            return checked
        return replace(
            checked, requirements=(*checked.requirements, this_host.shm()), free_memory=this_host.free_memory(bed)
        )
    if bed.hosts:
        return UNCHECKED
    return Checked(requirements=this_host.check(bed, status), free_memory=this_host.free_memory(bed))
