"""The keeper outside of all hosts: it starts on this machine when a fault disables a host, and lives until the bed ends."""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from pathlib import Path

from ..model.bed import BedSpec
from ..model.errors import InfrastructureError
from ..model.event import Command, command
from ..model.events import FaultAct, FaultHeal
from ..node.files import inbox, label
from ..node.keeper import keeper_start, lease_records
from ..system import plain_files
from . import archive
from .bed_commands import BED

#: The directory of the external keeper below that of the bed.
DIRECTORY = f"{label.OUTSIDE}/{label.KEEPER_DIR}"


def is_for_external_keeper(order: Command) -> bool:
    """Return whether the command injects or heals a fault that disables the host's own keeper."""
    if order.kind not in (FaultAct, FaultHeal) or order.data.act is None:
        return False
    return bool(order.data.act.outside)


def perform(bed: BedSpec, run: str, command: Command) -> None:
    """Send it a command; starts it first if necessary, which takes a fifth of a second."""
    for part in ("inbox", "done"):
        (_keeper(bed) / part).mkdir(mode=0o700, parents=True, exist_ok=True)
    path, digest = archive.write(Path(bed.workdir) / "agent")
    try:
        keeper_start.ensure_keeper(
            _directory(bed), bed.name, path, digest, sys.executable, ("--backend", label.OUTSIDE)
        )
    except RuntimeError as error:
        first, *rest = str(error).splitlines()
        raise InfrastructureError(f"bed {bed.name}: outside of its hosts {first}", *rest) from None
    inbox.post_command(_keeper(bed), run, command)


def leases(bed: BedSpec) -> tuple[str, ...]:
    return lease_records.describe_leases(_keeper(bed) / "leases")


def end(bed: BedSpec) -> tuple[int, ...]:
    """Heal the faults that it still holds, end it and remove its files; its pid, if it was alive.

    Raises InfrastructureError, and leaves it alive, if a fault cannot be healed.
    """
    _heal_all(bed)
    pid = keeper_start.end_keeper(_keeper(bed)) if label.lock_holder(_keeper(bed)) else 0
    shutil.rmtree(_directory(bed), ignore_errors=True)
    return (pid,) if pid else ()


def _heal_all(bed: BedSpec) -> None:
    orders = [
        command(
            FaultHeal(id=lease.id, fault=lease.fault, act=lease.act), f"down-{secrets.token_hex(3)}/{lease.id}",
            node=lease.node, deadline_s=lease.act.limit_s + 5.0,
        )
        for lease in lease_records.Leases(_keeper(bed) / "leases").all()
    ]  # fmt: skip
    for order in orders:
        perform(bed, BED, order)
    problems = {order.key: _problem(bed, order) for order in orders}
    failed = [
        f"{order.data.fault} on the host of {order.node}: {problems[order.key]}"
        for order in orders
        if problems[order.key]
    ]
    if failed:
        raise InfrastructureError(*failed, hint="restore the host by hand, then retry")


def _problem(bed: BedSpec, order: Command) -> str:
    """Wait for the outcome; why the fault is not healed, or empty."""
    path = _keeper(bed) / "done" / inbox.command_file_name(BED, order.key)
    until = time.monotonic() + order.deadline_s
    while not (outcome := plain_files.read_json(path)):
        if time.monotonic() > until:
            return f"no response within {order.deadline_s:g} s"
        time.sleep(0.01)
    return "" if outcome["type"] == "ok" else str(outcome["value"].get("reason", "not undone"))


def _directory(bed: BedSpec) -> Path:
    return Path(bed.workdir) / label.OUTSIDE


def _keeper(bed: BedSpec) -> Path:
    return Path(bed.workdir) / DIRECTORY
