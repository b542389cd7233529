"""What the ranks of a run need: the rank's code, workloads, algorithms, the digits, and the user's script with its directory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..model.errors import UsageError
from ..model.plugin import Catalogue
from ..node.files import payloads
from . import inputs

SALT = "salt"
#: The most that may travel with a run, in bytes.
LIMIT = 64 * 1024 * 1024
#: Folders of a script's directory that are never sent.
LEFT_OUT = ("__pycache__", "runs", "node_modules", "venv")


def collect(package: Path, catalogue: Catalogue, script: Path | None = None, salt: bytes = b"") -> dict[str, bytes]:
    """Path in the payload -> content. ``package``: the directory of this package. Raises UsageError above the limit.

    ``salt`` goes with a script whose directory holds secrets: the payload's digest, which a bundle shows, then depends
    on it, and no secret can be found by trying what gives that digest.
    """
    files = {f"orchestrator/{path.relative_to(package)}": path.read_bytes() for path in _own(package)}
    for folder in ("workloads", "algorithms"):
        for path in map(Path, catalogue.files.get(folder, ())):
            files[f"orchestrator/{folder}/{path.name}"] = path.read_bytes()
    if script is not None:
        users = _users(script)
        files.update(users)
        if any(inputs.reason_secret(name, content) for name, content in users.items()):
            files[SALT] = salt
    return files


@cache
def controller_digest() -> str:
    """SHA-256 of the code that makes decisions and computes figures: another version may decide otherwise."""
    package = Path(__file__).parents[1]
    files = (path for folder in ("core", "views", "model") for path in (package / folder).rglob("*.py"))
    return payloads.content_hash({str(path.relative_to(package)): path.read_bytes() for path in files})


def _own(package: Path) -> Iterator[Path]:
    for folder in ("rank", "workloads", "algorithms"):
        yield from sorted((package / folder).rglob("*.py"))
    yield from sorted((package / "data" / "digits").glob("*ubyte*"))


def _users(script: Path) -> dict[str, bytes]:
    """The script and the files of its directory. Raises UsageError if the directory is too large to send."""
    files: dict[str, bytes] = {}
    total = 0
    for path in _below(script.parent):
        total += path.stat().st_size
        if total > LIMIT:
            raise UsageError(
                f"{script.parent}: more than {LIMIT // 1024**2} MiB would travel with {script.name}",
                hint="put the script into a directory of its own, data elsewhere (ccbed_data_dir, --data-dir)",
            )
        files[f"user/{path.relative_to(script.parent)}"] = path.read_bytes()
    return files


def _below(directory: Path) -> Iterator[Path]:
    """Plain files only: no links, no folders without code, no hidden files except ``.env``, which scripts read."""
    for path in sorted(directory.iterdir()):
        hidden = path.name.startswith(".") and not (path.name.startswith(".env") and path.is_file())
        if hidden or path.is_symlink() or path.name in LEFT_OUT:
            continue
        if path.is_dir():
            yield from _below(path)
        elif path.is_file():
            yield path
