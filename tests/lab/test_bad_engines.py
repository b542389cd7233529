"""Hosts that are reached and cannot have containers: no engine, an old one, no right to it, no image, no space, no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestrator.model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS

from . import machines, processes
from .desk import PLAYED_S, Desk

pytestmark = pytest.mark.lab


def test_a_host_whose_engine_is_stopped(desk: Desk) -> None:
    inventory = desk.inventory()
    machines.service(processes.first(desk.lab)["h3"], "engine", "stop")
    try:
        doctor = desk.ccbed("doctor", inventory)
        assert "lacks  h3: engine: no engine responds at /var/run/docker.sock" in doctor.text
        assert "fix: start dockerd, or set ccbed_engine" in doctor.text
        up = desk.ccbed("up", inventory, within_s=PLAYED_S)
        up.assert_every_host("no container engine responds", ("h3",))
        assert "next: h3: start it, or set ccbed_engine to its socket" in up.text
        prepared = desk.ccbed("up", inventory, "--no-prepare")
        prepared.assert_every_host("/var/run/docker.sock", ("h3",))
    finally:
        pid = processes.first(desk.lab)["h3"]
        machines.service(pid, "engine", "start")
        machines.wait(desk.lab.host("h3"), pid)
    desk.nothing_there()


def test_a_host_without_docker(desk: Desk) -> None:
    """Preparation would install it; without preparation it is named."""
    inventory = desk.inventory()
    with without_programs(desk, "h2"):
        doctor = desk.ccbed("doctor", inventory)
        assert "lacks  h2: engine: no engine responds at /var/run/docker.sock" in doctor.text
        assert "fix: `ccbed up` installs Docker there; or set ccbed_engine" in doctor.text
        up = desk.ccbed("up", inventory, "--no-prepare")
        assert up.code == EXIT_INFRASTRUCTURE
        up.assert_every_host(
            "no such socket: start or install a container engine, or set ccbed_engine to its socket", ("h2",)
        )
    desk.nothing_there()


@contextmanager
def without_programs(desk: Desk, host: str) -> Iterator[None]:
    """A host of its own mounts hides the programs of its engine, as if they had never been installed."""
    hidden = desk.inside(host, "sh", "-c", "which -a docker dockerd containerd || true").split()
    machines.service(processes.first(desk.lab)[host], "engine", "stop")
    desk.inside(host, "sh", "-c", ": > /run/no-program; chmod 644 /run/no-program")
    for program in hidden:
        desk.inside(host, "mount", "--bind", "/run/no-program", program)
    try:
        yield
    finally:
        for program in reversed(hidden):
            desk.inside(host, "umount", program)
        pid = processes.first(desk.lab)[host]
        machines.service(pid, "engine", "start")
        machines.wait(desk.lab.host(host), pid)


def test_an_engine_that_is_too_old(desk: Desk) -> None:
    inventory = desk.inventory({"h2": {"ccbed_engine": OLD}})
    with old_engine(desk, "h2"):
        doctor = desk.ccbed("doctor", inventory)
        assert "lacks  h2: engine: 19.03.5 is too old; fix: upgrade Docker to 20.10 or newer" in doctor.text
        up = desk.ccbed("up", inventory, within_s=PLAYED_S)
        assert up.code == EXIT_INFRASTRUCTURE
        up.assert_every_host("engine 19.03.5 is too old, 20.10 or newer is needed", ("h2",))
        assert "next: h2: upgrade Docker" in up.text
        assert "h1 h3 are ready and kept; to continue: ccbed up" in up.text
        unprepared = desk.ccbed("up", inventory, "--no-prepare")
        unprepared.assert_every_host(
            "the container engine is too old (its API is 1.40): install Docker 20.10 or newer", ("h2",)
        )
    desk.nothing_there(("h1", "h3"))


OLD = "/run/old-engine.sock"
#: Answers as an engine of 2019 does, and has nothing.
OLD_ENGINE = """
import http.server, json, socketserver, sys

