"""Show beds, nodes, faults in force or left over, and open runs."""

from __future__ import annotations

from ...app import beds, status
from ...app.places import age, short_path
from ...app.requests import OneBedRequest
from ...app.status import Status
from ...core.bed import links
from ...model import requirements
from ..inputs import options
from ..inputs.terminal_session import Session
from ..render import bed_view
from ..render.terminal import Terminal


@options.shows(OneBedRequest, status.run)
def command(session: Session, beds_up: tuple[Status, ...]) -> None:
    """Show beds, nodes, faults in force or left over, and open runs."""
    if not beds_up:
        session.terminal.line(f"no bed is up     try: ccbed up {beds.EXAMPLE}")
    for bed in beds_up:
        _show(session.terminal, bed)


def _show(terminal: Terminal, bed: Status) -> None:
    spec, run = bed.spec, bed.run
    up = f"ccbed up {short_path(spec.inventory)}" if spec.inventory else ""
    if spec.nodes:
        origin = f"{bed_view.count(spec, bed.status)} · from {short_path(spec.inventory)}"
    else:
        origin = f"its bed file is missing; end it with: ccbed down {spec.name}"
    terminal.line(f"bed {spec.name} · {spec.provider} provider · {bed_view.keeper(spec, bed.status)} · {origin}")
    if spec.fabric:
        addresses = f"{spec.nodes[0].address} to {spec.nodes[-1].address}"
        terminal.line(
            f"  fabric    a network namespace per node, {addresses} on one switch; links {links.bed_text(spec)}"
        )
    if bed.status.job:
        terminal.line(f"  job       {bed.status.job}")
    bed_view.table(terminal, spec, bed.status, bed.drained)
    terminal.lines(f"  reboot    {text}" for text in bed_view.after_reboot(bed.status))
    for host, drain in bed.drained.items():
        terminal.line(f"  host {host} {drain.text}     end it: {beds.end_command(spec, host)}")
    terminal.lines(f"  host {host}: {reason}" for host, reason in bed.unreached.items())
    terminal.lines(
        f"  host {departed.host.name}: no longer in the inventory; to end its processes: {up}"
        for departed in spec.departed
    )
    for lease in bed.status.leases:
        terminal.line(f"  fault     {lease}: a fault that is not undone yet     undo it: ccbed heal {spec.name}")
    if run:
        state, next_step = status.describe_run(spec, run)
        terminal.line(f"  open run  {run.run}, for {age(run.age_s)}, {state}     {next_step}")
    if bed.leftovers and bed.leftovers["count"]:
        left = f"{bed.leftovers['count']} of ended runs, {requirements.size_text(bed.leftovers['size_bytes'])}"
        terminal.line(f"  leftovers {left}     see: ccbed prune --dry-run")
    terminal.lines(f"  {text}: {up}" for text in bed.outdated)
    if spec.nodes and not run and not bed.changes.empty:
        terminal.line(f"  differs from the last `up`: {up}")
        bed_view.plan(terminal, spec, bed.changes)
