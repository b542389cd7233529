"""What the nodes left, into the bundle: all nodes at once, each up to its cap, nobody waited for longer than allowed."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..model import vaulted
from ..model.provider import Fetched
from ..providers.files import NO_SPACE
from ..store import seal

#: Per node, what is fetched at most, in bytes; what is cut is recorded with it.
LIMIT = 256 * 1024 * 1024
#: All of it together; a node that takes longer is marked missing.
PATIENCE_S = 45.0

#: (path on the node, path below the node's directory of the bundle)
Wanted = Sequence[tuple[str, str]]


class Source(Protocol):
    """The part of a provider that is needed; asked for several nodes at once."""

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]: ...


@dataclass(kw_only=True)
class _Haul:
    """What came of one node."""

    size: int = 0
    missing: list[dict[str, Any]] = field(default_factory=list)
    capped: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    full: OSError | None = None


def gather(
    source: Source,
    wanted: Mapping[str, Wanted],
    bundle: Path,
    *,
    limit: int = LIMIT,
    patience_s: float = PATIENCE_S,
    secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """Value of the ok of ``gather``. What could not be had is listed with its reason, never silently absent.

    ``secrets``: values that are replaced in what the ranks print.

    It is fetched beside the bundle: what comes too late finds nothing to spoil. Raises OSError where there is no space.
    """
    prefix = f".gather-{bundle.name}-"
    for left in bundle.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=bundle.parent))
    hauls = {name: _Haul() for name in wanted}
    threads = [
        threading.Thread(target=_fetch, args=(source, name, each, staging, hauls[name], limit), daemon=True)
        for name, each in wanted.items()
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    for name, haul in hauls.items():
        if haul.done:
            _hide(staging / name, secrets)
            _place(staging / name, bundle / "nodes" / name)
        else:
            reason = f"not fetched within {patience_s:g} s"
            hauls[name] = _Haul(missing=[{"node": name, "path": path, "reason": reason} for path, _ in wanted[name]])
    shutil.rmtree(staging, ignore_errors=True)
    for haul in hauls.values():
        if haul.full:
            raise haul.full
    return _told(hauls.values(), bundle)


def _fetch(source: Source, node: str, wanted: Wanted, staging: Path, haul: _Haul, limit: int) -> None:
    """All of a node, within its cap."""
    try:
        found = source.fetch_all(node, [(path, staging / node / to) for path, to in wanted], limit)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            haul.full = error
        found = [Fetched(path=path, size=0, reason=str(error)) for path, _ in wanted]
    haul.size = sum(got.size for got in found)
    haul.missing += [{"node": node, "path": got.path, "reason": got.reason} for got in found if got.reason]
    haul.capped += [{"node": node, "path": got.path, "limit": limit} for got in found if got.capped]
    haul.done = True


def _place(fetched: Path, at: Path) -> None:
    """In the place of what an earlier attempt has brought."""
    if not fetched.exists():
        return
    shutil.rmtree(at, ignore_errors=True)
    at.parent.mkdir(parents=True, exist_ok=True)
    fetched.rename(at)


def _hide(directory: Path, secrets: Sequence[str]) -> None:
    """What was printed holds none of the secrets that are long enough not to be met by chance."""
    for file in directory.rglob("*.log") if secrets else ():
        text = file.read_bytes().decode(errors="surrogateescape")
        if (hidden := vaulted.hide(text, secrets)) != text:
            file.write_bytes(hidden.encode(errors="surrogateescape"))


def _told(hauls: Iterable[_Haul], bundle: Path) -> dict[str, Any]:
    hauls = list(hauls)
    return {
        "files": sum(1 for file in (bundle / "nodes").rglob("*") if file.is_file()),
        "sums": seal.sums(bundle, "nodes"),
        "bytes": sum(haul.size for haul in hauls),
        "missing": [one for haul in hauls for one in haul.missing],
        "capped": [one for haul in hauls for one in haul.capped],
    }
