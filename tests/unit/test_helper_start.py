"""The command that starts a helper on a host, on a disk that has no room for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from orchestrator.providers import archive
from orchestrator.providers.ssh import helper_start

#: Less than the largest file of the archive.
ROOM = 4096


def test_what_cannot_be_unpacked_is_run_packed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    content = archive.build()
    bed = tmp_path / "bed"
    (bed / "agent").mkdir(parents=True)
    packed = bed / "agent" / f"agent-{archive.agent_hash()}.pyz"
    packed.write_bytes(content)
    (bed / "mine").touch()  # the helper leaves a bed's directory that is in use as it is
    argv = helper_start.command(sys.executable, str(bed), "b", [], content)
    small = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM}, {ROOM})); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", small, *argv], stdin=subprocess.DEVNULL, capture_output=True, timeout=900
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert [path.name for path in (bed / "agent").iterdir()] == [packed.name]
