"""Place no node on a host: `up`, runs and nights leave it alone until it is undrained."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import click

from ...app import audited
from ...app.places import short_list
from ...model.bed import BedSpec
from ...model.errors import UsageError
from ...store import beds as store
from .. import host_drains
from ..inputs import options
from ..inputs.session import Session


@options.command()
@host_drains.arguments
@click.option("--reason", required=True, help="The reason, which `status` and `up` print.")
@options.as_json
@click.pass_obj
def command(
    session: Session, hosts: tuple[str, ...], bed: str | None, inventory: Path | None, reason: str, as_json: bool
) -> int:
    """Place no node on HOST: `up`, `run` and `nightly` leave it alone until `ccbed undrain HOST`.

    Nodes that are there stay as they are, and get no rank; `ccbed down --limit HOST` ends containers. The host may be switched off.
    """
    from ...nightly.culprits import quarantine

    reason = " ".join(reason.split())
    if not reason:
        raise UsageError("--reason is empty; `status` and `up` print it", hint='--reason "a fan is replaced"')
    spec, chosen = host_drains.choose(session, bed, inventory, hosts)
    new = quarantine.Drain(by=audited.user(), since=audited.now(), reason=reason)
    added = quarantine.drain(Path(spec.workdir), chosen, new)
    host_drains.record(session, spec, f"drain: {reason}", added)
    for host, drain in quarantine.read(Path(spec.workdir)).drained.items():
        if host in chosen and host not in added:
            session.terminal.warn(f"host {host} {drain.text}; it stays so")
    if as_json:
        session.terminal.json({"bed": spec.name, "drained": list(added)})
        return 0
    run = store.open_run(Path(spec.workdir))
    if added and run:
        session.terminal.warn(
            f"run {run.run} is open on bed {spec.name}, and keeps its ranks; the drain holds for runs that begin later "
            "(repeats of --repeat and of a cell of a night keep their nodes)"
        )
    if added:
        session.terminal.line(f"drained {short_list(added)}: {_effect(session, spec, added)}")
    return 0


def _effect(session: Session, bed: BedSpec, hosts: Collection[str]) -> str:
    """Which nodes get no rank, and the command that ends them; only containers of a bed that is up end by host."""
    nodes = [node.name for node in bed.nodes if node.host in hosts]
    if not nodes:
        return "no node is there"
    ends = bed.provider == "docker" and bed.name in store.names(session.state)
    end = f"     end the nodes there: ccbed down {bed.name} --limit {','.join(hosts)}" if ends else ""
    return f"{short_list(nodes)} {'get' if len(nodes) > 1 else 'gets'} no rank{end}"
