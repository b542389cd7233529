"""Find the bed whose hosts are drained: one that is up, or that of an inventory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ..app import audited, beds
from ..core.bed import selection
from ..model.bed import BedSpec
from ..model.errors import UsageError
from ..store import beds as store
from .inputs import completions, options
from .inputs.session import Session


def arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add HOST…, --bed and --inventory."""
    inventory = click.option(
        "-i", "--inventory", type=click.Path(path_type=Path), help="The inventory of the bed, if it is not up."
    )
    hosts = click.argument("hosts", nargs=-1, required=True, metavar="HOST…", shell_complete=completions.hosts)
    return hosts(options.bed(inventory(function)))


def choose(
    session: Session, bed: str | None, inventory: Path | None, hosts: Sequence[str], *, with_drained: bool = False
) -> tuple[BedSpec, tuple[str, ...]]:
    """Return the bed and the hosts, in its order. ``with_drained``: also drained hosts that left it. Raises UsageError."""
    from ..nightly.culprits import quarantine

    if bed and inventory:
        raise UsageError("--bed and --inventory exclude each other; give one of them")
    if not (bed or inventory or store.names(session.state)):
        raise UsageError("no bed is up", hint="-i INVENTORY, with the inventory of the bed")
    spec = beds.wanted(session, inventory) if inventory else beds.choose(session, bed)
    if spec.provider == "slurm":
        raise UsageError(
            f"bed {spec.name}: Slurm chooses the nodes of its job, and drains them itself",
            hint="scontrol update NodeName=… State=DRAIN Reason=…, or ccbed_exclude in the inventory",
        )
    drained = tuple(quarantine.read(Path(spec.workdir)).drained) if with_drained else ()
    return spec, selection.require_hosts(spec, hosts, others=drained)


def record(session: Session, bed: BedSpec, act: str, hosts: Sequence[str]) -> None:
    """Add a line for each host to the record of acts."""
    audited.record(session, bed, act, dict.fromkeys(hosts, audited.OK))
