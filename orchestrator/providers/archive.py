"""agent.pyz: the code of keeper, agent and ranks in one file; equal sources give equal bytes. Its name has their hash."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from pathlib import Path

from ..model.requirements import HOST_PYTHON, version_text
from ..node.files import payloads
from ..system import plain_files

PACKAGES = ("model", "node", "system")
#: Any Python can parse it, so that one that is too old reports that.
MAIN = f"""import sys

if sys.version_info < {HOST_PYTHON}:
    sys.exit("Python %d.%d is too old: {version_text(HOST_PYTHON)} or newer is needed" % sys.version_info[:2])

from orchestrator.node.__main__ import main

sys.exit(main(sys.argv[1:]))
""".encode()
#: The oldest date of a zip file; modification times would change its bytes.
DATE = (1980, 1, 1, 0, 0, 0)


@functools.cache
def agent_hash() -> str:
    """The hash of what is in the archive that this version of ccbed copies to hosts (12 hex digits)."""
    return payloads.content_hash(dict(_sources()))[:12]


@functools.cache
def build() -> bytes:
    """The archive of the present sources; not compressed, because an interpreter reads it once per bed."""
    import zipfile  # a run on a bed that is up builds no archive

    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(_sources()):
            archive.writestr(zipfile.ZipInfo(name, DATE), content)
    return memory.getvalue()


def write(directory: Path) -> tuple[Path, str]:
    """Write the archive into a directory unless it exists; its path and hash."""
    path = directory / f"agent-{agent_hash()}.pyz"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        plain_files.replace_file(str(path), build())
    return path, agent_hash()


def _sources() -> Iterator[tuple[str, bytes]]:
    package = Path(__file__).parent.parent
    yield "__main__.py", MAIN
    yield "orchestrator/__init__.py", (package / "__init__.py").read_bytes()
    yield from payloads.rank_code(package).items()
    for name in PACKAGES:
        yield from payloads.read_code(package, name).items()
