"""A bed of containers on a host behind SSH, with nothing but one connection between: up, a lost node, a cut, down."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.store import index

from ..patience import until
from . import sshd
from .conftest import ccbed

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(sshd.lacking()), reason=sshd.lacking())]


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A bed that is up: its server, its inventory, the directory on its host, and where runs go."""

    server: sshd.Sshd
    state: Path
    inventory: Path
    hostdir: Path
    runs: Path

    def ccbed(self, *args: str) -> tuple[int, str]:
        return ccbed(self.state, *args)

    def run(self, *args: str) -> tuple[int, str]:
        return self.ccbed("run", "dp-ring", "--bed", "faraway", "--nodes", "2", "--runs-dir", str(self.runs), *args)


@pytest.fixture(scope="module")
def remote(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    directory = tmp_path_factory.mktemp("remote")
    with sshd.running(directory / "sshd") as server:
        inventory = directory / "faraway.yml"
        inventory.write_text(_inventory(server, directory / "host", image))
        remote = Remote(
            server=server,
            state=directory / "state" / "ccbed",
            inventory=inventory,
            hostdir=directory / "host",
            runs=directory / "runs",
        )
        code, output = remote.ccbed("up", str(inventory))
        assert code == 0, output
        yield remote
        code, output = remote.ccbed("down", "faraway", "--force")
        assert code == 0, output
        # nothing is left on the host but its stamp and its record of acts
        until(lambda: not (server.sessions() or _left(remote.hostdir)), lambda: _left(remote.hostdir))


def _inventory(server: sshd.Sshd, hostdir: Path, image: str) -> str:
    host = server.host()
    return f"""
all:
  hosts:
    h1:
  vars:
    ansible_host: {host.address}
    ansible_port: {host.port}
    ansible_user: {host.user}
    ansible_ssh_private_key_file: {host.key}
    ansible_python_interpreter: /usr/bin/python3
    ccbed_known_hosts: {host.known_hosts}
    ccbed_bed: faraway
    ccbed_provider: docker
    ccbed_start_timeout: 10m
    ccbed_image: {image}
    ccbed_nodes: 2
    ccbed_network: host
    ccbed_address: 127.0.0.1
    ccbed_interface: lo
    ccbed_workdir: {hostdir}
"""


def _left(hostdir: Path) -> list[str]:
    """That the host was prepared stays known, until ``down --reset``, and so does what was done there."""
    return [path.name for path in hostdir.glob("*") if path.name not in ("prepared.json", "audit.jsonl")]


def test_up_again_changes_nothing(remote: Remote) -> None:
    code, output = remote.ccbed("up", str(remote.inventory))
    assert (code, "nothing to change" in output) == (0, True), output


def test_a_host_that_lost_its_stamp_is_prepared_again_once(remote: Remote) -> None:
    (remote.hostdir / "prepared.json").unlink()
    _, planned = remote.ccbed("up", str(remote.inventory), "--dry-run")
    assert "prepare: h1 (the stamp of its preparation is missing" in planned
    code, output = remote.ccbed("up", str(remote.inventory))
    assert code == 0, output
    assert "prepare     h1 ready" in output
    assert "nothing to change, 2 of 2 ready" in output
    assert "prepare" not in remote.ccbed("up", str(remote.inventory))[1]


def test_a_lost_node_comes_back_while_the_connection_is_cut(remote: Remote) -> None:
    """The run's whole life long, whatever serves the connection is killed once its programs are a second or two old: on a
    busy machine a connection takes longer than that to be there. Each time they may be older, so that one is there."""
    over = threading.Event()
    cuts = []

    def cut() -> None:
        old, pause_s = set[int](), 1.25
        while not over.wait(pause_s):
            programs = set(remote.server.programs())
            if is_old := bool(programs & old):
                cuts.append(remote.server.cut())
                pause_s *= 1.2
            old = set() if is_old else programs

    thread = threading.Thread(target=cut)
    thread.start()
    code, output = remote.run("--fail-node", "1", "--epochs", "6", "--step-min-ms", "50")
    over.set()
    thread.join()
    assert code == 0, output
    assert sum(cuts) >= 2, "it was cut"
    assert "ranks equal to the reference run" in output
    assert remote.ccbed("up", str(remote.inventory))[1].count("nothing to change") == 1


def test_each_node_has_its_own_log(remote: Remote) -> None:
    code, output = remote.run()
    assert code == 0, output
    bundle = (remote.runs / "latest").resolve()
    for log in sorted((remote.hostdir / "nodes").glob(f"*/runs/{bundle.name}/i*/rank-*.log")):
        node, name = log.relative_to(remote.hostdir / "nodes").parts[0], "/".join(log.parts[-2:])
        assert (bundle / "nodes" / node / name).read_bytes() == log.read_bytes()
    assert {path.name for path in (bundle / "nodes").iterdir()} == {"n0", "n1"}
    key = remote.hostdir / "keeper/events.key"
    code, output = remote.ccbed("bundle", "verify", str(remote.runs / "latest"), "--bed-key", str(key))
    assert code == 0 and "the key of its bed signed the evidence" in output, output


def test_exec_shows_everything_and_the_code(remote: Remote) -> None:
    code, output = remote.ccbed("exec", "faraway/n1", "--", "sh", "-c", "seq 1 20000; exit 3")
    assert (code, output.split()) == (3, [str(number) for number in range(1, 20001)])


def test_a_project_travels_without_the_large_files_of_earlier_runs_and_every_run_begins_afresh(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        ".git/HEAD": "x", ".gitignore": "*.log\n", "config.json": "{}", "noise.log": "x", "jobs/near.py": "X = 7\n",
        "jobs/train.py": "import os, near; print('sees:', sorted(os.listdir()), near.X, os.getcwd()); open(os.environ['RANK'], 'w')\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with (tmp_path / "old.bin").open("wb") as file:
        file.truncate(20 * 1024**2)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        args = ("--bed", "faraway", "--nodes", "1", "--runs-dir", str(remote.runs))
        code, output = remote.ccbed("run", "jobs/train.py", *args)
        assert code == 0, output
        assert "does not travel to the nodes: old.bin (20 MiB)" in output
        directory = index.resolve("latest", remote.runs)
        log = next(directory.glob("nodes/*/*/rank-0.log")).read_text()
        assert f"sees: ['config.json', 'jobs'] 7 {remote.hostdir}/shared/{directory.name}/work" in log


def test_a_renamed_host_keeps_its_keeper_and_the_plan_lists_each_node_once(remote: Remote) -> None:
    original = remote.inventory.read_text()
    remote.inventory.write_text(original.replace("    h1:\n", "    web1:\n"))
    plan = remote.ccbed("plan", str(remote.inventory))[1]
    assert "2 to create, 0 to change, 2 to remove" in plan and "no longer in the inventory" not in plan, plan
    for text in (remote.inventory.read_text(), original):
        remote.inventory.write_text(text)
        code, output = remote.ccbed("up", str(remote.inventory))
        assert (code, "2 of 2 ready" in output) == (0, True), output
        code, output = remote.ccbed("up", str(remote.inventory))
        assert (code, "nothing to change, 2 of 2 ready" in output) == (0, True), output
