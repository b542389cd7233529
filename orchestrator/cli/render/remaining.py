"""What runs of a bed after an `up` that failed, and the command that removes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...model.bed import BedSpec, BedStatus
from ...model.errors import CcbedError, Interrupted, UnreachedError
from ...model.provider import Provider

_RUNNING = ("warm", "busy", "paused", "starting")


@contextmanager
def told(bed: BedSpec, provider: Provider) -> Iterator[None]:
    """An error comes with what is left running; Ctrl-C too."""
    try:
        yield
    except CcbedError as error:
        error.hint = "\n".join(filter(None, (error.hint, text(bed, provider))))
        raise
    except KeyboardInterrupt:
        raise Interrupted(
            "up was interrupted", hint=f"to go on: ccbed up {bed.inventory}\n{text(bed, provider)}"
        ) from None


def text(bed: BedSpec, provider: Provider) -> str:
    """One line: what is left running, or that nothing is, or that it is not known."""
    away = ""
    try:
        status = provider.observe(bed)
    except UnreachedError as error:
        status, away = error.status, f"; not known of {', '.join(error.hosts)}"
    except (CcbedError, OSError, ValueError, RuntimeError):
        return f"what is left running is not known; to remove it: ccbed down {bed.name}"
    running = _running(status)
    if not running and not away:
        return f"nothing of bed {bed.name} is left running"
    return f"left running: {', '.join(running) or 'nothing'}{away}; to remove it: ccbed down {bed.name}"


def _running(status: BedStatus) -> list[str]:
    keepers = [f"the keeper of {host.name}" for host in status.hosts if host.keeper_pid]
    if not status.hosts and status.keeper_pid:
        keepers = ["the keeper"]
    nodes = [node.name for node in status.nodes if node.state in _RUNNING]
    return [*keepers, *([f"{'nodes' if len(nodes) > 1 else 'node'} {' '.join(nodes)}"] if nodes else [])]
