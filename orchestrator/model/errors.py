"""Errors of the user and failures of the infrastructure, with position, reason and next step."""

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

#: Errors that concern a file, even if they do not name it.
_ON_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
#: Errors of the machine, not of ccbed.
_MACHINE = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO,
    errno.ENOTDIR,
)  # fmt: skip
#: CPython's text where the limit of processes is reached; a fork raises BlockingIOError there.
_NO_THREAD = "can't start new thread"
_PROCESSES = "end other processes of this user, or raise its limit (ulimit -u, pids.max of the cgroup); then try again"
#: Errors of a path that cannot exist.
_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


class CcbedError(Exception):
    """An error that is shown without a traceback: a line per problem, then what to do next."""

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
    """Some hosts of a bed cannot be observed. ``status``: of the other hosts; ``hosts``: host -> reason; ``reached``: hosts
    among them that respond, but lack the requirements of an observation."""

    def __init__(
        self, *problems: str, status: BedStatus, hosts: Mapping[str, str], reached: Sequence[str] = (), hint: str = ""
    ) -> None:
        super().__init__(*problems, hint=hint)
        self.status = status
        self.hosts = hosts
        self.reached = reached


class UnpreparedError(InfrastructureError):
    """``hosts`` are not prepared; the problems are those of all hosts."""

    def __init__(self, *problems: str, hosts: Sequence[str], hint: str = "") -> None:
        super().__init__(*problems, hint=hint)
        self.hosts = hosts


class OwnedError(InfrastructureError):
    """Another orchestrator owns or drives the bed on the hosts: nothing was started or ended."""

    exit_code = EXIT_USAGE


class Interrupted(CcbedError):
    """The user interrupted the run; the hint is the command that resumes it."""

    exit_code = EXIT_INTERRUPTED


class KeeperGoneError(OSError):
    """The keeper that would execute a command has exited, and is not restarted during a run.

    ``with_bed``: the whole bed has ended, for the reason that the error states.
    """

    def __init__(self, reason: str, *, with_bed: bool = False) -> None:
        super().__init__(reason)
        self.with_bed = with_bed


def on_disk(error: OSError) -> bool:
    """Return whether the error concerns a local file; else it concerns the connection to another machine."""
    return error.filename is not None or error.errno in _ON_DISK


def explain(error: Exception) -> CcbedError | None:
    """The error that says what is wrong with a path or with this machine; None for any other error."""
    if isinstance(error, BlockingIOError) or (type(error) is RuntimeError and str(error) == _NO_THREAD):
        return InfrastructureError("no more processes or threads can start on this machine", hint=_PROCESSES)
    if not isinstance(error, OSError):
        return None
    if error.errno in _PATH:
        return UsageError(f"{str(error.filename)[:100]}: {error.strerror}", hint="ccbed --help")
    if error.errno in _MACHINE:
        text = f"{error.filename or 'a file of ccbed'}: {error.strerror}"
        return InfrastructureError(text, hint="free space or give access, then try again")
    return None
