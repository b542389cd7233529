"""The processes that are left on a bed after a change of it failed or was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..model.bed import BedSpec, BedStatus
from ..model.errors import CcbedError, Interrupted, UnreachedError
from ..model.provider import Provider
from .places import short_list, short_path

_RUNNING = ("warm", "busy", "paused", "starting")


@contextmanager
def reporting(bed: BedSpec, provider: Provider) -> Iterator[None]:
    """Add what is left running to an error, and to Ctrl-C."""
    try:
        yield
    except CcbedError as error:
        error.hint = "\n".join(filter(None, (error.hint, describe(bed, provider))))
        raise
    except KeyboardInterrupt:
        raise Interrupted(
            "up was interrupted",
            hint=f"to continue: ccbed up {short_path(bed.inventory)}\n{describe(bed, provider)}",
        ) from None


def describe(bed: BedSpec, provider: Provider) -> str:
    """Return one line: what is left running, nothing, or not known; of a part of a bed, on its hosts."""
    unknown = ""
    names = [host.name for host in bed.hosts]
    is_part = bool(names) and any(node.host not in names for node in bed.nodes)
    where = f" on {short_list(names)}" if is_part else ""
    remove = f"to remove it: ccbed down {bed.name}" + (f" --limit {','.join(names)}" if is_part else "")
    try:
        status = provider.observe(bed)
    except UnreachedError as error:
        status, unknown = error.status, f"; not known of {', '.join(error.hosts)}"
    except (CcbedError, OSError, ValueError, RuntimeError):
        return f"left running{where}: not known; {remove}"
    running = _running(status)
    if not running and not unknown:
        return f"nothing of bed {bed.name} is left running{where}"
    return f"left running{where}: {', '.join(running) or 'nothing'}{unknown}; {remove}"


def _running(status: BedStatus) -> list[str]:
    keepers = [f"the keeper of {host.name}" for host in status.hosts if host.keeper_pid]
    if not status.hosts and status.keeper_pid:
        keepers = ["the keeper"]
    nodes = [node.name for node in status.nodes if node.state in _RUNNING]
    jobs = [f"job {status.job}"] if status.job and not status.nodes else []
    return [*jobs, *keepers, *([f"{'nodes' if len(nodes) > 1 else 'node'} {' '.join(nodes)}"] if nodes else [])]
