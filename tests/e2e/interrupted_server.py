"""A test that another one interrupts (``test_pytest_interrupted.py``): it brings several things up, reports them, and waits."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.oslayer import processes

from .. import undo
from . import sshd

#: The directory of the test that interrupts.
VARIABLE = "INTERRUPTED_RUN"
#: Without the variables of its parent, in a session of its own, and nobody's child.
_DETACHED = "setsid sleep 600 <&- >&- 2>&- &"
_LIMIT_S = 300.0


def report(moment: str, **facts: object) -> None:
    """A file with the name of the moment, this process, and what it brought up."""
    file = Path(os.environ[VARIABLE], moment)
    file.with_suffix(".partial").write_text(json.dumps({"pid": os.getpid(), **facts}))
    file.with_suffix(".partial").rename(file)


def wait() -> None:
    end = time.monotonic() + _LIMIT_S
    while time.monotonic() < end:
        time.sleep(0.1)
    pytest.fail("nothing interrupted this test")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[sshd.Sshd]:
    """On it runs a program that outlives its connection."""
    with sshd.running(tmp_path / "sshd") as running:
        assert not sshd.run(running.host(), "sh", "-c", _DETACHED).code
        yield running
        report("down")
        if "slow" in os.environ[VARIABLE]:
            wait()


@contextlib.contextmanager
def mounted(directory: Path) -> Iterator[None]:
    """Only root can mount."""
    is_root = os.geteuid() == 0
    if is_root:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)
    yield
    if is_root:
        subprocess.run(["umount", directory], check=True)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A program in a namespace of its own."""
    kinds = ["--net"] if os.geteuid() == 0 else ["--user", "--net"]
    with subprocess.Popen(["unshare", *kinds, "sleep", "600"], start_new_session=True) as holder:
        own = Path("/proc/self/ns/net").readlink()
        while (name := Path(f"/proc/{holder.pid}/ns/net").readlink()) == own:
            time.sleep(0.005)
        yield str(name)
        processes.kill([process for process in [processes.find(holder.pid)] if process])


def test_a_server(namespace: str, server: sshd.Sshd) -> None:
    with undo.temporary_directory("ccbed-interrupted-") as directory, mounted(directory):
        report("server", directory=str(directory), namespace=namespace, port=server.port)
        wait()
