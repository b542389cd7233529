"""What a trial needs of the place where its ranks run, looked at from there: names, connections, space, clocks, GPUs.

Each takes plain values and gives plain values, and none takes longer than it is told to.
"""

from __future__ import annotations

import contextlib
import csv
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

from ..model import free_memory
from .files import label
from .keeper import container_status
from .oslayer import engine_api as engines
from .oslayer import processes

T = TypeVar("T")

_TOKEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: What is asked of each GPU, and what a healthy one has no more of than 0.
GPU = ("index", "uuid", "name", "ecc.errors.uncorrected.volatile.total", "retired_pages.pending")
#: So long at most is waited for the name of a mapped address; what takes longer delays every connection of a gang.
MAPPED_S = 1.0
FAULTY = {GPU[3]: ("0", "[N/A]"), GPU[4]: ("No", "[N/A]")}


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
    """All that needs no second party, in one go: who it is, how names are looked up, what is free, a token in the shared
    directory, and a port that takes connections for ``hold_s`` on each address of ``listen``."""
    return {
        "boot": label.boot_id(),
        "interfaces": container_status.interfaces(),
        "names": names(addresses, lookup_s),
        "space": space(spaces),
        "memory": free_memory.available_on_host(_text),
        "ports": {address: _tried(lambda address=address: hold(address, hold_s)) for address in listen},  # type: ignore[misc]
        "unwritable": _tried(lambda: write_token(shared_dir, token, name)) or "",
    }


def meet(targets: Sequence[Sequence[Any]], limit_s: float, shared_dir: str, token: str) -> dict[str, Any]:
    """What is seen of the others: whether they can be reached, and whose tokens lie in the shared directory."""
    return {"problems": connect(targets, limit_s), "tokens": read_tokens(shared_dir, token)}


def tidy(holders: Sequence[Sequence[int]], shared_dir: str, token: str) -> None:
    """Nothing is left of a survey."""
    let_go(holders)
    drop_tokens(shared_dir, token)


def names(addresses: Sequence[str], limit_s: float) -> list[dict[str, Any]]:
    """Address -> its name and back, with the seconds that each look-up took; ``limit_s`` where it was not waited for.

    ``mapped_s``: the same for the address as c10d's IPv6 sockets see it, ``::ffff:a.b.c.d``, which it looks up as well.
    """
    mapped = [f"::ffff:{address}" for address in addresses if ":" not in address]
    told = _each(
        [*addresses, *mapped],
        lambda one: _of_mapped(one) if one.startswith("::ffff:") else _looked_up(one, limit_s),
    )
    took = dict(zip(mapped, told[len(addresses) :], strict=True))
    return [
        {**one, **({"mapped_s": took[key]["mapped_s"]} if (key := f"::ffff:{one['address']}") in took else {})}
        for one in told[: len(addresses)]
    ]


def connect(targets: Sequence[Sequence[Any]], limit_s: float) -> list[str]:
    """For each (address, port) in order: empty where a connection was made, else why not."""
    return _each(targets, lambda target: _connected(str(target[0]), int(target[1]), limit_s))


def hold(address: str, hold_s: float) -> tuple[int, int, int]:
    """A port that takes connections for so long, also after this process: the kernel does. (port, pid, its start time)
    of what holds it. Raises OSError."""
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
        return int(listener.getsockname()[1]), holder.pid, processes.start_of(holder.pid)


def let_go(holders: Sequence[Sequence[int]]) -> None:
    """End what holds ports: (pid, start time) each."""
    found = [(processes.find(pid), start) for pid, start in holders]
    processes.kill([one for one, start in found if one and one.start == start])
    for pid, _ in holders:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def space(paths: Sequence[str]) -> dict[str, int | str]:
    """Free bytes at each path, or at the nearest directory on the way to it that exists; a sentence where unknown."""
    return {path: _tried(lambda path=path: _free(Path(path))) for path in paths}  # type: ignore[misc]


def inside(pids: Mapping[str, int], shared_dir: str) -> dict[str, dict[str, Any]]:
    """What each of these processes sees: free bytes in its /dev/shm (a sentence where it cannot be looked at), bytes that it
    may still take (None: no limit is known), and whether the shared directory is the same for it as it is out here (None
    where that is not known)."""
    return {
        name: {"shm": _shm(pid), "memory": free_memory.available_in_cgroup(_text, pid), "same": _same(pid, shared_dir)}
        for name, pid in pids.items()
    }


def memory() -> int | None:
    """Bytes that processes like this one can still have; None where nothing says."""
    known = [
        found
        for found in (free_memory.available_on_host(_text), free_memory.available_in_cgroup(_text))
        if found is not None
    ]
    return min(known, default=None)


def clock() -> dict[str, Any]:
    """This moment by the clocks of this machine."""
    return {"boot": label.boot_id(), "mono": time.monotonic(), "wall": time.time()}


def write_token(directory: str, token: str, name: str) -> None:
    """Leave a token under a name in a directory that should be shared. Raises OSError, ValueError."""
    path = _tokens(directory, token)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    (path / _plain(name)).write_text(token)


