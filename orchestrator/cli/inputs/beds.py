"""From what the user named to a bed: an inventory's, the only one that is up, or one of several by name."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from ...model import codec, vaulted
from ...model.bed import BedSpec
from ...model.errors import InfrastructureError, UsageError
from ...store import beds, shipped
from . import session as sessions

EXAMPLE = "inventories/local.yml"


def wanted(session: sessions.Session, inventory: Path) -> BedSpec:
    """The bed that an inventory asks for. Raises UsageError with every mistake in it."""
    from ...core.bed import assemble
    from ...prepare import inventory as inventories

    inventory = shipped.find(inventory)
    if not inventory.exists():
        raise UsageError(f"{inventory}: cannot be read: No such file or directory", hint=f"ccbed up {EXAMPLE}")
    try:
        found = inventories.read(inventory, session.vault)
        session.terminal.secrets.update(found.secrets)
        spec = assemble.assemble(
            found.inventory,
            agent=session.agent(),
            state=str(session.state),
            home=str(Path.home()),
            recorded=lambda name: read(session, name),
        )
    except UsageError as error:
        problems = dict.fromkeys(vaulted.hide(problem, tuple(session.terminal.secrets)) for problem in error.problems)
        hint = error.hint or f"correct {inventory}, then: ccbed up {inventory}"
        raise UsageError(*problems, hint=hint) from None
    return replace(assemble.placed(spec, str(inventory.absolute())), vault=found.secrets)


def read(session: sessions.Session, name: str) -> BedSpec | None:
    """The bed file of ``name``; what of it came out of a vault is not printed by this process."""
    found = beds.read(session.state, name)
    if found is not None:
        session.terminal.secrets.update(found.vault)
    return found


def choose(session: sessions.Session, name: str | None) -> BedSpec:
    """The bed ``name``, or the only one. Raises UsageError, exit 3, when none is up or several are."""
    known = beds.names(session.state)
    if name is not None:
        found = read(session, name)
        if found is None:
            raise UsageError(f"no bed {name} is up; up: {', '.join(known) or 'none'}", hint=f"ccbed up {EXAMPLE}")
        if vaulted.is_masked(codec.plain(found)):
            raise InfrastructureError(
                f"bed {name}: the values out of its inventory's vault are lost",
                hint=f"ccbed up {shown(found.inventory)}",
            )
        return found
    if not known:
        raise UsageError("no bed is up", hint=f"ccbed up {EXAMPLE}")
    if len(known) > 1:
        raise UsageError(f"several beds are up: {', '.join(known)}", hint=f"--bed {known[0]}")
    return choose(session, known[0])


def refuse_open(session: sessions.Session, bed: BedSpec, what: str) -> None:
    """Raises UsageError, naming the run, while one is open on the bed; one that has ended is closed first."""
    settle(session, bed)
    found = beds.open_run(Path(bed.workdir), time.time())
    if found is None:
        return
    if found.driver:
        way = f"wait for it: ccbed watch {shown(found.directory)}"
    else:
        way = f"ccbed resume {shown(found.directory)}, or give it up: ccbed heal {bed.name}"
    raise UsageError(
        f"bed {bed.name} has an open run, {found.run}; {what} would end it", hint=f"{way}; or --force to end it now"
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


def run_shown(directory: Path) -> str:
    """A run's directory: as ``…/latest`` while it is that."""
    latest = directory.parent / "latest"
    return shown(latest if latest.resolve() == directory.resolve() else directory)


def shown(path: str | Path) -> str:
    """A path as short as it can be told: relative to the current directory where it is below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
