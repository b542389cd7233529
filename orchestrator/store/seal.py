"""The seal of a bundle: a list of SHA-256 sums that ``sha256sum -c`` understands."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..system import plain_files
from . import paths

MANIFEST = "manifest-sha256.txt"
DERIVED = "derived-sha256.txt"
#: The signature of the manifest, where it was signed.
SIGNATURE = f"{MANIFEST}.sig"
#: The signatures of the keepers for the manifest.
KEEPERS_SIGNATURES = f"{MANIFEST}.keepers"
#: Lists the baselines that rest on a run or a night, which is never removed then. It is written after the seal.
BASELINES = "baselines.txt"
_DERIVED = "|".join(map(re.escape, (MANIFEST, SIGNATURE, KEEPERS_SIGNATURES, DERIVED, BASELINES, "verdicts.json")))
#: Their temporary files, which remain if ccbed is killed while writing, are not evidence either.
_NOT_EVIDENCE = re.compile(rf"report/.*|{_DERIVED}|\.({_DERIVED})\.\d+")
#: Files that are forced to the disk at once: one after the other each waits for a write of the disk.
SYNCS = 16
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def seal(directory: Path, sign: Callable[[str], Mapping[str, str]] = lambda digest: {}) -> None:
    """List every evidence file with its checksum, after forcing them to the disk. Verdicts and report are not evidence.

    ``sign``: returns the signatures of the keepers for the digest of this list. They are written before it, as a list that is there is not
    signed later.
    """
    paths.sweep(directory)
    files = evidence(directory)
    with ThreadPoolExecutor(SYNCS, "ccbed-seal") as pool:
        for _ in pool.map(plain_files.sync, (directory / path for path in files)):
            pass
    manifest = listed(directory, files)
    signatures = sign(hashlib.sha256(manifest).hexdigest())
    if signatures:
        lines = "".join(f"{mac}  {keeper}\n" for keeper, mac in sorted(signatures.items()))
        paths.write(directory / KEEPERS_SIGNATURES, lines.encode())
    paths.write(directory / MANIFEST, manifest)
    plain_files.sync(directory)


def evidence(directory: Path) -> list[str]:
    """The files that the seal covers. Raises TornBundleError for a link among them."""
    return [path for path in paths.walk(directory) if not _NOT_EVIDENCE.fullmatch(path)]


def write(directory: Path, manifest: str, files: Iterable[str]) -> None:
    """``manifest`` with the sums of ``files``."""
    paths.write(directory / manifest, listed(directory, files))


def listed(directory: Path, files: Iterable[str]) -> bytes:
    """The lines of a manifest: SHA-256 and path of each of ``files``."""
    return "".join(f"{plain_files.sha256(directory / path)}  {path}\n" for path in sorted(files)).encode()


def verify(directory: Path) -> tuple[str, ...]:
    """The problems of the evidence and of the derived files; empty if all match their seal."""
    if not (directory / MANIFEST).is_file():
        return (f"{directory}: not closed: it has no {MANIFEST}",)
    try:
        return (*verify_evidence(directory), *_compare(directory, DERIVED, _derived(directory)))
    except paths.TornBundleError as error:
        return tuple(error.problems)


def is_derived(directory: Path) -> bool:
    """Return whether verdicts and report are complete and unchanged; an interrupted judgement is repeated."""
    if not (directory / DERIVED).is_file():
        return False
    try:
        return not _compare(directory, DERIVED, _derived(directory))
    except paths.TornBundleError:
        return False


def verify_evidence(directory: Path) -> tuple[str, ...]:
    """Verify the evidence only, as ``verify`` does. Raises TornBundleError."""
    return _compare(directory, MANIFEST, evidence(directory))


def _derived(directory: Path) -> list[str]:
    return [path for path in paths.walk(directory) if path.startswith("report/") or path == "verdicts.json"]


def _compare(directory: Path, manifest: str, present: list[str]) -> tuple[str, ...]:
    if not (directory / manifest).is_file():
        return (f"{directory}: {manifest} is missing",) if present else ()
    wanted = read(directory, manifest)
    present_paths = set(present)
    for path in present:
        paths.size(directory, path)
    problems = [
        f"{directory / path}: listed in {manifest}, but missing" for path in wanted if path not in present_paths
    ]
    problems += [f"{directory / path}: not listed in {manifest}" for path in present if path not in wanted]
    changed = (path for path in present if path in wanted and plain_files.sha256(directory / path) != wanted[path])
    return (*problems, *(f"{directory / path}: changed since {manifest} was written" for path in changed))


def read(directory: Path, manifest: str) -> dict[str, str]:
    """Path -> SHA-256 of a manifest. Raises TornBundleError for a line that is none."""
    wanted = {}
    for number, line in enumerate(paths.text(directory, manifest).splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if not match:
            raise paths.TornBundleError(f"{directory / manifest}:{number}: not a sum and a path")
        paths.inside(directory, match[2])
        wanted[match[2]] = match[1]
    return wanted


def sums(directory: Path, below: str) -> dict[str, str]:
    """Path -> SHA-256 of every file of a bundle below a folder of it."""
    root = directory / below
    return {f"{below}/{path}": plain_files.sha256(root / path) for path in paths.walk(root)} if root.is_dir() else {}
