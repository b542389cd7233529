"""The playbooks on this machine, with an engine that only answers: what they do, and that a second run does nothing."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import re
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.core.inventory import variables
from orchestrator.model import requirements
from orchestrator.node.oslayer import processes
from orchestrator.prepare import facts, playbook_runs
from orchestrator.store import shipped

pytestmark = pytest.mark.e2e
PLAYBOOKS = shipped.folder("playbooks")
IMAGE = "ccbed/cpu:2.13.0"
ANSWERS: dict[str, Any] = {
    "/version": {"Version": "24.0.7", "ApiVersion": "1.43"},
    "/info": {"DockerRootDir": "/tmp", "Runtimes": {}},
    f"/images/{IMAGE}/json": {"Id": "sha256:aa"},
}


PROXY = "http://me:it's%20me@proxy.example:3128"
#: apt-get that finds the lock held by another package manager when it is called first, and notes every call with its proxy.
BUSY = """#!/bin/sh
[ -e {log} ] || { echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (unattended-upgr)" >&2; code=100; }
echo "$https_proxy $*" >> {log}
exit ${code:-0}
"""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(ANSWERS.get(self.path, {"message": "no such thing"})).encode()
        self.send_response(200 if self.path in ANSWERS else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return

    def address_string(self) -> str:
        return "unix"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "engine.sock"
    server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield path
    server.shutdown()
    server.server_close()
    thread.join()


def inventory(tmp_path: Path, engine: Path, hosts: dict[str, dict[str, Any]]) -> Path:
    shared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ccbed_engine": str(engine),
        "ccbed_rdma": False,
    }
    file = tmp_path / "lab.yml"
    file.write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
    return file


def play(
    file: Path, playbook: str, *hosts: str, **variables: Any
) -> tuple[playbook_runs.PlaybookResult, list[playbook_runs.Step]]:
    steps: list[playbook_runs.Step] = []
    given = {"ccbed_hostdir": str(file.parent / "bed"), **variables}
    wanted = playbook_runs.PlaybookRun(
        playbook=playbook, inventory=str(file), hosts=hosts, variables=given, deadline_s=600
    )
    return playbook_runs.run(wanted, steps.append), steps


def test_a_host_is_prepared_once_and_stamped_and_a_second_run_changes_nothing(tmp_path: Path, engine: Path) -> None:
    file = inventory(tmp_path, engine, {"h1": {}})
    more = {"ccbed_image_ids": {IMAGE: "sha256:aa"}, "ccbed_fingerprints": {"h1": "f00d"}}
    first, steps = play(file, "hosts", "h1", **more)
    assert first.done == ("h1",), first.failed
    assert first.facts["h1"]["engine"]["version"] == "24.0.7"
    assert ("directory", "changed") in [(step.task, step.state) for step in steps]
    stamp = json.loads((tmp_path / "bed" / "prepared.json").read_text())
    machine = facts._text("/etc/machine-id")
    assert stamp == {"bed": "lab", "fingerprint": "f00d", "machine": machine, "python": sys.executable}
    assert (tmp_path / "bed").stat().st_mode & 0o7777 == 0o700
    second, _ = play(file, "hosts", "h1", **more)
    assert (second.done, second.changed) == (("h1",), 0)


def test_a_directory_with_a_command_in_its_name_is_only_a_name(tmp_path: Path, engine: Path) -> None:
    """By hand the playbooks take any name. Ansible and the host's own shell must not run what is in it."""
    file = inventory(tmp_path, engine, {"h1": {}})
    hostile = str(tmp_path / f"bed $(touch {tmp_path.name}) `touch {tmp_path.name}` ';")
    more = {"ccbed_image_ids": {IMAGE: "sha256:aa"}, "ccbed_fingerprints": {"h1": "f00d"}, "ccbed_hostdir": hostile}
    played, _ = play(file, "hosts", "h1", **more)
    assert played.done == ("h1",), played.failed
    assert (Path(hostile) / "prepared.json").is_file()
    assert not [place for place in (PLAYBOOKS, Path.home(), Path.cwd()) if (place / tmp_path.name).is_file()]


def test_hosts_that_fail_are_told_apart_and_the_others_come_to_the_end(tmp_path: Path, engine: Path) -> None:
    hosts: dict[str, dict[str, Any]] = {
        "h1": {},
        "h2": {"ccbed_gpus": 1, "ccbed_rdma": True},
        "h3": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1},
        "h4": {"ccbed_engine": str(tmp_path / "none.sock"), "ansible_python_interpreter": "/nowhere/python3"},
    }
    played, _ = play(inventory(tmp_path, engine, hosts), "prepare", *hosts)
    assert played.done == ("h1",)
    assert {host: step.state for host, step in played.failed.items()} == {
        "h2": "failed", "h3": "unreachable", "h4": "failed",
    }  # fmt: skip
    assert played.failed["h2"].message.splitlines() == [
        "ccbed_gpus requires GPUs and the host has none; fix: install the NVIDIA driver (nvidia-smi must show them), or set ccbed_gpus: 0",
        "ccbed_rdma requires /dev/infiniband, which is missing; fix: load the RDMA driver, or remove ccbed_rdma",
    ]
    assert "no Python at /nowhere/python3" in played.failed["h4"].message


