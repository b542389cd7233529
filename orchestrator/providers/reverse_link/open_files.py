"""The limit of open files of this process: a connection to each host needs one."""

from __future__ import annotations

import resource

from ...model.errors import InfrastructureError

#: What a command has open besides its connections: files of the bed, its libraries, programs that it runs.
OTHERS = 256
#: While a host connects again, its old connection may still be open.
PER_HOST = 2


def allow(hosts: int) -> None:
    """Raise the soft limit, if it is too low. Raises InfrastructureError if the hard limit is."""
    needed = PER_HOST * hosts + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard) or needed <= hard:
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    raise InfrastructureError(
        f"this process may open {hard} files, and the connections to {hosts} hosts need {needed}",
        hint=f"raise the hard limit of open files (ulimit -Hn) to {needed}",
    )
