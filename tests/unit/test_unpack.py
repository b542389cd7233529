"""Hostile archives: refused before anything is written, and nothing is left after a kill."""

from __future__ import annotations

import gzip
import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import pytest

from orchestrator.collectives.app import estimate
from orchestrator.model.errors import UsageError
from orchestrator.store import paths, unpack

from ..patience import until

_MIB = 1024**2


class Zeros(io.RawIOBase):
    """As many zeros as are read."""

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        buffer[:] = bytes(len(buffer))
        return len(buffer)


def _member(name: str, size_bytes: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.type = size_bytes, kind
    return member


def _longname_chain(length: int) -> bytes:
    """Headers that each say that the next one has a long name."""
    member = _member("././@LongLink", 4, tarfile.GNUTYPE_LONGNAME)
    return (member.tobuf(tarfile.GNU_FORMAT) + b"abc".ljust(512, b"\0")) * length


#: What it is -> its members, or its bytes before compression, and why it is refused.
HOSTILE: dict[str, tuple[list[tarfile.TarInfo] | bytes, str]] = {
    "a path of 2,000 parts": ([_member("/".join(["a"] * 2000))], "nested more than 32 levels"),
    "zeros": ([_member(f"r/{name}", 48 * _MIB) for name in "ab"], "bytes when unpacked"),
    "many empty files": ([_member(f"r/{number}") for number in range(16_000)], "files in"),
    "a name of 4 MiB": ([_member("r/" + "a" * 4 * _MIB)], "the header of a file has more than"),
    "headers of headers": (_longname_chain(2000), "not a readable archive"),
    "a device": ([_member("r/a", 0, tarfile.CHRTYPE)], "a link or special file"),
    "a second link": ([_member("r/a"), _member("r/b", 0, tarfile.LNKTYPE)], "a link or special file"),
    "no archive": (b"zeros" * 1000, "not a readable archive"),
}


def _archive(file: Path, content: list[tarfile.TarInfo] | bytes) -> Path:
    if isinstance(content, bytes):
        file.write_bytes(gzip.compress(content))
        return file
    with tarfile.open(file, "w:gz", compresslevel=1) as target:
        for member in content:
            target.addfile(member, Zeros() if member.size <= 64 * _MIB else None)  # a header without its file
    return file


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_before_anything_is_written(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    content, reason = HOSTILE[kind]
    archive = _archive(tmp_path / "run.tar.gz", content)
    monkeypatch.setattr(Path, "mkdir", lambda *args, **options: pytest.fail("a directory was made"))
    before = time.process_time()
    with pytest.raises(paths.TornBundleError, match=reason), unpack.unpacked(archive):
        pass
    assert time.process_time() - before < 5.0
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_an_archive_within_the_limits_is_unpacked_and_removed(tmp_path: Path, scratch: Path) -> None:
    plain = tmp_path / "run.tar"
    with tarfile.open(plain, "w") as target:
        target.addfile(_member("r/" + "d/" * 30 + "zeros", 63 * _MIB), Zeros())
    for archive in (plain, tmp_path / "run.tar.gz"):
        if not archive.exists():
            archive.write_bytes(gzip.compress(plain.read_bytes(), 1))
        with unpack.unpacked(archive) as bundle:
            assert bundle.parent.parent == scratch
            assert (bundle / ("d/" * 30) / "zeros").stat().st_size == 63 * _MIB
        assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_nothing_is_left_after_a_kill(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "run.tar.gz", [_member("r/zeros", _MIB)])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = (
        "import pathlib, sys, time\nfrom orchestrator.store import unpack\n"
        "with unpack.unpacked(pathlib.Path(sys.argv[1])) as bundle:\n    print(bundle, flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(archive)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )  # fmt: skip
    assert process.stdout is not None
    bundle = Path(process.stdout.readline().strip())
    assert (bundle / "zeros").stat().st_size == _MIB
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not list(scratch.iterdir()))


@pytest.mark.slow
def test_a_trace_that_is_a_bomb_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(gzip.compress(bytes(65 * _MIB), 1))
    with pytest.raises(UsageError, match="bytes when unpacked"):
        estimate._content(trace)
