"""The container engine's API over its unix socket, with the standard library alone: one request, one answer, a deadline."""

from __future__ import annotations

import errno
import http.client
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ...model.requirements import ENGINE, version_text

#: The version that is spoken, where the engine has it; Engine 20.10 is the first. Engine 29 wants 1.44.
VERSION = "1.41"
_TOO_NEW = re.compile(r"client version \S+ is too old\. Minimum supported API version is (\d+\.\d+)")
_TOO_OLD = re.compile(r"client version \S+ is too new\. Maximum supported API version is (\d+\.\d+)")
#: An answer is some kilobytes; a list of all containers of a large host some more.
LIMIT = 64 << 20
#: Of HTTP: there is no such container or image; it is in a state in which that cannot be done.
GONE, CONFLICT = 404, 409
#: An engine that lives takes connections at once.
CONNECT_S = 1.0


class EngineError(OSError):
    """What the engine said, or why it could not be asked, in a sentence. ``status``: of HTTP; 0: it was not reached.

    ``again``: it was asked in a version that it has no more; from now on it is asked in another one.
    """

    def __init__(self, sentence: str, status: int = 0, *, again: bool = False) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status
        self.again = again

    def __str__(self) -> str:
        return self.sentence


#: Path of a socket -> the version that its engine wants, where that is another one.
_wanted: dict[str, str] = {}


def spoken(path: str) -> str:
    """The version of the API that the engine at ``path`` is asked in."""
    return _wanted.get(path, VERSION)


class Asked:
    """A request that was sent. ``fd`` becomes readable with the answer, which ``answer()`` then reads."""

    def __init__(self, socket_path: str, method: str, path: str, body: Any, deadline_s: float) -> None:
        self._path = socket_path
        self._deadline_s = deadline_s
        self._connection = _Connection(socket_path, deadline_s)
        headers = {"Host": "engine", "Connection": "close"}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(method, f"/v{spoken(socket_path)}{path}", data, headers)
        except OSError as error:
            self.close()
            raise unreachable(socket_path, error, deadline_s) from error

    @property
    def fd(self) -> int:
        return self._connection.sock.fileno()

    def answer(self) -> Any:
        """What the engine answers: JSON, text, or None for no content. Raises EngineError."""
        try:
            response = self._connection.getresponse()
            data = response.read(LIMIT)
        except http.client.RemoteDisconnected as error:
            raise EngineError(f"{self._path}: the engine went away before it answered") from error
        except http.client.HTTPException as error:
            raise EngineError(f"{self._path}: not a container engine ({type(error).__name__}: {error})") from error
        except OSError as error:
            raise unreachable(self._path, error, self._deadline_s) from error
        finally:
            self.close()
        content = _content(data, response.getheader("Content-Type") or "")
        if response.status >= 400:
            raise _refusal(self._path, _said(content), response.status)
        return content

    def close(self) -> None:
        self._connection.close()


class Engine:
    """One engine, at ``path``. Nothing is kept open between requests: the engine may be restarted at any time."""

    def __init__(self, path: str) -> None:
        self.path = path

    def ask(self, method: str, path: str, body: Any = None, *, deadline_s: float = 5.0) -> Any:
        """Ask and wait for the answer. Raises EngineError."""
        try:
            return self.send(method, path, body, deadline_s=deadline_s).answer()
        except EngineError as error:
            if not error.again:
                raise
        return self.send(method, path, body, deadline_s=deadline_s).answer()

    def send(self, method: str, path: str, body: Any = None, *, deadline_s: float = 5.0) -> Asked:
        """Ask; the answer comes later. Raises EngineError where the engine cannot be reached."""
        return Asked(self.path, method, path, body, deadline_s)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("engine", timeout=timeout_s)
        self._socket_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        try:
            self.sock.settimeout(min(self.timeout or CONNECT_S, CONNECT_S))
            self.sock.connect(self._socket_path)
            self.sock.settimeout(self.timeout)
        except OSError:
            self.sock.close()
            raise


def _refusal(path: str, said: str, status: int) -> EngineError:
    if wanted := _TOO_NEW.search(said):
        again = _wanted.get(path) != wanted[1]
        _wanted[path] = wanted[1]
        return EngineError(said, status, again=again)
    if known := _TOO_OLD.search(said):
        text = (
            f"the container engine is too old (its API is {known[1]}): install Docker {version_text(ENGINE)} or newer"
        )
        return EngineError(text, status)
    return EngineError(said, status)


def unreachable(path: str, error: OSError, deadline_s: float) -> EngineError:
    """Why the engine could not be asked, and what helps."""
    if isinstance(error, FileNotFoundError):
        return EngineError(
            f"{path}: no such socket: start or install a container engine, or set ccbed_engine to its own"
        )
    if isinstance(error, PermissionError):
        return EngineError(f"{path}: permission denied: add the user to the group that owns it ({_group(path)})")
    if isinstance(error, ConnectionRefusedError):
        return EngineError(f"{path}: nobody listens: the container engine is not running; start it")
    if isinstance(error, TimeoutError):
        return EngineError(f"{path}: the engine has not answered within {deadline_s:g} s")
    if error.errno == errno.ENOTSOCK:
        return EngineError(f"{path}: not a socket")
    return EngineError(f"{path}: {error.strerror or str(error) or type(error).__name__}")


def query(path: str, **parameters: Any) -> str:
    """A path with its parameters; mappings and lists go as JSON, as the engine wants its filters."""
    given = {
        name: json.dumps(value) if isinstance(value, dict | list) else str(value) for name, value in parameters.items()
    }
    return f"{path}?{urlencode(given)}"


def container(name: str, verb: str = "json") -> str:
    return f"/containers/{quote(name, safe='')}/{verb}"


def labelled(**labels: str) -> dict[str, list[str]]:
    """A filter: everything with these labels (``ccbed.`` is put before each name)."""
    return {"label": [f"ccbed.{name}={value}" for name, value in labels.items()]}


def is_old(version: str) -> bool:
    """Is an engine of this version older than what is needed?"""
    return _numbers(version) < ENGINE


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.replace("+", ".").replace("-", ".").split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def _content(data: bytes, kind: str) -> Any:
    if not data:
        return None
    try:
        return json.loads(data) if "json" in kind else data.decode(errors="replace")
    except ValueError:
        return data.decode(errors="replace")


def _said(content: Any) -> str:
    said = content.get("message") if isinstance(content, Mapping) else content
    return str(said or "the engine gave no reason").strip()


def _group(path: str) -> str:
    try:
        import grp

        return grp.getgrgid(Path(path).stat().st_gid).gr_name
    except (ImportError, KeyError, OSError):
        return "docker"
