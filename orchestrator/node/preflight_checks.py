"""Preflight checks that run where the ranks will run: names, connections, free space, memory, clocks, GPUs, images.

Each check takes and returns plain JSON values and keeps its time limit.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ..model import requirements
from ..system import host_facts, plain_files
from .oslayer import container_engine, gpus, processes

T = TypeVar("T")

_TOKEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: How long the look-up of a mapped address may take. A slower look-up delays every connection of a gang.
MAPPED_S = 1.0


def survey(
    addresses: Sequence[str],
    spaces: Sequence[str],
    shared_dir: str,
    token: str,
    name: str,
    lookup_s: float = 0.5,
    hold_s: float = 10.0,
    listen: Sequence[str] = (),
) -> dict[str, Any]:
    """Run all checks that involve no other host: identity, name look-ups, free space and memory.

    Also writes a token into the shared directory, and opens a port for ``hold_s`` on each address of ``listen``.
    """
    return {
        "boot": host_facts.boot_id(),
        "interfaces": host_facts.interfaces(),
        "names": resolve_names(addresses, lookup_s),
        "space": free_space(spaces),
        "memory": requirements.available_on_host(plain_files.read_text),
        "ports": {address: _or_problem(lambda address=address: hold_port(address, hold_s)) for address in listen},  # type: ignore[misc]
        "unwritable": _or_problem(lambda: write_token(shared_dir, token, name)) or "",
    }


def check_peers(targets: Sequence[Sequence[Any]], limit_s: float, shared_dir: str, token: str) -> dict[str, Any]:
    """Check the other hosts: which of them accept connections, and whose tokens the shared directory shows."""
    return {"problems": try_connections(targets, limit_s), "tokens": read_tokens(shared_dir, token)}


def clean_up(holders: Sequence[Sequence[int]], shared_dir: str, token: str) -> None:
    """Remove what a survey left: its ports and tokens."""
    release_ports(holders)
    remove_tokens(shared_dir, token)


def resolve_names(addresses: Sequence[str], limit_s: float) -> list[dict[str, Any]]:
    """Look up the name of each address and the addresses of that name, with the seconds that each look-up took.

    A look-up that takes longer than ``limit_s`` is abandoned. ``mapped_s``: the seconds for ``::ffff:a.b.c.d``, the form in
    which the IPv6 sockets of c10d look up the address as well.
    """
    mapped = [f"::ffff:{address}" for address in addresses if ":" not in address]
    results = _in_parallel(
        [*addresses, *mapped],
        lambda address: _time_mapped(address) if address.startswith("::ffff:") else _look_up(address, limit_s),
    )
    durations = dict(zip(mapped, results[len(addresses) :], strict=True))
    return [
        {
            **row,
            **({"mapped_s": durations[key]["mapped_s"]} if (key := f"::ffff:{row['address']}") in durations else {}),
        }
        for row in results[: len(addresses)]
    ]


def resolve_nodes(names: Sequence[str], limit_s: float) -> dict[str, list[str]]:
    """Name of a node -> the addresses that it has here; none where it has none within ``limit_s``."""
    addresses = _in_parallel(names, lambda name: _timed(lambda: _addresses(name), limit_s)[0] or [])
    return dict(zip(names, addresses, strict=True))


def try_connections(targets: Sequence[Sequence[Any]], limit_s: float) -> list[str]:
    """Connect to each (address, port); for each in order an empty string, or the problem."""
    return _in_parallel(targets, lambda target: _try_connection(str(target[0]), int(target[1]), limit_s))


def hold_port(address: str, hold_s: float) -> tuple[int, int, int]:
    """Open a port whose connections the kernel accepts for ``hold_s``; (port, pid, start time) of the holding process.

    The holder outlives this process. Raises OSError.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        listener.bind((address, 0))
        listener.listen(64)
        holder = subprocess.Popen(
            ["sleep", f"{hold_s:g}"],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return int(listener.getsockname()[1]), holder.pid, processes.start_time(holder.pid)


def release_ports(holders: Sequence[Sequence[int]]) -> None:
    """End the processes that hold ports, given as (pid, start time)."""
    candidates = [(processes.find(pid), start) for pid, start in holders]
    processes.kill([process for process, start in candidates if process and process.start == start])
    for pid, _ in holders:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def free_space(paths: Sequence[str]) -> dict[str, int | str]:
    """Free bytes at each path, or at its nearest existing parent; the problem where it is not known."""
    return {path: _or_problem(lambda path=path: _free_bytes_near(Path(path))) for path in paths}  # type: ignore[misc]


def inspect_processes(pids: Mapping[str, int], shared_dir: str) -> dict[str, dict[str, Any]]:
    """The environment of each process: ``shm``, ``memory`` and ``same``.

    ``shm``: free bytes in its /dev/shm, or the problem. ``memory``: bytes that it may still allocate; None: no known limit.
    ``same``: does it see the same shared directory as this host? None: not known.
    """
    return {
        name: {
            "shm": _or_problem(functools.partial(_free_bytes, f"/proc/{pid}/root/dev/shm")),
            "memory": requirements.available_in_cgroup(plain_files.read_text, pid),
            "same": _is_same_directory(pid, shared_dir),
        }
        for name, pid in pids.items()
    }


def read_clock() -> dict[str, Any]:
    """The current time by the clocks of this host."""
    return {"boot": host_facts.boot_id(), "mono": time.monotonic(), "wall": time.time()}


def write_token(directory: str, token: str, name: str) -> None:
    """Write a token under a name into a directory that should be shared. Raises OSError, ValueError."""
    path = _token_directory(directory, token)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    (path / _checked_name(name)).write_text(token)


def read_tokens(directory: str, token: str) -> list[str]:
    """The names under which the directory holds this token."""
    try:
        return sorted(
            entry.name for entry in _token_directory(directory, token).iterdir() if entry.read_text() == token
        )
    except FileNotFoundError:
        return []


def remove_tokens(directory: str, token: str) -> None:
    shutil.rmtree(_token_directory(directory, token), ignore_errors=True)


def image_ids(engine: str, wanted: Sequence[str]) -> dict[str, str]:
    """The id of each of these images that the engine has. Raises EngineError."""
    client, ids = container_engine.EngineClient(engine), {}
    for name in wanted:
        try:
            ids[name] = str(client.request("GET", f"/images/{quote(name, safe='/:@')}/json")["Id"])
        except container_engine.EngineError as error:
            if error.status != container_engine.NOT_FOUND:
                raise
    return ids


def _look_up(address: str, limit_s: float) -> dict[str, Any]:
    name, reverse_s = _timed(lambda: socket.gethostbyaddr(address)[0], limit_s)
    row: dict[str, Any] = {"address": address, "name": name or "", "reverse_s": round(reverse_s, 4)}
    if name:
        back, forward_s = _timed(lambda: _addresses(name), limit_s)
        row |= {"back": back or [], "forward_s": round(forward_s, 4)}
    return row


def _addresses(name: str) -> list[str]:
    """Raises OSError."""
    return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)})


