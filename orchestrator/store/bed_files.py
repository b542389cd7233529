"""Bed files, locks of beds, the record of a bed's open run, and the records of the last preparation of its hosts."""

from __future__ import annotations

import datetime
import fcntl
import getpass
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ..model import codec, vaulted
from ..model.bed import BedSpec, HostSpec
from ..model.errors import InfrastructureError, UsageError
from ..model.frozen import dataclass, replace
from . import durable, paths, secrets

OPEN_RUN = "open-run.json"
RUN_LOCK = "run.lock"
NIGHT_LOCK = "night.lock"
#: Nodes in quarantine and drained hosts: ``app/hosts/quarantine.py``, which beds without the file do not load.
QUARANTINE = "quarantine.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run that began on a bed and has not ended. ``driver``: pid of its orchestrator, 0 if that has exited.

    ``begun``: its inputs were written; until then its directory is not a run. ``command``: its command line. ``twin``: the
    directory of its twin while that runs. ``cut``: its journal could not be written, and its gang was stopped without a
    record.
    """

    run: str
    directory: str
    driver: int = 0
    age_s: float = 0.0
    begun: bool = True
    command: str = ""
    twin: str = ""
    cut: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The run, and its twin while that runs."""
        return frozenset({self.run, *([Path(self.twin).name] if self.twin else [])})


def names(state: Path) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (state / "beds").glob("*.json")))


def names_without_file(state: Path) -> tuple[str, ...]:
    """The beds that have nodes, but no bed file."""
    names_ = (entry.parent.name for entry in (state / "beds").glob("*/nodes"))
    return tuple(sorted(set(names_) - set(names(state))))


