"""Check what each host of an inventory lacks; changes nothing."""

from __future__ import annotations

from ...app.hosts import doctor
from ...app.hosts.doctor import Examined
from ...app.places import short_list, short_path
from ...app.requests import PlanRequest
from ...core.spec import written_values
from ..inputs import options
from ..inputs.terminal_session import Session


@options.shows(PlanRequest, doctor.run, options.vault)
def command(session: Session, examined: Examined) -> None:
    """Check what each host of INVENTORY lacks, and print the fix. Changes nothing."""
    terminal, bed, findings = session.terminal, examined.bed, examined.findings
    width = max(len(host) for host in findings)
    for host, listed in findings.items():
        passed = " · ".join(f"{finding.name} {finding.text}" for finding in listed if finding.outcome == "ok")
        terminal.line(f"  {host:<{width}}  {passed or '-'}")
    for finding, hosts in examined.grouped:
        word = "lacks" if finding.outcome == "fail" else "note"
        fix = f"; fix: {finding.fix}" if finding.fix else ""
        head = terminal.style(f"  {word:<5}", "bad" if finding.outcome == "fail" else "warn")
        terminal.line(f"{head}  {short_list(hosts)}: {finding.name}: {finding.text}{fix}")
    count = written_values.count(len(findings), "host")
    if lacking := examined.lacking:
        terminal.line(f"bed {bed.name}: something is lacking on {len(lacking)} of {count} ({session.took()})")
    else:
        next_step = f"ccbed up {short_path(bed.inventory)}"
        terminal.line(f"bed {bed.name}: nothing is lacking on {count} ({session.took()})     next: {next_step}")
