"""What the command line says of a bed that has changed, of a full disk, and of SIGTERM."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from .test_cli import Desk, ccbed

__all__ = ["ccbed"]


def test_status_says_what_has_changed_since_up(ccbed: Desk) -> None:
    assert ccbed("up", "local.yml") == 0
    assert ccbed("status") == 0 and "inventory" not in ccbed.out and "version" not in ccbed.out
    later = time.time() + 60
    os.utime("local.yml", (later, later))
    assert ccbed("status") == 0 and "its inventory was written after the last `up`: ccbed up local.yml" in ccbed.out
    now = time.time() - 60
    os.utime("local.yml", (now, now))
    file = ccbed.root / "state" / "beds" / "local.json"
    os.utime(file, (now - 60, now - 60))
    assert ccbed("status") == 0 and "was written after" in ccbed.out
    assert ccbed("up", "local.yml") == 0 and ccbed("status") == 0 and "was written after" not in ccbed.out
    Path("local.yml").unlink()
    file.write_text(file.read_text().replace("a" * 64, "b" * 64))
    assert ccbed("status") == 0 and "its inventory is gone; `ccbed down local` needs none" in ccbed.out
    assert "its agents are of another version of ccbed (bbbbbb, not aaaaaa): ccbed up local.yml" in ccbed.out


def test_a_full_disk_names_the_file_and_a_directory_of_state_the_way_out(
    ccbed: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.replace

    def full(path: Path, target: Path) -> Path:
        if target.name == "local.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, target)

    monkeypatch.setattr(Path, "replace", full)
    assert ccbed("up", "local.yml") == 4
    assert f"{ccbed.root}/state/beds/local.json: No space left on device" in ccbed.err, ccbed.err
    assert "set XDG_STATE_HOME" in ccbed.err


def test_a_termination_of_up_is_an_interruption(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    monkeypatch.setattr(ccbed.bed, "prepare", terminated)
    assert ccbed("up", "local.yml") == 130
    assert "up was interrupted" in ccbed.err and "to continue: ccbed up local.yml" in ccbed.err
