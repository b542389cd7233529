"""Check what each host of an inventory lacks; changes nothing."""

from __future__ import annotations

from ...app.hosts import doctor
from ...app.hosts.doctor import Examined
from ...app.places import short_list, short_path
from ...app.requests import PlanRequest
from ...core.spec import values
from ...model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS
from ..inputs import options
from ..inputs.session import Session


@options.verb(PlanRequest, options.vault)
def command(session: Session, request: PlanRequest) -> int:
    """Check what each host of INVENTORY lacks, and print the fix. Changes nothing."""
    examined = doctor.run(session, request)
    if session.is_json:
        session.terminal.json(examined.document)
    else:
        _show(session, examined)
    return EXIT_INFRASTRUCTURE if examined.lacking else EXIT_PASS


def _show(session: Session, examined: Examined) -> None:
    """Print a line per host with the checks that pass; then a line per finding, with its hosts and the fix."""
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
    count = values.count(len(findings), "host")
    if lacking := examined.lacking:
        terminal.line(f"bed {bed.name}: something is lacking on {len(lacking)} of {count} ({session.took()})")
    else:
        next_step = f"ccbed up {short_path(bed.inventory)}"
        terminal.line(f"bed {bed.name}: nothing is lacking on {count} ({session.took()})     next: {next_step}")
