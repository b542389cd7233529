"""Find the bed that the user means: of an inventory, the only one that is up, or one of several by name."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...model import codec, vaulted
from ...model.bed import BedSpec
from ...model.errors import InfrastructureError, UsageError
from ...model.plan import Placement
from ...store import beds, shipped
from ..render.terminal import short_path
from . import session as sessions

if TYPE_CHECKING:
    from ...nightly.identity import Nodes

EXAMPLE = "inventories/local.yml"


def wanted(session: sessions.Session, inventory: Path) -> BedSpec:
    """Return the bed that an inventory describes. Raises UsageError with every error in it."""
    from ...core.bed import nodes_from_inventory
    from ...prepare import inventory as inventories

    inventory = shipped.find(inventory)
    if not inventory.exists():
        raise UsageError(f"{inventory}: cannot be read: No such file or directory", hint=f"ccbed up {EXAMPLE}")
    try:
        document = inventories.read(inventory, session.vault)
        session.terminal.secrets.update(document.secrets)
        spec = nodes_from_inventory.assemble_bed(
            document.inventory,
            agent=session.agent(),
            state=str(session.state),
            home=str(Path.home()),
            recorded=lambda name: read(session, name),
            owner=lambda: sessions.owner_id(session.state),
        )
    except UsageError as error:
        problems = dict.fromkeys(vaulted.hide(problem, tuple(session.terminal.secrets)) for problem in error.problems)
        hint = error.hint or f"correct {inventory}, then: ccbed up {inventory}"
        raise UsageError(*problems, hint=hint) from None
    return replace(nodes_from_inventory.with_inventory_path(spec, str(inventory.absolute())), vault=document.secrets)


def read(session: sessions.Session, name: str) -> BedSpec | None:
    """Read the bed file of ``name``; this process does not print its values from a vault."""
    bed = beds.read(session.state, name)
    if bed is not None:
        session.terminal.secrets.update(bed.vault)
    return bed


def choose(session: sessions.Session, name: str | None) -> BedSpec:
    """Return the bed ``name``, or the only bed. Raises UsageError when no bed is up, or several are."""
    known = beds.names(session.state)
    if name is not None:
        bed = read(session, name)
        if bed is None:
            raise UsageError(f"no bed {name} is up; up: {', '.join(known) or 'none'}", hint=f"ccbed up {EXAMPLE}")
        if vaulted.is_masked(codec.plain(bed)):
            raise InfrastructureError(
                f"bed {name}: the values from its inventory's vault are lost",
                hint=f"ccbed up {short_path(bed.inventory)}",
            )
        return bed
    if not known:
        raise UsageError("no bed is up", hint=f"ccbed up {EXAMPLE}")
    if len(known) > 1:
        raise UsageError(f"several beds are up: {', '.join(known)}", hint=f"--bed {known[0]}")
    return choose(session, known[0])


def identify_nodes(session: sessions.Session, bed: BedSpec) -> Nodes:
    """The nodes with the names that their hosts have outside of the bed. Raises InfrastructureError."""
    from ...nightly.identity import Nodes

    machines = session.provider(bed).machines(bed)
    return Nodes({node.name: machines.get(node.host, node.host) for node in bed.nodes})


def mention_quarantine(session: sessions.Session, bed: BedSpec) -> None:
    """Warn of the nodes that two recorded nights accused."""
    from ...nightly.culprits import quarantine

    for line in quarantine.lines(Path(bed.workdir), identify_nodes(session, bed)):
        session.terminal.warn(line)


def placement(session: sessions.Session, bed: BedSpec, *, include_quarantined: bool) -> Placement:
    """What the run must not use: the nodes in quarantine. Raises InfrastructureError where they are not known."""
    from ...nightly.culprits import quarantine

    if not include_quarantined:
        return Placement(quarantined=quarantine.reasons(Path(bed.workdir), identify_nodes(session, bed)))
    mention_quarantine(session, bed)
    return Placement()


def refuse_open(session: sessions.Session, bed: BedSpec, what: str) -> None:
    """Raises UsageError with the name of the night or run while one is open on the bed. A run that has ended is closed first."""
    beds.refuse_night(Path(bed.workdir))
    settle(session, bed)
    run = beds.open_run(Path(bed.workdir), time.time())
    if run is None:
        return
    if run.driver:
        hint = f"wait for it: ccbed watch {short_path(run.directory)}"
    else:
        hint = f"ccbed resume {short_path(run.directory)}, or abandon it: ccbed heal {bed.name}"
    raise UsageError(
        f"bed {bed.name} has an open run, {run.run}; {what} would end it", hint=f"{hint}; or --force to end it now"
    )


def settle(session: sessions.Session, bed: BedSpec) -> None:
    """Remove or judge the open run of an orchestrator that died, where the run cannot continue; print what was done."""
    workdir = Path(bed.workdir)
    run = beds.open_run(workdir)
    if run is None or run.driver:
        return
    from ...run import abandon

    with beds.run_lock(workdir, run.run, Path(run.directory)):
        abandon.settle(bed, session.provider(bed), session.catalogue, session.terminal.warn)
