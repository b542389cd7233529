"""The keeper's door, as the program that comes over SSH finds it: a helper at once, or one that it starts itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.files import label
from orchestrator.node.hostlink import fork_server
from orchestrator.node.oslayer import processes
from orchestrator.providers import archive
from orchestrator.providers.ssh import helper_start

from ..patience import until

pytestmark = pytest.mark.e2e

HASH = "0123456789ab"
#: What a keeper is here: a process of one thread that runs a fork server.
KEEPER = """
import signal, sys
from pathlib import Path
from orchestrator.node.hostlink.fork_server import ForkServer
from orchestrator.node.oslayer.event_loop import Loop
loop = Loop()
server = ForkServer(loop, Path(sys.argv[1]), sys.argv[2])
loop.on_signal(signal.SIGCHLD, server.reap)
server.open()
print("open", flush=True)
loop.run()
"""


@pytest.fixture
def hostdir(tmp_path: Path) -> Path:
    for part in (label.KEEPER_DIR, "agent", "nodes/n0"):
        (tmp_path / part).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def keeper(hostdir: Path) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, processes.TAG_VARIABLE: processes.pad_tag("a-mark")}
    with subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(hostdir), HASH], stdout=subprocess.PIPE, env=env, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "open\n"
        yield process
        process.kill()


class Caller:
    """What SSH starts on a host, on pipes."""

    def __init__(self, hostdir: Path, archive_hash: str = HASH) -> None:
        argv = helper_start.command(sys.executable, str(hostdir), "b", [str(hostdir / "shared")], b"")
        argv[argv.index(archive.agent_hash())] = archive_hash
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def hears(self) -> dict[str, Any]:
        assert self.process.stdout
        document: dict[str, Any] = json.loads(self.process.stdout.readline())
        return document

    def leaves(self) -> int:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(600)


def greeted(hostdir: Path) -> tuple[Caller, int]:
    """A caller whom the keeper answered in time, and the pid of its helper; on a busy machine it starts a helper itself."""
    for _ in range(20):
        caller = Caller(hostdir)
        if "hello" in (heard := caller.hears()):
            return caller, int(heard["hello"]["pid"])
        caller.leaves()
    raise AssertionError("the host agent answered nobody")


def children(of: subprocess.Popen[str]) -> list[processes.Process]:
    return processes.descendants(of.pid)


def test_who_comes_gets_a_fork_of_the_keeper_that_leaves_with_them(
    hostdir: Path, keeper: subprocess.Popen[str]
) -> None:
    caller, helper = greeted(hostdir)
    until(lambda: [child.pid for child in children(keeper)] == [helper])
    process = processes.find(helper)
    assert process is not None and process.session == helper
    assert caller.leaves() == 0
    until(lambda: processes.find(helper) is None)
    assert keeper.poll() is None


def test_a_helper_belongs_to_no_node_and_outlives_the_keeper(hostdir: Path, keeper: subprocess.Popen[str]) -> None:
    caller, helper = greeted(hostdir)
    assert processes.tag_in_environment(Path(f"/proc/{helper}/environ").read_bytes()) == ""
    keeper.kill()
    keeper.wait()
    assert caller.process.stdin
    caller.process.stdin.write(b'{"id": 1, "do": "list", "path": "%s", "size": 0}\n' % str(hostdir / "nodes").encode())
    caller.process.stdin.flush()
    while "id" not in (output := caller.hears()):
        pass
    assert "ok" in output
    assert caller.leaves() == 0


def test_the_end_of_a_helper_is_the_end_for_who_called_it(hostdir: Path, keeper: subprocess.Popen[str]) -> None:
    caller, helper = greeted(hostdir)
    os.kill(helper, signal.SIGKILL)
    assert caller.process.wait(600) == 0
    caller.leaves()


@pytest.mark.parametrize("state", ["another version", "stopped", "dead", "none"])
def test_without_a_door_that_opens_the_helper_is_started(
    hostdir: Path, keeper: subprocess.Popen[str], state: str
) -> None:
    """It asks for the archive that it lacks."""
    if state == "stopped":
        os.kill(keeper.pid, signal.SIGSTOP)
    elif state == "dead":
        keeper.kill()
        keeper.wait()
    elif state == "none":
        (hostdir / label.KEEPER_DIR / fork_server.SOCKET).unlink()
    caller = Caller(hostdir, "f" * 12 if state == "another version" else HASH)
    assert caller.hears() == {"wanted": 0}
    if state == "stopped":
        os.kill(keeper.pid, signal.SIGCONT)
        later, helper = greeted(hostdir)
        until(lambda: [child.pid for child in children(keeper)] == [helper])  # nobody is on the other side of the first
        later.leaves()
    caller.leaves()
