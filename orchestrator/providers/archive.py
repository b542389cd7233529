"""agent.pyz: the code of keeper, agent and ranks in one file; equal sources give equal bytes. Its name has their hash."""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ..model.requirements import HOST_PYTHON, version_text
from ..node.files import payloads, plain_files

PACKAGES = ("model", "node")
#: Any Python can parse it, so that one that is too old reports that.
MAIN = f"""import sys

if sys.version_info < {HOST_PYTHON}:
    sys.exit("Python %d.%d is too old: {version_text(HOST_PYTHON)} or newer is needed" % sys.version_info[:2])

from orchestrator.node.__main__ import main

sys.exit(main(sys.argv[1:]))
""".encode()
#: The oldest date of a zip file; modification times would change the hash.
DATE = (1980, 1, 1, 0, 0, 0)


def agent_hash() -> str:
    """The hash of the archive that this version of ccbed copies to hosts (12 hex digits)."""
    return digest(build())


@functools.cache
def build() -> bytes:
    """The archive of the present sources; not compressed, because an interpreter reads it once per bed."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(_sources()):
            archive.writestr(zipfile.ZipInfo(name, DATE), content)
    return memory.getvalue()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def write(directory: Path) -> tuple[Path, str]:
    """Write the archive into a directory unless it exists; its path and hash."""
    content = build()
    path = directory / f"agent-{digest(content)}.pyz"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        plain_files.replace_file(str(path), content)
    return path, digest(content)


def _sources() -> Iterator[tuple[str, bytes]]:
    package = Path(__file__).parent.parent
    yield "__main__.py", MAIN
    yield "orchestrator/__init__.py", (package / "__init__.py").read_bytes()
    yield from payloads.rank_code(package).items()
    for name in PACKAGES:
        for path in (package / name).rglob("*.py"):
            yield f"orchestrator/{path.relative_to(package)}", path.read_bytes()
