"""Mistakes of the user and failures of the infrastructure, as values with place, reason and next step."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bed import BedStatus

EXIT_PASS = 0
EXIT_FINDING = 1
EXIT_UNKNOWN = 2
EXIT_USAGE = 3
EXIT_INFRASTRUCTURE = 4
EXIT_INTERRUPTED = 130

#: The first of these that applies is the exit code.
PRECEDENCE = (EXIT_INTERRUPTED, EXIT_USAGE, EXIT_INFRASTRUCTURE, EXIT_FINDING, EXIT_UNKNOWN, EXIT_PASS)

#: Of errors that name no file, these are of one all the same.
_ON_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)


class CcbedError(Exception):
    """An error that is shown without a traceback: every problem on a line of its own, then what to do next."""

    exit_code = EXIT_USAGE

    def __init__(self, *problems: str, hint: str = "") -> None:
        super().__init__("\n".join(problems))
        self.problems: Sequence[str] = problems
        self.hint = hint


class UsageError(CcbedError):
    """Usage, inventory or trial is wrong: nothing was started."""


class InfrastructureError(CcbedError):
    """The bed is not up or not held, a node or the journal failed."""

    exit_code = EXIT_INFRASTRUCTURE


class UnreachedError(InfrastructureError):
    """Not every host of a bed says what it has. ``status``: what the others say; ``hosts``: why, for each of the rest;
    ``reached``: those of the rest that answered, but lack what it takes to say more."""

    def __init__(
        self, *problems: str, status: BedStatus, hosts: Mapping[str, str], reached: Sequence[str] = (), hint: str = ""
    ) -> None:
        super().__init__(*problems, hint=hint)
        self.status = status
        self.hosts = hosts
        self.reached = reached


class UnpreparedError(InfrastructureError):
    """``hosts`` lack what preparation brings; the problems are those of all hosts."""

    def __init__(self, *problems: str, hosts: Sequence[str], hint: str = "") -> None:
        super().__init__(*problems, hint=hint)
        self.hosts = hosts


class OwnedError(InfrastructureError):
    """The bed on the hosts is another orchestrator's, or held by one: nothing was started or ended."""

    exit_code = EXIT_USAGE


class Interrupted(CcbedError):
    """The user ended it; the hint is the command that goes on."""

    exit_code = EXIT_INTERRUPTED


class KeeperGoneError(OSError):
    """Whoever would carry a command out has ended, and nobody brings it back while a run is on."""


def on_disk(error: OSError) -> bool:
    """Is it of a file of this machine? Else it is of the way to another one."""
    return error.filename is not None or error.errno in _ON_DISK