def read(state: Path, name: str) -> BedSpec | None:
    """The bed as it was last brought up; None without a bed file. Raises InfrastructureError for a damaged file."""
    file = state / "beds" / f"{name}.json"
    try:
        return codec.build(BedSpec, _unmasked(json.loads(file.read_bytes()), _vault(state, name)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = f"remove it, then: ccbed down {name}"
        raise InfrastructureError(f"{file}: not a readable bed file ({error})", hint=hint) from None


def write(state: Path, bed: BedSpec) -> None:
    """Write the bed file. Values from a vault are kept in a separate file that only its owner can read."""
    content = codec.plain(bed)
    if secrets := content.pop("vault"):
        paths.write_json(_vault(state, bed.name), secrets)
    paths.write_json(state / "beds" / f"{bed.name}.json", vaulted.mask(content, secrets))
    if not secrets:
        _vault(state, bed.name).unlink(missing_ok=True)


def forget(state: Path, name: str) -> None:
    (state / "beds" / f"{name}.json").unlink(missing_ok=True)
    _vault(state, name).unlink(missing_ok=True)
    clear_preflight(state, name)


def _vault(state: Path, name: str) -> Path:
    return state / "beds" / f"{name}.vault"


def _unmasked(content: Any, vault: Path) -> Any:
    """A bed file's content with the values from the vault."""
    secrets = json.loads(vault.read_bytes()) if vault.exists() else []
    return {**vaulted.reveal(content, secrets), "vault": secrets}


def require_preflight(state: Path, name: str) -> None:
    """The bed is being changed: `up` repeats the preflight until it passes."""
    file = _preflight_file(state, name)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.touch()


def clear_preflight(state: Path, name: str) -> None:
    _preflight_file(state, name).unlink(missing_ok=True)


def needs_preflight(state: Path, name: str) -> bool:
    """Return whether no preflight has passed since the bed was changed."""
    return _preflight_file(state, name).exists()


def _preflight_file(state: Path, name: str) -> Path:
    return state / "beds" / f"{name}.doubt"


def minimal_spec(state: Path, name: str) -> BedSpec:
    """The minimal spec to shut down a bed without a bed file: its name and its directory.

    Containers and networks are identified by their labels. Raises UsageError if the bed has hosts behind SSH.
    """
    workdir = state / "beds" / name
    if any(workdir.glob("keeper-*")):
        raise UsageError(
            f"bed {name}: its bed file is gone, and its hosts are not known without it",
            hint="ccbed down INVENTORY, with the inventory that it was brought up with",
        )
    keeper = _json(workdir / "keeper" / "keeper.json") or {}
    contained = keeper.get("backend") == "containers"
    bed = BedSpec(
        name=name,
        provider="docker" if contained else "process",
        nodes=(),
        inventory="",
        workdir=str(workdir),
        shared_dir=str(workdir / "shared"),
        agent="",
    )
    if not contained:
        return bed
    host = HostSpec(name="localhost", engine=str(keeper.get("engine") or HostSpec(name="").engine))
    return replace(bed, hosts=(host,), hostdir=str(workdir), network="private")


def lock(state: Path, name: str) -> AbstractContextManager[None]:
    """Held by the only process that changes a bed. Raises UsageError if another process holds it."""
    return _held(state / "beds" / f"{name}.lock", None, lambda: _being_changed(name))


def refuse_changing(state: Path, name: str, wait_s: float = 0.0) -> None:
    """Raises UsageError while another process changes the bed, after ``wait_s``: a run would lose the nodes that it replaces."""
    if _is_held(state / "beds" / f"{name}.lock", tries=1 + int(wait_s / 0.01)):
        raise _being_changed(name)


def _being_changed(name: str) -> UsageError:
    return UsageError(f"bed {name} is being changed by another ccbed", hint=f"wait for it; ccbed status {name}")


def run_lock(workdir: Path, run: str, directory: Path) -> AbstractContextManager[None]:
    """Held by the orchestrator that drives a run; freed by the kernel when it dies. Raises UsageError when held."""
    holder: dict[str, str | int] = {"run": run, "dir": str(directory), "pid": os.getpid()}
    return _held(workdir / RUN_LOCK, holder, lambda: busy(workdir))


def night_lock(workdir: Path, night: str) -> AbstractContextManager[None]:
    """Held by the process that runs a night on a bed; freed by the kernel when it dies. Raises UsageError when held."""
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    holder: dict[str, str | int] = {"night": night, "pid": os.getpid(), "user": getpass.getuser(), "since": since}
    return _held(workdir / NIGHT_LOCK, holder, lambda: _night(workdir))


def refuse_night(workdir: Path) -> None:
    """Raises UsageError while another process runs a night on the bed: a run between its trials would disturb them."""
    if _is_held(workdir / NIGHT_LOCK):
        raise _night(workdir)


def _night(workdir: Path) -> UsageError:
    holder = _json(workdir / NIGHT_LOCK) or {}
    who = f"pid {holder.get('pid')} of user {holder.get('user')}, since {holder.get('since')}"
    return UsageError(
        f"bed {workdir.name} is busy with night {holder.get('night')} ({who})",
        hint=f"wait for it, or end that process; then: ccbed nightly --resume {holder.get('night')}",
    )


def open_run(workdir: Path, now: float | None = None) -> OpenRun | None:
    """The open run of the bed, even if its orchestrator has exited. ``now``: seconds since 1970, for its age."""
    file = workdir / OPEN_RUN
    data = _json(file)
    if data is None:
        return None
    age = max(0.0, now - file.stat().st_mtime) if now is not None and file.exists() else 0.0
    return OpenRun(
        run=str(data.get("run", "")),
        directory=str(data.get("dir", "")),
        driver=driver(workdir),
        age_s=age,
        begun=bool(data.get("begun", True)),
        command=str(data.get("command", "")),
        twin=str(data.get("twin", "")),
        cut=bool(data.get("cut")),
    )


def driver(workdir: Path) -> int:
    """The pid of the orchestrator that holds the run lock; 0 if no process holds it."""
    file = workdir / RUN_LOCK
    return int((_json(file) or {}).get("pid", 0)) if _is_held(file) else 0


def orchestrator(workdir: Path) -> int:
    """The pid of the process that runs a night, or drives a run, on the bed; 0 if none does."""
    night = int((_json(workdir / NIGHT_LOCK) or {}).get("pid", 0)) if _is_held(workdir / NIGHT_LOCK) else 0
    return night or driver(workdir)


def begin_run(workdir: Path, run: str, directory: Path, command: str = "") -> None:
    """Record a run as open before its directory exists. Raises UsageError with its name if another run is open."""
    other = open_run(workdir)
    if other is not None and other.run != run:
        raise busy(workdir, driven=False)
    _write_open_run(workdir, {"run": run, "dir": str(directory), "command": command, "begun": False})


def change_run(workdir: Path, run: str, directory: Path, **values: Any) -> None:
    """Record ``values`` (see ``OpenRun``) with the bed: facts that the run's history does not contain."""
    record = _json(workdir / OPEN_RUN) or {}
    if record.get("run") != run:
        record = {"run": run, "dir": str(directory.resolve())}
    _write_open_run(workdir, {**record, **values})


def end_twin(workdir: Path) -> None:
    """The open run has its twin, or starts another one."""
    record = _json(workdir / OPEN_RUN)
    if record and record.pop("twin", None):
        _write_open_run(workdir, record)


def end_run(workdir: Path, run: str) -> None:
    """The run is no longer open on the bed; another open run is not affected."""
    open_ = open_run(workdir)
    if open_ is not None and open_.run == run:
        secrets.forget(workdir, run)
        (workdir / OPEN_RUN).unlink(missing_ok=True)


def _write_open_run(workdir: Path, value: Mapping[str, Any]) -> None:
    """Durable, because the next steps rely on it."""
    durable.perform(durable.file(workdir / OPEN_RUN, paths.as_json(value)))


def busy(workdir: Path, *, driven: bool = True) -> UsageError:
    """The error that names the open run and the next step. ``driven`` False: its orchestrator has exited."""
    other = open_run(workdir)
    bed = workdir.name
    if other is None:
        return UsageError(f"bed {bed} is busy: another ccbed drives a run on it", hint=f"ccbed status {bed}")
    if other.driver and driven:
        return UsageError(
            f"bed {bed} is busy with run {other.run} (pid {other.driver})", hint=f"ccbed watch {other.directory}"
        )
    return UsageError(
        f"bed {bed} has an open run, {other.run}, whose orchestrator is gone",
        hint=f"ccbed resume {other.directory}; to end it: ccbed resume --close {other.directory}",
    )


@contextmanager
def _held(file: Path, holder: Mapping[str, str | int] | None, refusal: Callable[[], UsageError]) -> Iterator[None]:
    """Hold a lock, in whose file ``holder`` is written. Raises ``refusal`` if another process holds it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = _flock(file, tries=5)
    if fd is None:
        raise refusal()
    try:
        if holder:
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(holder).encode(), 0)
        yield
    finally:
        os.close(fd)


def _is_held(file: Path, tries: int = 1) -> bool:
    """Return whether a process holds the lock. It is probed by a shared one, so that concurrent probes do not see each other."""
    fd = _flock(file, tries, fcntl.LOCK_SH) if file.exists() else None
    if fd is not None:
        os.close(fd)
    return fd is None and file.exists()


def _flock(file: Path, tries: int = 1, kind: int = fcntl.LOCK_EX) -> int | None:
    """The locked file; None if another process holds it. ``tries`` allows for a concurrent probe of the lock."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for remaining in reversed(range(tries)):
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if remaining:
                time.sleep(0.01)
    os.close(fd)
    return None


def _json(file: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def read_prepared(state: Path, bed: str) -> dict[str, dict[str, Any]]:
    """Host -> ``parts``, ``python``, ``firewall``; empty if there is no record: then the hosts are prepared again."""
    try:
        content = json.loads(_prepared_file(state, bed).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_prepared(state: Path, bed: str, hosts: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the records of these hosts, or replace them."""
    paths.write_json(_prepared_file(state, bed), {**read_prepared(state, bed), **hosts})


def forget_prepared(state: Path, bed: str, hosts: Collection[str] | None = None) -> None:
    """Remove the records of these hosts, or of all hosts."""
    kept = {
        host: record for host, record in read_prepared(state, bed).items() if hosts is not None and host not in hosts
    }
    if kept:
        paths.write_json(_prepared_file(state, bed), kept)
    else:
        _prepared_file(state, bed).unlink(missing_ok=True)


def _prepared_file(state: Path, bed: str) -> Path:
    return state / "prepared" / f"{bed}.json"
