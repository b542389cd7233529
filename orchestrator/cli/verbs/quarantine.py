"""Show the nodes in quarantine, which two recorded nights accused, or release one."""

from __future__ import annotations

from pathlib import Path

import click

from ...app import audited, beds
from ...model import codec
from ..inputs import options
from ..inputs.session import Session


@options.command()
@options.bed
@click.option("--release", metavar="NODE", help="Take NODE out of quarantine: it was repaired or replaced.")
@options.as_json
@click.pass_obj
def command(session: Session, bed: str | None, release: str | None, as_json: bool) -> int:
    """Show the nodes in quarantine, with the night and the reason, or release one.

    Two recorded nights of ten that accuse a node put it into quarantine. `run`, `nightly` and `accept` then give it no rank, and a
    warm spare takes its slot; sweeps and the probes of a night still measure it. --include-quarantined gives it ranks all the same.
    """
    from ...nightly.culprits import quarantine

    spec = beds.choose(session, bed)
    workdir, present = Path(spec.workdir), beds.identify_nodes(session, spec)
    if release:
        quarantine.release(workdir, release, present)
        hosts = {node.name: node.host for node in spec.nodes}
        audited.record(
            session,
            spec,
            f"quarantine: release {release}",
            {hosts.get(release) or release.partition("@")[2] or audited.UNKNOWN: audited.OK},
        )
        if as_json:
            session.terminal.json({"released": release})
        else:
            session.terminal.line(f"{release} is released; earlier nights no longer count against it")
        return 0
    nodes = quarantine.read(workdir).nodes(present)
    if as_json:
        session.terminal.json(
            [{**codec.plain(entry.last), "node": node, "since": entry.since.night} for node, entry in nodes.items()]
        )
    elif not nodes:
        session.terminal.line("no node is in quarantine")
    else:
        rows = [
            (node, entry.last.host, entry.since.night, entry.last.night, entry.last.reason)
            for node, entry in nodes.items()
        ]
        session.terminal.table(("NODE", "HOST", "SINCE", "LAST NIGHT", "REASON"), rows)
    return 0
