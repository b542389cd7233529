"""Read and write the files of a night: its plan, the journal of its rows, its findings, and its seal."""

from __future__ import annotations

import dataclasses
import datetime
import fcntl
import json
import math
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..core.documents import decoder
from ..model import codec
from ..model.errors import InfrastructureError, UsageError
from ..model.plan import Placement
from ..store import bundle, durable, paths, seal
from ..system import plain_files
from .night_judgement import NightJudgement
from .suite import FINDINGS, FORMAT, JOURNAL, NIGHT, RUNS, SPARES, Night, Row

SUITE = "suite.yml"
#: Space that is given back when the disk is full, so that the night still ends with its rows, its seal and its report.
RESERVE = ".reserve"
RESERVE_BYTES = 4 << 20
#: What must be free for another run.
_LEAST_BYTES = 1 << 20
#: The files that the seal of a night covers. Each bundle in RUNS has a seal of its own.
SEALED = (NIGHT, SUITE, JOURNAL)
_NAME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}Z-night-(?P<suite>.+)-[0-9a-f]{4,}")
_REASON = re.compile(r"repeat (?P<repeat>\d+) of (?P<cell>.+?)(?:, again on (?P<again>\S+),)? in (?P<night>\S+)")
_HINT = "the night cannot be read without it; take its directory from where it was made"


def new(runs: Path, suite: str, now: datetime.datetime) -> Path:
    """The path of the directory of a new night; only ``runs`` is created. Raises UsageError if it cannot be."""
    return bundle.new(runs, f"night-{suite}", now)


def is_night(directory: Path) -> bool:
    return (directory / NIGHT).is_file()


def nights(runs: Path) -> tuple[Path, ...]:
    """The directories of the nights in a directory of runs, oldest first."""
    if not runs.is_dir():
        return ()
    return tuple(
        sorted(
            path for path in runs.iterdir() if _NAME.fullmatch(path.name) and not path.is_symlink() and is_night(path)
        )
    )


def resolve(handle: str, runs: Path) -> Path:
    """The directory of a night, from its path, its name, or its last characters. Raises UsageError."""
    for path in (Path(handle), runs / handle):
        if is_night(path):
            return path.resolve()
    matches = [path for path in nights(runs) if handle and path.name.rpartition("-")[2].startswith(handle)]
    if len(matches) == 1:
        return matches[0].resolve()
    listed = ", ".join(path.name for path in (matches or nights(runs))[-3:])
    problem = f"{handle} matches several nights" if matches else f"no night {handle} in {runs}"
    raise UsageError(problem, hint=f"the newest: {listed}" if listed else "ccbed nightly quick")


class Origin(NamedTuple):
    """The place of a bundle in its night; ``again``: see Row."""

    cell: str
    repeat: int
    again: str = ""


def reason(night: str, cell: str, repeat: int, again: str = "") -> str:
    """Return why a bundle was made, for its ``bundle.json``."""
    return f"repeat {repeat} of {cell}{f', again on {again},' if again else ''} in {night}"


def origin(directory: Path) -> Origin | None:
    """The place of a bundle in its night, from its ``bundle.json``; None for a bundle that names none."""
    try:
        document = paths.document(directory, bundle.BUNDLE)
    except (paths.TornBundleError, OSError):
        return None
    return parse_reason(str(document.get("reason", ""))) if isinstance(document, dict) else None


def parse_reason(text: str) -> Origin | None:
    """None for a reason that is not that of ``reason``."""
    match = _REASON.fullmatch(text)
    return Origin(match["cell"], int(match["repeat"]), match["again"] or "") if match else None


