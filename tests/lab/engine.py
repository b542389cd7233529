"""Pytest plugin: ``engine``, ``image`` and ``lab`` for every test that needs a real one. What is missing is said; with
CCBED_REQUIRE=all that is a failure."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import abandoned, images, layout, processes, rising

#: Images built there are there again the next time.
ENGINE_DATA = Path(os.environ.get("CCBED_ENGINE_DATA", "/var/lib/ccbed-engine"))
LAB_ROOT = Path(os.environ.get("CCBED_LAB_ROOT", str(layout.DEFAULT_ROOT)))
_HERE = Path(__file__).parents[2]
_SOCKET = "/var/run/docker.sock"
_START_S = 40.0


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """A docker SDK client of this machine's engine; started for the session where none answers, and stopped by its pid."""
    client = _client()
    if client is not None:
        abandoned.remove(client)
        yield client
        client.close()
        return
    if os.geteuid() != 0:
        pytest.skip("no container engine answers, and only root can start one")
    if shutil.which("dockerd") is None:
        pytest.skip("no container engine answers, and there is no dockerd; next: .ci/setup engine (as root)")
    with tempfile.TemporaryDirectory(prefix="ccbed-engine-") as folder:
        process, client = _start(Path(folder))
        try:
            abandoned.remove(client)
            yield client
            client.close()
        finally:
            _stop(process)
            _unmount(Path(folder))


@pytest.fixture(scope="session")
def image(engine: Any) -> str:
    """The name of the CPU image, built once on this machine."""
    import platformdirs

    from orchestrator.model.errors import CcbedError
    from orchestrator.providers import building

    recipe = building.Recipe(folder=_HERE / "images", cache=platformdirs.user_cache_path("ccbed"))
    try:
        return building.build(engine, recipe, os.environ, print).name
    except CcbedError as error:
        pytest.skip(f"{error}; {error.hint}")


@pytest.fixture(scope="session")
def lab(image: str) -> Iterator[layout.Lab]:
    """Three hosts with the image on them. One that is up already is used as it is, and left up."""
    lacking = rising.lack()
    if lacking:
        pytest.skip(f"no lab on this machine: {'; '.join(lacking)}")
    found = rising.known(LAB_ROOT)
    was_up = found is not None and bool(processes.first(found))
    wanted = found if found and was_up else layout.Lab(root=LAB_ROOT)
    with rising.locked(LAB_ROOT):
        pids = rising.up(wanted)
        images.load(wanted, image, pids)
    yield wanted
    if not was_up:
        with rising.locked(LAB_ROOT):
            rising.down(wanted)


def _client() -> Any:
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        client = docker.from_env(timeout=120)
        client.ping()
    except (DockerException, RequestException):
        return None
    return client


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], Any]:
    """Where the firewall cannot be set up (a sandbox), an engine without it does."""
    log = folder / "dockerd.log"
    for extra in ([], ["--iptables=false", "--ip6tables=false"]):
        process = _dockerd(folder, log, extra)
        client = _answer(process)
        if client is not None:
            return process, client
        _stop(process)
    pytest.skip(f"dockerd does not start: {' / '.join(log.read_text().strip().splitlines()[-3:])}")


def _dockerd(folder: Path, log: Path, extra: list[str]) -> subprocess.Popen[bytes]:
    """It ends with this process, also when that is killed."""
    argv = ["setpriv", "--pdeathsig", "TERM", "dockerd", f"--host=unix://{_SOCKET}", "--log-level=warn"]
    argv += [f"--data-root={ENGINE_DATA}", f"--exec-root={folder / 'exec'}", f"--pidfile={folder / 'pid'}"]
    with log.open("ab") as file:
        return subprocess.Popen(
            [*argv, *extra], stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def _answer(process: subprocess.Popen[bytes]) -> Any:
    end = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end:
        client = _client()
        if client is not None:
            return client
        time.sleep(0.1)
    return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _unmount(folder: Path) -> None:
    """What an engine leaves mounted when it ends: the network namespace that its containers shared with the host."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for one in sorted((one for one in mounted if Path(one).is_relative_to(folder)), reverse=True):
        subprocess.run(["umount", "--lazy", one], check=True)
