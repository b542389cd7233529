"""End a bed: every process of it, and its directories; verified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ...core.bed import departed
from ...model.bed import BedSpec, BedStatus, NodeStatus
from ...model.errors import InfrastructureError, OwnedError, UnreachedError, UsageError
from ...model.provider import Provider
from ...store import beds as store
from ..inputs import beds, options, prepared_hosts
from ..inputs.session import Session


@options.command()
@click.argument("bed", required=False, metavar="[BED|INVENTORY]")
@click.option("--all", "every", is_flag=True, help="Every bed that is up.")
@options.force("Also while a run is open on the bed, or if it is another's.")
@click.option("--abandon", is_flag=True, help="Give up hosts that are not reached: what is on them stays.")
@click.option(
    "--reset", is_flag=True, help="Also remove what preparation left on the hosts: the bed's directory there."
)
@options.vault
@click.pass_obj
def command(session: Session, bed: str | None, every: bool, force: bool, abandon: bool, reset: bool) -> int:
    """End a bed: every process of it, and its directories; verified. Runs keep their bundles."""
    found = _meant(session, bed, every)
    if not found:
        session.terminal.line(f"bed {bed}: not up, nothing to end" if bed else "no bed is up, nothing to end")
    for spec in found:
        _end(session, spec, force, abandon)
    for spec in found or (_reset_alone(session, bed) if reset else ()):
        if reset:
            prepared_hosts.reset(session, spec, force=force)
    return 0


def _reset_alone(session: Session, bed: str | None) -> tuple[BedSpec, ...]:
    """The bed of an inventory that is not up: its hosts may still have been prepared."""
    return (beds.wanted(session, Path(bed)),) if bed and Path(bed).exists() else ()


def _meant(session: Session, bed: str | None, every: bool) -> tuple[BedSpec, ...]:
    known = (*store.names(session.state), *store.strays(session.state))
    if bed is None:
        if len(known) > 1 and not every:
            raise UsageError(f"several beds are up: {', '.join(known)}", hint=f"ccbed down {known[0]}, or --all")
        return tuple(_of(session, name) for name in known)
    if bed in known:
        return (_of(session, bed),)
    if not bed.endswith((".yml", ".yaml")) and not Path(bed).is_file():
        if known:
            raise UsageError(f"no bed {bed} is up; up: {', '.join(known)}", hint=f"ccbed down {known[0]}")
        return ()
    return _of_inventory(session, Path(bed))


def _of_inventory(session: Session, inventory: Path) -> tuple[BedSpec, ...]:
    """The bed of an inventory, as it was brought up where that is known: a changed file leaves nothing behind."""
    wanted = beds.wanted(session, inventory)
    known = beds.read(session, wanted.name)
    return (known or wanted,) if known or Path(wanted.workdir).exists() else ()


def _of(session: Session, name: str) -> BedSpec:
    return beds.read(session, name) or store.remembered(session.state, name)


def _end(session: Session, bed: BedSpec, force: bool, abandon: bool) -> None:
    bed = departed.whole(bed)
    with store.lock(session.state, bed.name):
        if not force:
            beds.refuse_open(session, bed, "down")
        provider = session.provider(bed)
        status, away = _found(provider, bed, force)
        nodes = [node for node in status.nodes if node.pid]
        ended = _retire(session, provider, bed, away, abandon)
        store.forget(session.state, bed.name)
    text = (
        f"{_counted(len(ended))} ended{_who(nodes, len(ended), len(bed.hosts))}, none is left"
        if ended
        else "no process was left"
    )
    session.terminal.line(f"bed {bed.name} is down: {text} ({session.took()})")


def _counted(number: int) -> str:
    return f"{number} process" if number == 1 else f"{number} processes"


def _who(nodes: list[NodeStatus], ended: int, hosts: int = 1) -> str:
    """``(n0 n1 n2 and the keeper)``: what else of the bed ran is its keeper, or keepers and what was run in its nodes."""
    names = sorted((node.name for node in nodes), key=lambda name: (len(name), name))
    more = ended - len(nodes)
    keepers = "the keeper" if more == 1 else f"{more} keepers" if more == hosts else f"{more} more"
    rest = [keepers] if more > 0 else []
    return f" ({' and '.join([part for part in [' '.join(names)] if part] + rest)})" if names else ""


def _found(provider: Provider, bed: BedSpec, force: bool) -> tuple[BedStatus, tuple[str, ...]]:
    """What is there, and the hosts that do not say it. Raises OwnedError for what is another's, unless forced."""
    try:
        return provider.observe(bed), ()
    except UnreachedError as error:
        return error.status, tuple(error.hosts)
    except OwnedError:
        if not force:
            raise
        return BedStatus(name=bed.name), ()


def _retire(
    session: Session, provider: Provider, bed: BedSpec, away: tuple[str, ...], abandon: bool
) -> tuple[int, ...]:
    """End what can be ended: the pids. Raises InfrastructureError with what is left, and the way to end that."""
    if abandon and away:
        session.terminal.warn(f"{prepared_hosts.names(away)}: given up; what of bed {bed.name} is there stays")
        hosts = tuple(host for host in bed.hosts if host.name not in away)
        bed = replace(bed, hosts=hosts, nodes=tuple(node for node in bed.nodes if node.host not in away))
    try:
        ended = provider.retire(bed)
    except InfrastructureError as error:
        rest = [host.name for host in bed.hosts if host.name not in away]
        done = f"{prepared_hosts.names(rest)} ended; " if away and rest else ""
        ways = f"{done}once it is back: ccbed down {bed.name}     or give up what is on it: ccbed down {bed.name} --abandon"
        raise InfrastructureError(*error.problems, hint=ways if away else f"again: ccbed down {bed.name}") from error
    left = [node for node in provider.observe(bed).nodes if node.state not in ("absent", "dead")]
    if left:
        lines = (f"node {node.name} is still {node.state} (pid {node.pid})" for node in left)
        raise InfrastructureError(*lines, hint=f"again: ccbed down {bed.name}")
    return ended