def _time_mapped(address: str) -> dict[str, Any]:
    """A mapped address needs no name, but the look-up must be fast. A busy host may be late, a slow name server is late each time."""
    durations = (_timed(lambda: socket.gethostbyaddr(address), MAPPED_S)[1] for _ in range(5))
    return {"mapped_s": next((round(duration_s, 4) for duration_s in durations if duration_s < MAPPED_S), MAPPED_S)}


def _timed(work: Callable[[], T], limit_s: float) -> tuple[T | None, float]:
    """(result, seconds). After ``limit_s`` the result is None, and the work continues in its thread.

    Works only for what releases the GIL: socket.getnameinfo() does not before Python 3.11.4, so look-ups use gethostbyaddr().
    """
    start, result = time.monotonic(), list[T]()

    def run() -> None:
        try:
            result.append(work())
        except OSError:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    is_late = thread.is_alive()
    return (None if is_late or not result else result[0]), (limit_s if is_late else time.monotonic() - start)


def _try_connection(address: str, port: int, limit_s: float) -> str:
    try:
        socket.create_connection((address, port), limit_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _in_parallel(items: Iterable[T], work: Callable[[T], Any]) -> list[Any]:
    """The result of ``work`` for each item, in order; each runs in a thread of its own. Raises the first error."""
    inputs = list(items)
    results: list[Any] = [None] * len(inputs)
    errors: list[Exception] = []

    def run(index: int) -> None:
        try:
            results[index] = work(inputs[index])
        except (OSError, ValueError) as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def _or_problem(work: Callable[[], T]) -> T | str:
    """The result of ``work``, or the text of its OSError."""
    try:
        return work()
    except OSError as error:
        return f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")


def _free_bytes_near(path: Path) -> int:
    return _free_bytes(next(parent for parent in (path, *path.parents) if parent.exists()))


def _is_same_directory(pid: int, path: str) -> bool | None:
    try:
        return os.path.samefile(path, f"/proc/{pid}/root{path}")
    except OSError:
        return None


def _free_bytes(path: str | Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _token_directory(directory: str, token: str) -> Path:
    return Path(directory) / f".preflight-{_checked_name(token)}"


def _checked_name(text: str) -> str:
    if not _TOKEN.fullmatch(text) or text.startswith("."):
        raise ValueError(f"{text!r} is not a plain name")
    return text


#: The checks by the names that requests use.
OPS: Mapping[str, Callable[..., Any]] = {
    "survey": survey,
    "resolve": resolve_nodes,
    "meet": check_peers,
    "tidy": clean_up,
    "space": free_space,
    "inside": inspect_processes,
    "clock": read_clock,
    "gpus": gpus.check_health,
    "images": image_ids,
}


def main(op: str, arguments: Mapping[str, Any]) -> int:
    """Run one check inside a container; prints ``{"value": …}`` or ``{"problem": text}`` as one line of JSON."""
    try:
        result = {"value": OPS[op](**arguments)}
    except (OSError, ValueError, RuntimeError) as error:
        result = {"problem": str(error)}
    print(json.dumps(result), flush=True)
    return 0
