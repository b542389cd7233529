"""This machine's own container engine: the one that answers, else one that is started for as long as it is needed.

python tests/lab/own_engine.py COMMAND …        run COMMAND with one
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests import undo

#: Images built there are there again the next time.
ENGINE_DATA = Path(os.environ.get("CCBED_ENGINE_DATA", "/var/lib/ccbed-engine"))
_SOCKET = "/var/run/docker.sock"
_START_S = 40.0


class LackingError(RuntimeError):
    """None answers, and none can be started."""


@contextlib.contextmanager
def running() -> Iterator[Any]:
    """A docker SDK client of it; what was started for it is stopped by its pid. Raises LackingError."""
    client = _client()
    if client is not None:
        yield client
        client.close()
        return
    if os.geteuid() != 0:
        raise LackingError("no container engine answers, and only root can start one")
    if shutil.which("dockerd") is None:
        raise LackingError("no container engine answers, and there is no dockerd; next: .ci/setup engine (as root)")
    with undo.temporary_directory("ccbed-engine-") as folder:
        process, client = _start(folder)
        try:
            with undo.by_itself(process):
                yield client
            client.close()
        finally:
            _stop(process)
            _unmount(folder)


def main(command: list[str]) -> int:
    """Its exit code; 3 where there is no engine."""
    if not command:
        print("usage: own_engine.py COMMAND …", file=sys.stderr)
        return 3
    try:
        with running():
            return subprocess.run(command, check=False).returncode
    except LackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3


def _client() -> Any:
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        client = docker.from_env(timeout=900)
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
    raise LackingError(f"dockerd does not start: {' / '.join(log.read_text().strip().splitlines()[-3:])}")


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
        process.wait(600)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _unmount(folder: Path) -> None:
    """What an engine leaves mounted when it ends: the network namespace that its containers shared with the host."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((mount for mount in mounted if Path(mount).is_relative_to(folder)), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
