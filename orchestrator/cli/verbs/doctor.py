"""Check what each host of an inventory lacks; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...app import beds
from ...app.places import short_list, short_path
from ...core.bed import selection
from ...model import codec
from ...model.bed import BedSpec
from ...model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, UsageError
from ..inputs import options
from ..inputs.session import Session

if TYPE_CHECKING:
    from ...model.requirements import Requirement


@options.command()
@options.inventory
@options.limit
@options.as_json
@options.vault
@click.pass_obj
def command(session: Session, inventory: Path, limit: tuple[str, ...], as_json: bool) -> int:
    """Check what each host of INVENTORY lacks, and print the fix. Changes nothing."""
    from ...prepare import host_checks

    bed = beds.wanted(session, inventory)
    if bed.provider == "slurm":
        raise UsageError(
            f"bed {bed.name}: doctor inspects hosts by SSH, and Slurm chooses the nodes when the job starts",
            hint=f"`ccbed plan {short_path(bed.inventory)}` shows the job; `ccbed up` checks its nodes",
        )
    hosts = beds.limited_hosts(bed, limit) if limit else beds.acting_hosts(session, bed)
    if not limit and not as_json:
        beds.mention_drains(session, bed)
    part = selection.on_hosts(bed, hosts)
    session.terminal.status(f"  checking {len(part.hosts) or 1} hosts …")
    findings = host_checks.examine(part)
    lacking = [host for host, listed in findings.items() if any(finding.outcome == "fail" for finding in listed)]
    if as_json:
        session.terminal.json(_json(bed, findings, lacking))
    else:
        _show(session, bed, findings, lacking)
    return EXIT_INFRASTRUCTURE if lacking else EXIT_PASS


def _json(bed: BedSpec, findings: Mapping[str, Sequence[Requirement]], lacking: Sequence[str]) -> dict[str, object]:
    hosts = {host: [codec.plain(finding) for finding in listed] for host, listed in findings.items()}
    return {"bed": bed.name, "provider": bed.provider, "lacking": list(lacking), "hosts": hosts}


def _show(
    session: Session, bed: BedSpec, findings: Mapping[str, Sequence[Requirement]], lacking: Sequence[str]
) -> None:
    """Print a line per host with the checks that pass; then a line per finding, with its hosts and the fix."""
    terminal = session.terminal
    width = max(len(host) for host in findings)
    for host, listed in findings.items():
        passed = " · ".join(f"{finding.name} {finding.text}" for finding in listed if finding.outcome == "ok")
        terminal.line(f"  {host:<{width}}  {passed or '-'}")
    for finding, hosts in _grouped(findings):
        word = "lacks" if finding.outcome == "fail" else "note"
        fix = f"; fix: {finding.fix}" if finding.fix else ""
        head = terminal.style(f"  {word:<5}", "bad" if finding.outcome == "fail" else "warn")
        terminal.line(f"{head}  {short_list(hosts)}: {finding.name}: {finding.text}{fix}")
    if lacking:
        count = f"{len(lacking)} of {_hosts(len(findings))}"
        terminal.line(f"bed {bed.name}: something is lacking on {count} ({session.took()})")
    else:
        command = f"ccbed up {short_path(bed.inventory)}"
        terminal.line(
            f"bed {bed.name}: nothing is lacking on {_hosts(len(findings))} ({session.took()})     next: {command}"
        )


def _grouped(findings: Mapping[str, Sequence[Requirement]]) -> list[tuple[Requirement, list[str]]]:
    """Group the findings that are not ok by host: what lacks comes first."""
    grouped: dict[Requirement, list[str]] = {}
    for host, listed in findings.items():
        for finding in listed:
            if finding.outcome != "ok":
                grouped.setdefault(finding, []).append(host)
    return sorted(grouped.items(), key=lambda item: item[0].outcome)


def _hosts(count: int) -> str:
    return f"{count} host" if count == 1 else f"{count} hosts"
