"""The client of a container engine (Docker's API over a Unix socket), with the standard library only.

``EngineClient`` waits for each response; ``LoopClient`` calls back from an event loop. Every request has a deadline.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ...model.requirements import ENGINE, version_text
from .event_loop import Loop, Steps

#: The API version of requests, unless the engine demands another one. Engine 20.10 introduced it; Engine 29 demands 1.44.
API_VERSION = "1.41"
_TOO_NEW = re.compile(r"client version \S+ is too old\. Minimum supported API version is (\d+\.\d+)")
_TOO_OLD = re.compile(r"client version \S+ is too new\. Maximum supported API version is (\d+\.\d+)")
#: A path that names its version, such as those of podman's own API.
_VERSIONED = re.compile(r"/v\d")
#: A response has some kilobytes; the list of all containers of a large host has more.
MAX_BYTES = 64 << 20
#: HTTP status: the container or image does not exist; its state does not allow the request.
NOT_FOUND, CONFLICT = 404, 409
#: A running engine accepts connections at once.
CONNECT_S = 1.0

#: Called with the content of the response, or with the error.
OnResponse = Callable[[Any, "EngineError | None"], None]


class EngineError(OSError):
    """The engine's error message, or why the engine cannot be reached. ``status``: of HTTP; 0: no valid response.

    ``is_response``: something accepted the connection and responded, or closed it. ``errno``: why there is no connection.
    ``is_retryable``: the engine demands another API version, which later requests use.
    """

    def __init__(
        self,
        message: str,
        status: int = 0,
        *,
        errno: int | None = None,
        is_response: bool = False,
        is_retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.errno = errno
        self.is_response = is_response or status > 0
        self.is_retryable = is_retryable

    def __str__(self) -> str:
        return self.message


#: Path of a socket -> the API version that its engine demands, if that is another one.
_demanded_versions: dict[str, str] = {}


def api_version(path: str) -> str:
    return _demanded_versions.get(path, API_VERSION)


class PendingRequest:
    """A request that was sent. ``fd`` becomes readable when the response arrives."""

    def __init__(self, socket_path: str, method: str, path: str, body: Any, deadline_s: float) -> None:
        self._path = socket_path
        self._deadline_s = deadline_s
        import http.client

        self._connection = http.client.HTTPConnection("engine", timeout=deadline_s)
        headers = {"Host": "engine", "Connection": "close"}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            self._connection.sock = _connected(socket_path, deadline_s)
            full_path = path if _VERSIONED.match(path) else f"/v{api_version(socket_path)}{path}"
            with contextlib.suppress(BrokenPipeError):  # an engine may answer before it has read the body
                self._connection.request(method, full_path, data, headers)
        except OSError as error:
            self.close()
            raise connection_error(socket_path, error, deadline_s) from error

    @property
    def fd(self) -> int:
        return self._connection.sock.fileno()

    def read_response(self) -> Any:
        """The content of the response: JSON, text, or None if it is empty. Raises EngineError."""
        import http.client

        try:
            response = self._connection.getresponse()
            data = response.read(MAX_BYTES)
        except http.client.RemoteDisconnected as error:
            text = f"{self._path}: the engine closed the connection without a response"
            raise EngineError(text, is_response=True) from error
        except http.client.HTTPException as error:
            text = f"{self._path}: not a container engine ({type(error).__name__}: {error})"
            raise EngineError(text, is_response=True) from error
        except OSError as error:
            raise connection_error(self._path, error, self._deadline_s) from error
        finally:
            self.close()
        content = _decode(data, response.getheader("Content-Type") or "")
        if response.status >= 400:
            raise _response_error(self._path, _error_message(content), response.status)
        return content

    def close(self) -> None:
        self._connection.close()


class EngineClient:
    """One engine, by the path of its socket. No connection stays open, as the engine may restart at any time."""

    def __init__(self, path: str) -> None:
        self.path = path

    def request(self, method: str, path: str, body: Any = None, *, deadline_s: float = 5.0) -> Any:
        """Send a request and wait for the response. Raises EngineError."""
        try:
            return self.send(method, path, body, deadline_s=deadline_s).read_response()
        except EngineError as error:
            if not error.is_retryable:
                raise
        return self.send(method, path, body, deadline_s=deadline_s).read_response()

    def send(self, method: str, path: str, body: Any = None, *, deadline_s: float = 5.0) -> PendingRequest:
        """Send a request without waiting for the response. Raises EngineError if the engine cannot be reached."""
        return PendingRequest(self.path, method, path, body, deadline_s)


class LoopClient:
    """One engine, used from an event loop that never waits for it."""

    def __init__(self, loop: Loop, engine: EngineClient) -> None:
        self._loop = loop
        self.engine = engine

    def request(
        self, method: str, path: str, on_response: OnResponse, body: Any = None, *, deadline_s: float = 10.0
    ) -> None:
        """Send a request; the loop calls ``on_response`` exactly once, also if the engine is absent or silent."""
        try:
            pending = self.engine.send(method, path, body, deadline_s=deadline_s)
        except EngineError as error:
            failure = error
            self._loop.call_later(0.0, lambda: on_response(None, failure))
            return
        self._await(
            pending,
            on_response,
            deadline_s,
            lambda: self.request(method, path, on_response, body, deadline_s=deadline_s),
        )

    def ask(self, method: str, path: str, body: Any = None, *, deadline_s: float = 10.0) -> Steps[Any]:
        """Send a request and wait for the content of its response. Raises EngineError."""
        content, error = yield lambda resume: self.request(
            method, path, lambda content, error: resume((content, error)), body, deadline_s=deadline_s
        )
        if error:
            raise error
        return content

    def _await(
        self, pending: PendingRequest, on_response: OnResponse, deadline_s: float, retry: Callable[[], None]
    ) -> None:
        fd = pending.fd

        def expired() -> None:
            self._loop.remove_reader(fd)
            pending.close()
            on_response(None, EngineError(f"{self.engine.path}: no response from the engine within {deadline_s:g} s"))

        def readable() -> None:
            timer.cancel()
            self._loop.remove_reader(fd)
            try:
                content = pending.read_response()
            except EngineError as error:
                if error.is_retryable:
                    retry()
                else:
                    on_response(None, error)
            else:
                on_response(content, None)

        timer = self._loop.call_later(deadline_s, expired)
        self._loop.add_reader(fd, readable)


def _connected(path: str, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(min(timeout_s, CONNECT_S))
        connection.connect(path)
        connection.settimeout(timeout_s)
    except OSError:
        connection.close()
        raise
    return connection


def _response_error(path: str, message: str, status: int) -> EngineError:
    if minimum := _TOO_NEW.search(message):
        is_retryable = _demanded_versions.get(path) != minimum[1]
        _demanded_versions[path] = minimum[1]
        return EngineError(message, status, is_retryable=is_retryable)
    if maximum := _TOO_OLD.search(message):
        oldest = version_text(ENGINE)
        text = f"the container engine is too old (its API is {maximum[1]}): install Docker {oldest} or newer"
        return EngineError(text, status)
    return EngineError(message, status)


def connection_error(path: str, error: OSError, deadline_s: float) -> EngineError:
    """Return why the engine cannot be reached, and what to do."""
    return EngineError(f"{path}: {_explain(path, error, deadline_s)}", errno=error.errno)


def _explain(path: str, error: OSError, deadline_s: float) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such socket: start or install a container engine, or set ccbed_engine to its socket"
    if isinstance(error, PermissionError):
        return f"permission denied: add the user to the group that owns it ({_group(path)})"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: the container engine is not running; start it"
    if isinstance(error, TimeoutError):
        return f"no response from the engine within {deadline_s:g} s"
    if error.errno == errno.ENOTSOCK:
        return "not a socket"
    return error.strerror or str(error) or type(error).__name__


def with_query(path: str, **parameters: Any) -> str:
    """A path with query parameters. Mappings and lists become JSON, as the engine requires for filters."""
    encoded = {
        name: json.dumps(value) if isinstance(value, dict | list) else str(value) for name, value in parameters.items()
    }
    return f"{path}?{urlencode(encoded)}"


def container_path(name: str, verb: str = "json") -> str:
    return f"/containers/{quote(name, safe='')}/{verb}"


def label_filter(**labels: str) -> dict[str, list[str]]:
    """A filter for everything with these labels; each name gets the prefix ``ccbed.``."""
    return {"label": [f"ccbed.{name}={value}" for name, value in labels.items()]}


def _decode(data: bytes, content_type: str) -> Any:
    if not data:
        return None
    try:
        return json.loads(data) if "json" in content_type else data.decode(errors="replace")
    except ValueError:
        return data.decode(errors="replace")


def _error_message(content: Any) -> str:
    message = content.get("message") if isinstance(content, Mapping) else content
    return str(message or "the engine gave no reason").strip()


def _group(path: str) -> str:
    try:
        import grp

        return grp.getgrgid(Path(path).stat().st_gid).gr_name
    except (ImportError, KeyError, OSError):
        return "docker"
