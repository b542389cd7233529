"""The docker SDK over an open SSH connection: `docker system dial-stdio` on the host, few sessions, deadlines."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from typing import Any

import docker
from docker.transport import SSHHTTPAdapter
from docker.transport.sshconn import SSHConnection, SSHConnectionPool
from docker.utils import version_lt

from ...model.bed import HostSpec
from ...model.requirements import ENGINE, version_text
from ..ssh.connection_errors import HostError
from ..ssh.helper_start import NOT_FOUND
from ..ssh.ssh_connection import Connection

BASE = "http+docker://ssh"
#: sshd allows ten sessions on a connection by default; one is the helper's.
SESSIONS = 3
CALL_S = 30
#: The newest API that the SDK supports, and the oldest that ccbed supports.
NEWEST_API, OLDEST_API = "1.44", "1.41"
#: An inventory that says nothing means the host's own default, DOCKER_HOST there included.
DEFAULT = HostSpec(name="").engine

Connected = Callable[[], Connection]


class _Session(SSHConnection):  # type: ignore[misc]
    """One session on the transport; an engine listens at its other end."""

    def __init__(self, connected: Connected, argv: list[str], timeout: float) -> None:
        super().__init__(timeout=timeout)
        self._connected = connected
        self._argv = argv

    def connect(self) -> None:
        channel = self._connected().start(self._argv, self.timeout)
        channel.settimeout(self.timeout)
        self.sock = channel

    @property
    def usable(self) -> bool:
        channel = self.sock
        if channel is None:
            return True
        transport = channel.get_transport()
        return not (channel.closed or channel.eof_received) and bool(transport and transport.is_active())


class _Pool(SSHConnectionPool):  # type: ignore[misc]
    """At most SESSIONS at once; further requests wait. A session that ended is opened again."""

    def __init__(self, connected: Connected, argv: list[str], timeout: float) -> None:
        super().__init__(timeout=timeout, maxsize=SESSIONS)
        self.block = True
        self._connected = connected
        self._argv = argv

    def _new_conn(self) -> _Session:
        return _Session(self._connected, self._argv, self.timeout)

    def _get_conn(self, timeout: float | None = None) -> Any:
        try:
            connection = self.pool.get(block=True, timeout=timeout or self.timeout)
        except queue.Empty:
            raise TimeoutError(f"{SESSIONS} calls of the engine are still running") from None
        if connection is not None and not connection.usable:
            with contextlib.suppress(OSError):
                connection.close()
            connection = None
        return connection or self._new_conn()


class _Adapter(SSHHTTPAdapter):  # type: ignore[misc]
    """The SDK's own adapter without its own connection."""

    def __init__(self, connected: Connected, argv: list[str], timeout: float) -> None:
        super().__init__("ssh://host", timeout=timeout, shell_out=True)
        self._pool = _Pool(connected, argv, timeout)

    def get_connection(self, url: str, proxies: Any = None) -> _Pool:
        return self._pool

    def close(self) -> None:
        super().close()
        self._pool.close()


def client(connected: Connected, host: HostSpec, timeout_s: int = CALL_S) -> docker.DockerClient:
    """A client of the host's engine. ``connected`` returns the current connection. Raises HostError."""
    engine_client = docker.DockerClient(base_url="http://localhost:1", version=OLDEST_API, timeout=timeout_s)
    adapter = _Adapter(connected, _program(host, "system", "dial-stdio"), timeout_s)
    api = engine_client.api
    api.mount(BASE, adapter)
    api._custom_adapter = adapter
    api.base_url = BASE
    try:
        host_api = str(api.version(api_version=False)["ApiVersion"])
    except OSError as error:  # the SDK's own errors of connections are such
        engine_client.close()
        raise HostError(_engine_problem(connected(), host)) from error
    if version_lt(host_api, OLDEST_API):
        engine_client.close()
        fix = f"install Docker {version_text(ENGINE)} or newer"
        text = f"the container engine is too old (its API is {host_api}, {OLDEST_API} is needed): {fix}"
        raise HostError(text)
    api._version = NEWEST_API if version_lt(NEWEST_API, host_api) else host_api
    return engine_client


def _engine_problem(connection: Connection, host: HostSpec) -> str:
    """Why no engine responds, by the output of its command line on the host."""
    done = connection.run(_program(host, "version"), deadline_s=CALL_S)
    message = done.err.decode(errors="replace").strip()
    if done.code == NOT_FOUND:
        return f"neither docker nor podman on the host; install Docker {version_text(ENGINE)} or newer"
    if "permission denied" in message.lower():
        user = connection.destination.user
        return (
            f"{user} may not use the container engine; on the host: sudo usermod -aG docker {user}, then log in again"
        )
    if "cannot connect" in message.lower() or "daemon running" in message.lower():
        return f"no container engine responds at {host.engine}; on the host: sudo systemctl start docker, or set ccbed_engine"
    return f"the container engine does not respond: {message[-300:] or 'it printed nothing'}"


def _program(host: HostSpec, *arguments: str) -> list[str]:
    """The command line of the host's engine. podman has the same options and the same dial-stdio."""
    option = [] if host.engine == DEFAULT else ["-H", f"unix://{host.engine}"]
    return ["sh", "-c", 'exec "$(command -v docker || echo podman)" "$@"', "engine", *option, *arguments]