class Old(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = {"version": {"Version": "19.03.5", "ApiVersion": "1.40"}, "info": {"ServerVersion": "19.03.5"}, "json": []}
        last = self.path.split("?")[0].rpartition("/")[2]
        status, said = (200, known[last]) if last in known and "/images/" not in self.path else (404, {"message": "no such"})
        if self.path.startswith("/v1.41"):
            status, said = 400, {"message": "client version 1.41 is too new. Maximum supported API version is 1.40"}
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "somebody"

socketserver.UnixStreamServer(sys.argv[1], Old).serve_forever()
"""


@contextmanager
def old_engine(desk: Desk, host: str) -> Iterator[None]:
    begin = 'rm -f "$1"; setsid python3 -c "$2" "$1" >/dev/null 2>&1 & echo $!; until [ -S "$1" ]; do sleep 0.02; done'
    pid = desk.inside(host, "sh", "-c", begin, "old", OLD, OLD_ENGINE).strip()
    try:
        yield
    finally:
        desk.inside(host, "kill", pid)


def test_a_user_who_may_not_use_the_engine(desk: Desk) -> None:
    """As a user of its own who may log in, but is neither in the group of the socket nor allowed to become root."""
    with user(desk, "h2"):
        inventory = desk.inventory({"h2": {"ansible_user": "nobody"}}, ccbed_workdir="/tmp/ccbed-bad")
        doctor = desk.ccbed("doctor", inventory)
        assert "lacks  h2: engine: user nobody may not use /var/run/docker.sock" in doctor.text
        assert "fix: sudo usermod -aG docker nobody" in doctor.text
        up = desk.ccbed("up", inventory, within_s=PLAYED_S)
        assert up.code == EXIT_INFRASTRUCTURE
        up.assert_every_host("group docker: ", ("h2",))
        assert "nobody may not become root" in up.text or "there is no sudo, and nobody is not root" in up.text
        assert "next: h1 h3 are ready and kept; to continue: ccbed up" in up.text
        unprepared = desk.ccbed("up", inventory, "--no-prepare")
        unprepared.assert_every_host("permission denied: add the user to the group that owns it", ("h2",))
    desk.nothing_there()


@contextmanager
def user(desk: Desk, host: str) -> Iterator[None]:
    """``nobody`` may log in there for a while: the host has files of its own, mounted over this machine's."""
    desk.inside(host, "sh", "-c", "sed '/^nobody:/s,/nonexistent:.*,/tmp:/bin/sh,' /etc/passwd > /run/passwd")
    desk.inside(host, "mount", "--bind", "/run/passwd", "/etc/passwd")
    try:
        yield
    finally:
        desk.inside(host, "umount", "/etc/passwd")


def test_an_image_that_is_nowhere(desk: Desk) -> None:
    output = desk.ccbed("up", desk.inventory(ccbed_image="nowhere/none:1"), within_s=PLAYED_S)
    assert output.code == EXIT_INFRASTRUCTURE
    output.assert_every_host("image nowhere/none:1 is missing on the host and on the controller")
    assert "docker load it on the controller, or set ccbed_image" in output.text
    desk.nothing_there()


def test_an_image_that_was_deleted_by_hand_is_brought_again(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.up(inventory)
    assert desk.ccbed("down", "bad").code == EXIT_PASS
    desk.inside("h2", "docker", "rmi", "--force", desk.image)
    lacking = desk.ccbed("up", inventory, "--no-prepare")
    lacking.assert_every_host("is missing", ("h2",))
    assert "ccbed up --prepare" in lacking.text
    output = desk.up(inventory)
    assert f"host h2: image {desk.image} is missing: prepared again" in output.text
    assert "prepare     h2 ready" in output.text
    assert "4 of 4 ready" in output.text


def test_a_host_whose_disk_is_full(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.inside("h3", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/var/lib/ccbed")
    try:
        doctor = desk.ccbed("doctor", inventory)
        assert "lacks  h3: disk: 0 MiB free for /var/lib/ccbed/bad, 256 MiB needed; fix: free space" in doctor.text
        up = desk.ccbed("up", inventory, within_s=PLAYED_S)
        assert up.code == EXIT_INFRASTRUCTURE
        up.assert_every_host("No space left on device", ("h3",))
        unprepared = desk.ccbed("up", inventory, "--no-prepare")
        unprepared.assert_every_host("No space left on device", ("h3",))
    finally:
        desk.inside("h3", "umount", "/var/lib/ccbed")
    desk.nothing_there()


def test_an_engine_whose_disk_is_full(desk: Desk) -> None:
    """The image does not fit; nothing of it is left in the way."""
    inventory = desk.inventory()
    with small_disk(desk, "h3"):
        doctor = desk.ccbed("doctor", inventory)
        assert f"{desk.image} must be copied, but only 64 MiB are free in /var/lib/docker" in doctor.text
        up = desk.ccbed("up", inventory, within_s=2 * PLAYED_S)
        assert up.code == EXIT_INFRASTRUCTURE
        up.assert_every_host("load: its disk is full", ("h3",))
        assert "next: h3: free space on h3: check df -h; docker system prune" in up.text
        assert "next: h1 h2 are ready and kept; to continue: ccbed up" in up.text
        assert ".tar" not in desk.inside("h3", "ls", "/var/lib/ccbed/bad")
    desk.nothing_there(("h1", "h2"))


@contextmanager
def small_disk(desk: Desk, host: str) -> Iterator[None]:
    """Its engine has another disk for a while, and nothing on it."""
    pid = processes.first(desk.lab)[host]
    machines.service(pid, "engine", "stop")
    desk.inside(host, "mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/var/lib/docker")
    try:
        machines.service(pid, "engine", "start")
        machines.wait(desk.lab.host(host), pid)
        yield
    finally:
        machines.service(pid, "engine", "stop")
        desk.inside(host, "umount", "/var/lib/docker")
        machines.service(pid, "engine", "start")
        machines.wait(desk.lab.host(host), pid)


def test_gpus_that_are_not_there(desk: Desk) -> None:
    inventory = desk.inventory(ccbed_gpus=1)
    doctor = desk.ccbed("doctor", inventory)
    assert "lacks  h1 h2 h3: gpus: none" in doctor.text
    up = desk.ccbed("up", inventory, within_s=PLAYED_S)
    up.assert_every_host("ccbed_gpus requires GPUs and the host has none")
    assert "set ccbed_gpus: 0" in up.text
    desk.nothing_there()
