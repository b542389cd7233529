"""A real registry on loopback that wants a login: docker-registry of Debian, started and stopped by its pid."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import bcrypt

from .sshd import free_port

USER, PASSWORD = "ccbed", "geheim-7f3a"
_START_S = 180.0


def lacking() -> str:
    return "" if shutil.which("docker-registry") else "no docker-registry; next: .ci/setup engine (as root)"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """Its address, ``127.0.0.1:PORT``."""
    address = f"127.0.0.1:{free_port()}"
    users = folder / "htpasswd"
    users.write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    config = folder / "registry.yml"
    config.write_text(
        "version: 0.1\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
        f"http: {{addr: {address}}}\n"
        f"auth: {{htpasswd: {{realm: test, path: {users}}}}}\n"
    )
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
    try:
        _await(address, process, folder / "registry.log")
        yield address
    finally:
        process.terminate()
        process.wait(_START_S)


def _await(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{address}/v2/", timeout=2)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise RuntimeError(f"it responds with {error.code} and wants no login") from error
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"docker-registry does not start: {log.read_text()[-500:]}") from error
        time.sleep(0.05)