def write_night(directory: Path, night: Night) -> None:
    """Create the directory of a night, durably. NIGHT is written last: it makes the directory a night.

    Raises UsageError, InfrastructureError for a full disk.
    """
    content = codec.plain(night)
    content["suite"].pop("text", None)
    bundle.make(directory)
    try:
        _allocate(directory / RESERVE, RESERVE_BYTES)
        durable.perform(
            (
                durable.MakeDirectory(path=directory / RUNS),
                *durable.file(directory / SUITE, night.suite.text.encode()),
                *durable.file(directory / NIGHT, paths.as_json(content)),
            )
        )
    except OSError as error:
        paths.discard(directory)
        raise InfrastructureError(
            f"{directory.parent}: no night can begin here: {error.strerror}", hint="free space, or --runs-dir DIRECTORY"
        ) from error


def release(directory: Path) -> None:
    """Give the reserved space back."""
    (directory / RESERVE).unlink(missing_ok=True)


def storage_problem(directory: Path) -> str:
    """Return why the night's directory can hold no further run; empty if it can."""
    file = directory / RUNS / f"{RESERVE}.{os.getpid()}"
    try:
        _allocate(file, _LEAST_BYTES)
    except OSError as error:
        return f"{directory / RUNS}: {error.strerror}"
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)
    return ""


def _allocate(file: Path, size: int) -> None:
    """Raises OSError where the space is not there."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def read_night(directory: Path) -> Night:
    """Raises UsageError where there is no night, TornBundleError for one that is damaged or of an unknown format."""
    if not is_night(directory):
        raise UsageError(f"{directory}: not a night: it has no {NIGHT}", hint="ccbed runs lists the nights")
    document = paths.document(directory, NIGHT)
    number = document.get("format") if isinstance(document, dict) else None
    if number != FORMAT:
        raise paths.TornBundleError(
            f"{directory / NIGHT}: format: unknown format {number!r}; this ccbed reads {FORMAT}",
            hint="read it with the ccbed that made it, or a newer one",
        )
    try:
        night: Night = paths.convert(Night, document, directory / NIGHT)
    except paths.TornBundleError as error:
        raise paths.TornBundleError(*error.problems, hint=_HINT) from None
    text = paths.text(directory, SUITE) if (directory / SUITE).is_file() else ""
    return dataclasses.replace(night, suite=dataclasses.replace(night.suite, text=text))


def read_rows(directory: Path) -> tuple[Row, ...]:
    """The rows in the order in which they ended. A last line that a kill cut off is left out.

    Raises TornBundleError for any other line that is no row.
    """
    if not (directory / JOURNAL).exists():
        return ()
    return _rows(directory / JOURNAL, _complete(paths.data(directory, JOURNAL)))


def read_judgement(directory: Path) -> NightJudgement | None:
    """The judgement of a night; None where it has none yet. Raises TornBundleError for a damaged one."""
    if not is_judged(directory):
        return None
    judgement: NightJudgement = paths.built(NightJudgement, directory, FINDINGS)
    return judgement


def write_judgement(directory: Path, judgement: NightJudgement) -> None:
    """A value that is not finite is left out: JSON has no such number, and the finding's text says what it was."""
    findings = tuple(
        dataclasses.replace(judged, value=None)
        if judged.value is not None and not math.isfinite(judged.value)
        else judged
        for judged in judgement.findings
    )
    paths.write_json(directory / FINDINGS, codec.plain(dataclasses.replace(judgement, findings=findings)))


def read_spares(directory: Path) -> Placement | None:
    """Return what the probe of the night's spares found; None before it. Raises TornBundleError for a damaged file."""
    if not (directory / SPARES).is_file():
        return None
    placement: Placement = paths.built(Placement, directory, SPARES)
    return placement


def write_spares(directory: Path, placement: Placement) -> None:
    paths.write_json(directory / SPARES, codec.plain(placement))


def close(directory: Path) -> None:
    """Seal the plan, the suite and the rows of a night that has ended. Raises InfrastructureError when they cannot be written."""
    release(directory)
    try:
        for name in SEALED:
            plain_files.sync(directory / name)
        seal.write(directory, seal.MANIFEST, SEALED)
        plain_files.sync(directory)
    except OSError as error:
        raise InfrastructureError(
            f"{directory}: all rows are written, but the night cannot be sealed: {error.strerror}",
            hint=f"free space or restore the directory, then: ccbed nightly --resume {directory}",
        ) from error


