"""A site whose host is a helper behind pipes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.model.bed import BedSpec, HostSpec
from orchestrator.providers.ssh import helper_start
from orchestrator.providers.ssh.remote_host import RemoteSite

from .piped import serving


class _Connection:
    alive = True

    def close(self) -> None:
        """The pipes are closed by whoever made them."""


@contextmanager
def site(
    hostdir: Path, mirror: Path, patch: pytest.MonkeyPatch, now: Callable[[], float] = time.monotonic
) -> Iterator[RemoteSite]:
    """Not opened yet."""
    host = HostSpec(name="h1", connection="ssh")
    bed = BedSpec(
        name="b", provider="docker", nodes=(), inventory="", workdir=str(mirror), shared_dir=str(hostdir / "shared"),
        agent="", hosts=(host,), hostdir=str(hostdir),
    )  # fmt: skip
    with serving(hostdir) as pipes:
        patch.setattr(helper_start, "start", lambda *_: helper_start.Started(channel=pipes, hello={}, rest=b""))
        made = RemoteSite(bed, host, lambda host, deadline_s: _Connection(), now)
        yield made
        made.close()
