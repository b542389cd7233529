"""Ranks connect to their store without a query to the name server; the look-ups of a user's script stay as they are."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import preflight_checks
from orchestrator.node.oslayer import host_names

#: In a network of its own: a name server that knows no name, and how many queries it got for each kind of connection.
#: It answers, because torch looks up no further name once a look-up had no answer.
PROGRAM = """
import json, mmap, os, socket, threading
from torch.distributed import TCPStore, rendezvous
from orchestrator.node.oslayer import forks, host_names

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
queries_total = mmap.mmap(-1, 1)
parent = os.getpid()
if not (server_pid := os.fork()):
    forks.die_with_parent(parent)
    while True:
        query, client = server.recvfrom(512)
        queries_total[0] += 1
        server.sendto(query[:2] + bytes((0x81, 0x83)) + query[4:], client)

def count(connect):
    before = queries_total[0]
    connect()
    return queries_total[0] - before

def resolve():
    try:
        socket.getaddrinfo("host.example", None)
    except OSError:
        pass

def connect():
    next(rendezvous("env://", 0, 1))

with host_names.read_hosts_file_only("127.0.0.1"):
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
queries = {"store": queries_total[0]}
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1",
                  TORCHELASTIC_USE_AGENT_STORE="True")
queries["as torch connects"] = count(connect)
host_names.connect_without_queries()
queries["connected"] = count(connect)
queries["name of the script"] = count(resolve)
held = threading.Event()
threading.Thread(target=held.wait, daemon=True).start()
queries["beside another thread"] = count(connect)
held.set()
os.kill(server_pid, 9)
print(json.dumps(queries), flush=True)
os._exit(0)
"""
#: In a network of its own: preflight's look-ups of an address, where the name server answers nothing.
SILENT = """
import json, os, socket
from orchestrator.node import preflight_checks

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
preflight_checks.MAPPED_S = 0.2
print(json.dumps(preflight_checks.resolve_names(["10.1.2.3"], 0.1)), flush=True)
os._exit(0)
"""
SCRIPT = """
ip link set lo up
printf 'nameserver 127.0.0.1\\noptions timeout:30 attempts:1\\n' > resolv.conf
printf '127.0.0.1 localhost\\n' > hosts
printf 'hosts: files dns\\n' > nsswitch.conf
for file in resolv.conf hosts nsswitch.conf; do mount --bind $file /etc/$file; done
exec "$@"
"""
FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")


@pytest.fixture
def alone(tmp_path: Path) -> Callable[[str], Any]:
    """Runs a program in a network of its own, whose name server is its own; the JSON that it prints."""
    unshared = ["unshare", "--mount", "--net", "--map-root-user"]
    tried = shutil.which("ip") and subprocess.run([*unshared, "true"], capture_output=True, check=False).returncode == 0
    if not tried or not all(Path(file).exists() for file in FILES):
        pytest.skip("needs unshare, ip and the three files of name look-ups")

    def run(program: str) -> Any:
        command = [*unshared, "sh", "-ec", SCRIPT, "sh", sys.executable, "-c", program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_name_server_that_does_not_answer_holds_up_no_other_check(alone: Callable[[str], Any]) -> None:
    (row,) = alone(SILENT)
    assert row == {"address": "10.1.2.3", "name": "", "reverse_s": 0.1, "mapped_s": 0.2}, "each ends at its own limit"


def test_a_look_up_that_is_late_once_is_that_of_a_busy_host(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, addresses = threading.Event(), list[str]()
    monkeypatch.setattr(preflight_checks, "MAPPED_S", 0.5)

    def look_up(address: str) -> bool:
        addresses.append(address)
        return len(addresses) > 1 or answer.wait(600)

    monkeypatch.setattr(socket, "gethostbyaddr", look_up)
    assert preflight_checks._time_mapped("::ffff:10.1.2.3")["mapped_s"] < 0.5 and len(addresses) > 1
    answer.set()


def test_ranks_and_stores_connect_without_queries(alone: Callable[[str], Any]) -> None:
    queries = alone(PROGRAM)
    assert queries["store"] == queries["connected"] == 0, queries
    assert queries["as torch connects"] > 0, "torch asks no name server: host_names is not needed"
    assert queries["name of the script"] > 0 and queries["beside another thread"] > 0, queries


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("passwd: files\nhosts:\tfiles dns\n", "files dns"),
        ("  hosts: mymachines [!UNAVAIL=return] dns # why\n", "mymachines [!UNAVAIL=return] dns"),
        ("# hosts: files\nnetworks: files\n", ""),
    ],
)
def test_the_order_of_lookups_is_that_of_the_system(text: str, order: str) -> None:
    assert host_names.parse_order(text) == order


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The orders of look-ups that are set, where the system's is ``files dns`` and no other thread runs, as an earlier test may leave."""
    orders: list[str] = []

    def set_order(services: str) -> bool:
        orders.append(services)
        return True

    monkeypatch.setattr(host_names, "_set_order", set_order)
    monkeypatch.setattr(host_names, "_configured_order", lambda: "files dns")
    monkeypatch.setattr("threading.active_count", lambda: 1)
    return orders


@pytest.mark.parametrize("address", ["host-1", "localhost", "node-0.cluster.local"])
def test_a_name_is_resolved_as_before(address: str, orders: list[str]) -> None:
    with host_names.read_hosts_file_only(address):
        assert not orders
    assert not orders


def test_the_order_is_restored_after_an_error(orders: list[str]) -> None:
    with pytest.raises(RuntimeError), host_names.read_hosts_file_only("::1"):
        raise RuntimeError
    assert orders == ["files", "files dns"]
