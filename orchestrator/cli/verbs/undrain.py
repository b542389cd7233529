"""Place nodes on a drained host again."""

from __future__ import annotations

from pathlib import Path

import click

from ...app.places import short_list, short_path
from .. import host_drains
from ..inputs import options
from ..inputs.session import Session


@options.command()
@host_drains.arguments
@options.as_json
@click.pass_obj
def command(session: Session, hosts: tuple[str, ...], bed: str | None, inventory: Path | None, as_json: bool) -> int:
    """End the drain of HOST: the next `up` starts its nodes."""
    from ...nightly.culprits import quarantine

    spec, chosen = host_drains.choose(session, bed, inventory, hosts, with_drained=True)
    ended = quarantine.undrain(Path(spec.workdir), chosen)
    host_drains.record(session, spec, "undrain", chosen)
    if as_json:
        session.terminal.json({"bed": spec.name, "undrained": list(chosen)})
        return 0
    for host, drain in ended.items():
        session.terminal.line(f"  host {host} was drained since {drain.since} by {drain.by}: {drain.reason}")
    session.terminal.line(f"undrained {short_list(chosen)}     start its nodes: ccbed up {short_path(spec.inventory)}")
    return 0
