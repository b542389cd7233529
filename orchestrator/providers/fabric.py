"""What an emulated fabric needs of this machine: tried before anything is made; and the hosts file of its nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..agent import fabric as making
from ..core import fabric
from ..model.bed import BedSpec, LinkSpec

_HOSTS = Path("/etc/hosts")
_TRY_S = 10.0


def write_hosts(bed: BedSpec) -> None:
    """In place: nodes that run see the new lines at once, for they have mounted the file itself."""
    try:
        own = _HOSTS.read_text(errors="replace").splitlines()
    except OSError:
        own = []
    text = fabric.hosts({node.name: node.address for node in bed.nodes}, own).encode()
    fd = os.open(Path(bed.workdir) / making.HOSTS, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
    finally:
        os.close(fd)
