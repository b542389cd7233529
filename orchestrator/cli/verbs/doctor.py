"""What each host of an inventory lacks, with the fix; all hosts at once, reading only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...model import codec
from ...model.bed import BedSpec
from ...model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS
from ..inputs import beds, options, prepared_hosts
from ..inputs.session import Session

if TYPE_CHECKING:
    from ...model.requirements import Requirement


@options.command()
@click.argument("inventory", type=click.Path(path_type=Path))
@options.as_json
@options.vault
@click.pass_obj
def command(session: Session, inventory: Path, as_json: bool) -> int:
    """What each host of INVENTORY lacks, with the fix. Changes nothing."""
    from ...prepare import host_checks

    bed = beds.wanted(session, inventory)
    session.terminal.status(f"  looking at {len(bed.hosts) or 1} hosts …")
    found = host_checks.examine(bed)
    lacking = [host for host, findings in found.items() if any(one.outcome == "fail" for one in findings)]
    if as_json:
        session.terminal.json(_json(bed, found, lacking))
    else:
        _tell(session, bed, found, lacking)
    return EXIT_INFRASTRUCTURE if lacking else EXIT_PASS


def _json(bed: BedSpec, found: Mapping[str, Sequence[Requirement]], lacking: Sequence[str]) -> dict[str, object]:
    hosts = {host: [codec.plain(one) for one in findings] for host, findings in found.items()}
    return {"bed": bed.name, "provider": bed.provider, "lacking": list(lacking), "hosts": hosts}


def _tell(session: Session, bed: BedSpec, found: Mapping[str, Sequence[Requirement]], lacking: Sequence[str]) -> None:
    """A line per host with what is fine; then a line per finding, with its hosts and the fix."""
    terminal = session.terminal
    width = max(len(host) for host in found)
    for host, findings in found.items():
        fine = " · ".join(f"{one.name} {one.text}" for one in findings if one.outcome == "ok")
        terminal.line(f"  {host:<{width}}  {fine or '-'}")
    for finding, hosts in _grouped(found):
        word = "lacks" if finding.outcome == "fail" else "note"
        fix = f"; fix: {finding.fix}" if finding.fix else ""
        head = terminal.style(f"  {word:<5}", "bad" if finding.outcome == "fail" else "warn")
        terminal.line(f"{head}  {prepared_hosts.names(hosts)}: {finding.name}: {finding.text}{fix}")
    if lacking:
        count = f"{len(lacking)} of {_hosts(len(found))}"
        terminal.line(f"bed {bed.name}: something is lacking on {count} ({session.took()})")
    else:
        again = f"ccbed up {beds.shown(bed.inventory)}"
        terminal.line(
            f"bed {bed.name}: nothing is lacking on {_hosts(len(found))} ({session.took()})     next: {again}"
        )


def _grouped(found: Mapping[str, Sequence[Requirement]]) -> list[tuple[Requirement, list[str]]]:
    """What is not fine with the hosts it is found on: what lacks first."""
    grouped: dict[Requirement, list[str]] = {}
    for host, findings in found.items():
        for one in findings:
            if one.outcome != "ok":
                grouped.setdefault(one, []).append(host)
    return sorted(grouped.items(), key=lambda item: item[0].outcome)


def _hosts(count: int) -> str:
    return f"{count} host" if count == 1 else f"{count} hosts"