def test_an_engine_that_is_too_old_is_refused(tmp_path: Path, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "/version", {"Version": "19.03.15"})
    played, _ = play(inventory(tmp_path, engine, {"h1": {}}), "prepare", "h1")
    assert played.failed["h1"].message == "engine 19.03.15 is too old, 20.10 or newer is needed; fix: upgrade Docker"


def test_reset_removes_the_beds_directory_and_leaves_others_alone(tmp_path: Path, engine: Path) -> None:
    file = inventory(tmp_path, engine, {"h1": {}})
    (tmp_path / "other" / "photos").mkdir(parents=True)
    assert play(file, "prepare", "h1")[0].done == ("h1",)
    foreign, _ = play(file, "reset", "h1", ccbed_hostdir=str(tmp_path / "other"), ccbed_engine=str(tmp_path / "x"))
    assert (foreign.done, foreign.changed) == (("h1",), 0)
    assert (tmp_path / "other").is_dir()
    (tmp_path / "bed" / "prepared.json").write_text("{}")
    gone, _ = play(file, "reset", "h1", ccbed_engine=str(tmp_path / "x"))
    assert (gone.done, gone.changed) == (("h1",), 1)
    assert not (tmp_path / "bed").exists()


def test_reset_leaves_anothers_bed_alone_though_its_keeper_is_dead_and_says_whose_it_is(
    tmp_path: Path, engine: Path
) -> None:
    file = inventory(tmp_path, engine, {"h1": {}, "h2": {"ccbed_engine": str(tmp_path / "none")}})
    keeper = tmp_path / "bed" / "keeper" / "keeper.json"
    keeper.parent.mkdir(parents=True)
    keeper.write_text(json.dumps({"owner": "ann@desk:/beds/lab", "pid": 0}))
    held, _ = play(file, "reset", "h1", "h2", ccbed_owner="me")
    expected = "bed lab exists and belongs to ann@desk:/beds/lab"
    assert {host: step.message for host, step in held.failed.items()} == {"h1": expected, "h2": expected}
    assert keeper.exists()
    gone, _ = play(file, "reset", "h1", ccbed_owner="ann@desk:/beds/lab", ccbed_engine=str(tmp_path / "x"))
    assert (gone.done, (tmp_path / "bed").exists()) == (("h1",), False)


def test_reset_ends_the_keeper_though_its_directory_is_gone(tmp_path: Path, engine: Path) -> None:
    file = inventory(tmp_path, engine, {"h1": {}})
    mark = f"{processes.bed_tag('lab', str(tmp_path / 'bed'))}/keeper/0a"
    with (
        subprocess.Popen(["sleep", "600"], env={**os.environ, "CCBED_NODE": mark}) as ours,
        subprocess.Popen(["sleep", "600"], env={**os.environ, "CCBED_NODE": f"x{mark}"}) as other,
    ):
        reset, _ = play(file, "reset", "h1", ccbed_engine=str(tmp_path / "x"))
        assert reset.done == ("h1",), reset.failed
        assert (ours.wait(600), other.poll()) == (-9, None)
        other.kill()


