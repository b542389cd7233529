"""Leftovers of runs and beds on hosts, and their mirrors on this machine: listing and removal."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..model.bed import BedSpec, HostSpec
from ..node.hostlink import bed_files
from . import sites

#: A large tree on a slow disk takes its time, in seconds.
PRUNE_S = 120.0


def listed(bed: BedSpec, site: sites.Site, directory: str) -> list[dict[str, Any]]:
    """``directory``: that of the bed on the host. See ``node/hostlink/bed_files.py``. Raises OSError, ValueError or RuntimeError."""
    entries: list[dict[str, Any]] = site.call("leftovers", PRUNE_S, hostdir=directory, shared_dir=bed.shared_dir)
    return entries


def remove(bed: BedSpec, host: HostSpec, site: sites.Site, entries: Sequence[tuple[str, str, str]]) -> None:
    """Remove the entries (host, kind, name) of this host."""
    chosen = [[kind, name] for owner, kind, name in entries if owner == host.name]
    if chosen:
        about = {"hostdir": bed.directory_on(host.name), "shared_dir": bed.shared_dir, "entries": chosen}
        site.call("remove_leftovers", PRUNE_S, **about)


def remove_mirrored(bed: BedSpec, entries: Sequence[tuple[str, str, str]]) -> None:
    """Remove the mirrored files of nodes on other hosts."""
    if bed.workdir not in {bed.directory_on(host.name) for host in bed.hosts}:
        bed_files.remove_prunable(bed.workdir, f"{bed.workdir}/shared", [(kind, name) for _, kind, name in entries])


def remove_mirrors(bed: BedSpec, hosts: Sequence[HostSpec]) -> None:
    """Remove the mirrored files of the keepers of some hosts."""
    for host in hosts:
        shutil.rmtree(Path(bed.workdir) / sites.keeper_directory(host), ignore_errors=True)


def remove_bed(bed: BedSpec) -> None:
    """Remove the bed's files on this machine, except those of a host."""
    bed_files.remove_bed_files(bed.workdir, map(sites.keeper_directory, bed.hosts))