def is_closed(directory: Path) -> bool:
    return (directory / seal.MANIFEST).is_file()


def is_judged(directory: Path) -> bool:
    """Return whether the night came to its end: its process judges it after it sealed the rows, and may be killed in between."""
    return (directory / FINDINGS).is_file()


def verify(directory: Path) -> tuple[str, ...]:
    """The problems of the sealed files of a night; empty where they are as they were sealed."""
    if not is_closed(directory):
        return (f"{directory}: not sealed: the night has not ended",)
    try:
        sums = seal.read(directory, seal.MANIFEST)
        return tuple(
            f"{directory / name}: changed since {seal.MANIFEST} was written"
            if (directory / name).is_file()
            else f"{directory / name}: listed in {seal.MANIFEST}, but missing"
            for name in SEALED
            if not (directory / name).is_file() or plain_files.sha256(directory / name) != sums.get(name)
        )
    except paths.TornBundleError as error:
        return tuple(error.problems)


class Journal:
    """The only writer of a night's rows. A kill loses no row that ``append`` has returned for."""

    def __init__(self, directory: Path) -> None:
        """Lock the file and cut off a torn last line. Raises InfrastructureError when another process writes the night."""
        self._path = directory / JOURNAL
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = paths.read(self._path)
            whole = _complete(content)
            self.rows = list(_rows(self._path, whole))
            os.ftruncate(self._fd, len(whole))
            plain_files.sync(directory)
        except BlockingIOError:
            os.close(self._fd)
            raise InfrastructureError(
                f"{directory}: another ccbed runs this night", hint="wait for it, or end that process"
            ) from None
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def append(self, row: Row) -> None:
        """Write a row and force it to the disk. Raises InfrastructureError when that fails."""
        line = json.dumps(codec.plain(row), separators=(",", ":"), ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            self._write(line)
        except OSError:
            self._retry(line)
        self.rows.append(row)

    def _write(self, line: bytes) -> None:
        written = os.write(self._fd, line)
        while written < len(line):
            written += os.write(self._fd, line[written:])
        os.fsync(self._fd)

    def _retry(self, line: bytes) -> None:
        """Write the row in place of its beginning, with the reserved space."""
        try:
            release(self._path.parent)
            os.ftruncate(self._fd, len(_complete(paths.read(self._path))))
            self._write(line)
        except OSError as error:
            raise InfrastructureError(
                f"{self._path}: a row cannot be written: {error.strerror}",
                hint=f"free space or restore the directory, then: ccbed nightly --resume {self._path.parent}",
            ) from error


def _complete(content: bytes) -> bytes:
    """The lines that end, without a last one that is not JSON: a kill can leave blocks of zeros behind a longer file."""
    whole = content[: content.rfind(b"\n") + 1]
    start = whole.rfind(b"\n", 0, -1) + 1 if whole else 0
    return whole if not whole or _is_json(whole[start:]) else whole[:start]


def _is_json(line: bytes) -> bool:
    try:
        decoder.parse(line)
    except decoder.DocumentError:
        return False
    return True


def _rows(file: Path, content: bytes) -> tuple[Row, ...]:
    return tuple(_row(file, number, line) for number, line in enumerate(content.splitlines(), start=1))


def _row(file: Path, number: int, line: bytes) -> Row:
    try:
        value: Any = decoder.parse(line)
        row: Row = decoder.convert(Row, value)
    except decoder.DocumentError as error:
        raise paths.TornBundleError(f"{file}:{number}: not a row of a night ({error})", hint=_HINT) from None
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*|", row.run):
        raise paths.TornBundleError(f"{file}:{number}: run: must be the name of a bundle", hint=_HINT)
    return row
