"""Forty hosts with real keepers that connect back from this machine: none of them has a thread of the orchestrator."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ..bench.keeper_bed import keeper_bed

pytestmark = pytest.mark.e2e

HOSTS = 40
#: Two of the listener: its event loop, the renewal of its row. One keeps up the connections.
OWN_THREADS = 3


def test_no_host_has_a_thread_and_all_perform_and_are_gathered(tmp_path: Path) -> None:
    before = threading.active_count()
    with keeper_bed(tmp_path, HOSTS) as bed:
        bed.provider.connect(bed.spec)
        bed.provider.prepare(bed.spec)
        bed.command_all()
        bed.write_files()
        bed.gather(tmp_path / "bundle")
        until = time.monotonic() + 600
        while threading.active_count() - before > OWN_THREADS:
            assert time.monotonic() < until, [thread.name for thread in threading.enumerate()]
            time.sleep(0.01)
        assert bed.provider.observe(bed.spec, memory=False).hosts, "the connections live"
        ended = bed.provider.retire(bed.spec)
        assert len(ended) == HOSTS, "one host agent of each host"
