"""Ansible as `ccbed up` runs it, over SSH to many addresses of this machine: total time and time per host against hosts and forks.

The play does what the preparation of a prepared host does: it reads the host's facts, and checks the bed's directory. One sshd
serves all addresses of 127.0.0.0/8, so that each address is a host with a connection of its own. CCBED_BENCH_HOSTS (default
``4,16``) and CCBED_BENCH_FORKS (default ``8,32``) say how many.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.prepare import facts, playbook_runs
from orchestrator.store import shipped

from . import table
from .test_many_nodes import exponent, processes_of, pss_mib

HOSTS = tuple(int(count) for count in os.environ.get("CCBED_BENCH_HOSTS", "4,16").split(","))
FORKS = tuple(int(count) for count in os.environ.get("CCBED_BENCH_FORKS", "8,32").split(","))
PLAY = """\
- hosts: all
  gather_facts: false
  vars_files: [{playbooks}/vars.yml]
  tasks:
    - ansible.builtin.import_tasks: {playbooks}/tasks/look.yml
    - ansible.builtin.file: {{path: "{{{{ bed_dir }}}}", state: directory, mode: "0700"}}
"""
SSHD = """\
Port {port}
ListenAddress 0.0.0.0
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PidFile none
MaxStartups 1000
MaxSessions 100
"""


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An sshd of its own, and an inventory of as many of its addresses as the largest count."""
    folder = tmp_path_factory.mktemp("sshd")
    if not shutil.which("sshd", path="/usr/sbin") or os.geteuid() != 0:
        pytest.skip("needs root and sshd")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "sshd.conf").write_text(SSHD.format(port=port, folder=folder))
    Path("/run/sshd").mkdir(exist_ok=True)
    lines = [f"    h{number}: {{ansible_host: 127.0.1.{number + 1}}}" for number in range(max(HOSTS))]
    options = "-o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no -o LogLevel=ERROR"
    settings = f"{{ansible_port: {port}, ansible_user: root, ansible_ssh_private_key_file: {folder}/user, "
    settings += f'ansible_ssh_common_args: "{options}", ccbed_workdir: "{folder}/beds/{{{{ inventory_hostname }}}}"}}'
    (folder / "hosts.yml").write_text("\n".join(["all:", "  hosts:", *lines, f"  vars: {settings}", ""]))
    (folder / "play.yml").write_text(PLAY.format(playbooks=shipped.folder("playbooks").absolute()))
    with subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", folder / "sshd.conf"]) as process:
        try:
            yield folder / "hosts.yml"
        finally:
            process.kill()


def test_total_time_and_time_per_host(inventory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "folder", lambda name: inventory.parent)
    # a connection that is kept would make the second run of a host cheaper
    monkeypatch.setenv("ANSIBLE_SSH_CONTROL_PATH_DIR", str(tmp_path))
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", "-o ControlMaster=no")
    rows = [
        (hosts, forks, *run(inventory, hosts, forks, monkeypatch))
        for hosts in HOSTS
        for forks in FORKS
        if forks <= hosts or forks == min(FORKS)
    ]
    lines = ["| hosts | forks | s | s per host | PSS of Ansible, at most |", "|---|---|---|---|---|"]
    lines += [
        f"| {hosts} | {min(hosts, forks)} | {took:.1f} | {took / hosts:.2f} | {memory:.0f} MiB |"
        for hosts, forks, took, memory in rows
    ]
    best = {hosts: min(took for count, _, took, _ in rows if count == hosts) for hosts in HOSTS}
    slope = exponent(list(best), list(best.values()))
    text = "\n".join(
        [*lines, "", f"exponent of the best: {'not known' if slope is None else f'{slope:.2f}'}", str(table.machine())]
    )
    table.OUT.mkdir(exist_ok=True)
    (table.OUT / "ansible-hosts.md").write_text(text + "\n")
    print("\n" + text)
    assert slope is None or slope < 1.3


def run(inventory: Path, hosts: int, forks: int, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """(seconds, most MiB of Ansible's processes) of one run of the play."""
    monkeypatch.setattr(playbook_runs, "forks", lambda count: min(count, forks))
    names = [f"h{number}" for number in range(hosts)]
    variables = {"bed_looks": [facts.__file__]}
    wanted = playbook_runs.PlaybookRun(playbook="play", inventory=str(inventory), hosts=names, variables=variables)
    peak = [0.0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            members = processes_of(Path("ccbed-ansible-"))
            total = 0.0
            for pid in members:
                try:
                    total += pss_mib(pid)
                except (OSError, StopIteration):
                    continue
            peak[0] = max(peak[0], total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.monotonic()
    try:
        result = playbook_runs.run(wanted, lambda step: None)
    finally:
        took = time.monotonic() - begin
        done.set()
        watcher.join()
    assert (sorted(result.done), {name: step.message for name, step in result.failed.items()}) == (sorted(names), {})
    return took, peak[0]