def read_tokens(directory: str, token: str) -> list[str]:
    """The names under which that token lies there."""
    try:
        return sorted(entry.name for entry in _tokens(directory, token).iterdir() if entry.read_text() == token)
    except FileNotFoundError:
        return []


def drop_tokens(directory: str, token: str) -> None:
    shutil.rmtree(_tokens(directory, token), ignore_errors=True)


def gpus(limit_s: float = 2.0) -> dict[str, Any]:
    """``{count, problems}`` by nvidia-smi; ``{reason}`` where it cannot be asked."""
    argv = ["nvidia-smi", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"reason": f"nvidia-smi: {error}"}
    if done.returncode:
        return {"reason": f"nvidia-smi: {(done.stderr or done.stdout).strip()[-200:]}"}
    return gpu_health(done.stdout)


def gpu_health(text: str) -> dict[str, Any]:
    """What nvidia-smi's table says."""
    rows = [
        dict(zip(GPU, (cell.strip() for cell in row), strict=False)) for row in csv.reader(text.splitlines()) if row
    ]
    problems = [
        f"GPU {row.get('index')} ({row.get('name')}): {what} is {row.get(what)}"
        for row in rows
        for what, fine in FAULTY.items()
        if row.get(what) not in fine
    ]
    return {"count": len(rows), "problems": problems}


def images(engine: str, wanted: Sequence[str]) -> dict[str, str]:
    """The id of each image that the engine has."""
    client, found = engines.Engine(engine), {}
    for name in wanted:
        try:
            found[name] = str(client.ask("GET", f"/images/{name}/json")["Id"])
        except engines.EngineError as error:
            if error.status != engines.GONE:
                raise
    return found


def _looked_up(address: str, limit_s: float) -> dict[str, Any]:
    name, reverse_s = _timed(lambda: socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0], limit_s)
    found: dict[str, Any] = {"address": address, "name": name or "", "reverse_s": round(reverse_s, 4)}
    if name:
        back, forward_s = _timed(lambda: sorted({str(one[4][0]) for one in socket.getaddrinfo(name, None)}), limit_s)
        found |= {"back": back or [], "forward_s": round(forward_s, 4)}
    return found


def _of_mapped(address: str) -> dict[str, Any]:
    """It need not have a name, if only that is known at once."""
    _, took = _timed(lambda: socket.getnameinfo((address, 0, 0, 0), socket.NI_NAMEREQD), MAPPED_S)
    return {"mapped_s": round(took, 4)}


def _timed(work: Callable[[], T], limit_s: float) -> tuple[T | None, float]:
    """(what came of it, the seconds that it took, at most ``limit_s``); it is not waited for any longer."""
    start, result = time.monotonic(), list[T]()

    def quietly() -> None:
        try:
            result.append(work())
        except OSError:
            return

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(limit_s)
    late = thread.is_alive()
    return (None if late or not result else result[0]), (limit_s if late else time.monotonic() - start)


def _connected(address: str, port: int, limit_s: float) -> str:
    try:
        socket.create_connection((address, port), limit_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _each(items: Iterable[T], work: Callable[[T], Any]) -> list[Any]:
    """All at once, in order. Raises what the first that fails raises."""
    listed = list(items)
    done: list[Any] = [None] * len(listed)

    wrong: list[Exception] = []

    def one(index: int) -> None:
        try:
            done[index] = work(listed[index])
        except (OSError, ValueError) as error:
            wrong.append(error)

    threads = [threading.Thread(target=one, args=(index,), daemon=True) for index in range(len(listed))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    return done


def _tried(work: Callable[[], T]) -> T | str:
    """A sentence where it does not work."""
    try:
        return work()
    except OSError as error:
        return f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")


def _free(path: Path) -> int:
    return _left(next(place for place in (path, *path.parents) if place.exists()))


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _shm(pid: int) -> int | str:
    return _tried(lambda: _left(f"/proc/{pid}/root/dev/shm"))


def _same(pid: int, path: str) -> bool | None:
    try:
        return os.path.samefile(path, f"/proc/{pid}/root{path}")
    except OSError:
        return None


def _left(path: str | Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _tokens(directory: str, token: str) -> Path:
    return Path(directory) / f".preflight-{_plain(token)}"


def _plain(text: str) -> str:
    if not _TOKEN.fullmatch(text) or text.startswith("."):
        raise ValueError(f"{text!r} is no plain name")
    return text


OPS: Mapping[str, Callable[..., Any]] = {
    "survey": survey,
    "meet": meet,
    "tidy": tidy,
    "space": space,
    "inside": inside,
    "clock": clock,
    "gpus": gpus,
    "images": images,
}


def main(op: str, arguments: Mapping[str, Any]) -> int:
    """One operation inside of a container: ``{"value": …}`` or ``{"problem": sentence}`` as a line."""
    try:
        told = {"value": OPS[op](**arguments)}
    except (OSError, ValueError, RuntimeError) as error:
        told = {"problem": str(error)}
    print(json.dumps(told), flush=True)
    return 0