def test_reset_leaves_all_hosts_alone_while_one_has_a_run_unless_it_is_forced(tmp_path: Path, engine: Path) -> None:
    hosts = {"h1": {"ccbed_workdir": str(tmp_path / "bed")}, "h2": {"ccbed_workdir": str(tmp_path / "other")}}
    file = inventory(tmp_path, engine, hosts)
    for name in ("bed", "other"):
        (tmp_path / name).mkdir()
    with (tmp_path / "other" / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write('{"run": "r1"}')
        lock.flush()
        held, _ = play(file, "reset", "h1", "h2", ccbed_hostdir="{{ ccbed_workdir }}", ccbed_owner="me")
        assert held.failed["h2"].message == "an orchestrator drives run r1"
        assert (tmp_path / "bed").exists()
        more = {"ccbed_engine": str(tmp_path / "x"), "ccbed_force": True}
        forced, _ = play(file, "reset", "h1", "h2", ccbed_hostdir="{{ ccbed_workdir }}", ccbed_owner="me", **more)
    assert (forced.done, (tmp_path / "bed").exists(), (tmp_path / "other").exists()) == (("h1", "h2"), False, False)


def test_what_the_inventory_gives_ssh_is_kept_beside_what_ccbed_gives_it(tmp_path: Path) -> None:
    """The option that ssh is handed decides where it goes: here to a program that only tells that it was called."""
    called = tmp_path / "called"
    hosts = {
        "h1": {"ansible_connection": "ssh", "ansible_host": "h1.invalid", "ccbed_known_hosts": str(tmp_path / "known")}
    }
    hosts["h1"]["ansible_ssh_extra_args"] = f'-o ProxyCommand="touch {called}"'
    played, _ = play(inventory(tmp_path, tmp_path / "x", hosts), "prepare", "h1")
    assert played.failed["h1"].state == "unreachable"
    assert called.exists()


@pytest.mark.parametrize("deadline_s", [0.2, 1.0])
def test_a_play_has_a_deadline_and_leaves_nothing_behind(
    tmp_path: Path, engine: Path, monkeypatch: pytest.MonkeyPatch, deadline_s: float
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    file = inventory(tmp_path, engine, {"h1": {}, "h2": {}})
    noticed: list[int] = []
    find = playbook_runs.ansible_processes

    def find_and_note(folder: str) -> list[int]:
        pids = find(folder)
        noticed.extend(pids)
        return pids

    monkeypatch.setattr(playbook_runs, "ansible_processes", find_and_note)
    for _ in range(6):
        wanted = playbook_runs.PlaybookRun(
            playbook="prepare", inventory=str(file), hosts=("h1", "h2"), deadline_s=deadline_s
        )
        played = playbook_runs.run(wanted, lambda _: None)
        if noticed:
            break
        deadline_s *= 2
    assert noticed, "the control: Ansible ran when the time was over"
    assert {host: step.message for host, step in played.failed.items()} == dict.fromkeys(
        ("h1", "h2"), f"not done after {deadline_s:.0f} s"
    )
    assert list((tmp_path / "tmp").iterdir()) == []
    assert playbook_runs.ansible_processes(str(tmp_path / "tmp")) == []


@pytest.mark.parametrize("name", ["prepare", "image", "hosts", "reset"])
def test_the_playbooks_can_be_read(name: str) -> None:
    program = Path(sys.executable).parent / "ansible-playbook"
    argv = [str(program), "--syntax-check", "-i", "h1,", str(PLAYBOOKS / f"{name}.yml")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["docker.io", "python3"])
def test_a_package_is_installed_though_the_host_updates_itself(package: str, tmp_path: Path) -> None:
    """The first call of apt-get finds the lock held. A host without Python has one as soon as apt-get has run."""
    folder, log, stub = tmp_path / "playbooks", tmp_path / "log", tmp_path / "bin" / "apt-get"
    shutil.copytree(PLAYBOOKS, folder)
    stub.parent.mkdir()
    stub.write_text(BUSY.replace("{log}", str(log)))
    stub.chmod(0o755)
    include = yaml.safe_load((folder / "tasks" / "look.yml").read_text())[0]
    command = next(task["ansible.builtin.raw"] for task in include["rescue"] if task["name"] == "python")
    has_python = f'import os, sys; sys.exit(not os.path.exists("{log}"))'
    task = {
        "docker.io": {"ansible.builtin.include_tasks": "tasks/engine.yml"},
        "python3": {"ansible.builtin.raw": command.replace("import json", has_python)},
    }[package]
    known = {"system": {"family": "debian"}, "programs": [], "uid": 0, "systemd": False}
    play_ = {"hosts": "h1", "connection": "local", "gather_facts": False, "vars_files": ["vars.yml"], "tasks": [task]}
    (folder / "test.yml").write_text(json.dumps([play_]))
    given = {
        "bed_facts": known,
        "bed_root": True,
        "bed_python": "/usr/bin/python3",
        "ansible_python_interpreter": sys.executable,
        "ccbed_https_proxy": PROXY,
    }
    argv = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        "h1,",
        str(folder / "test.yml"),
        "-e",
        json.dumps(given),
    ]
    env = {**os.environ, "LC_ALL": "C.UTF-8", "PATH": f"{stub.parent}:{os.environ['PATH']}"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, env=env, check=False)
    assert done.returncode == 0, done.stdout
    assert "changed=1" in done.stdout
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ["update", "update", package]
    # The command that installs Python is in the command line of a shell: a proxy with a password stays out of it.
    first = PROXY if package == "docker.io" else "-qq"
    assert {line.split()[0] for line in log.read_text().splitlines()} == {first}


def test_the_playbooks_assume_what_the_core_assumes() -> None:
    text = "".join(file.read_text() for file in PLAYBOOKS.rglob("*.yml"))
    assert f"default('{requirements.CPU_IMAGE}')" in text
    used = set(re.findall(r"ccbed_([a-z_]+)", text))
    extra = {"hostdir", "fingerprints", "image_ids", "addresses", "owner", "owner_id", "force", "registry_logins"}
    assert used - extra <= {*variables.KNOWN, "ssh_extra_args"}
