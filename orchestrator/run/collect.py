"""Copy the files of a run from its nodes into the bundle: many nodes at once, each up to a size, within a time limit."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ..model import vaulted
from ..model.event import Event
from ..model.frozen import dataclass, field
from ..model.provider import FETCH_S, Fetched, count_waves
from ..node.files import label
from ..providers.bounded_threads import BoundedThreads
from ..providers.node_files import NO_SPACE, node_limit
from ..store import seal

#: (path on the node, path below the node's directory of the bundle)
Wanted = Sequence[tuple[str, str]]


class FileSource(Protocol):
    """The part of a provider that this module needs; several threads call it at once."""

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]: ...


@dataclass(kw_only=True)
class _Fetch:
    """The files that were fetched from one node. ``no_space``: the error of a full disk on this machine."""

    size: int = 0
    missing: list[dict[str, str]] = field(default_factory=list)
    capped: list[dict[str, str | int | Sequence[str]]] = field(default_factory=list)
    done: bool = False
    no_space: OSError | None = None


def gather(
    source: FileSource,
    wanted: Mapping[str, Wanted],
    bundle: Path,
    *,
    limit: int | None = None,
    patience_s: float = FETCH_S,
    secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the value of the ``gather`` event, which lists every file that could not be fetched with the reason.

    ``limit``: bytes of one node; default: providers.files.node_limit. ``secrets``: values that are replaced in the logs of the ranks.

    Files are fetched into a directory beside the bundle, so that a late one changes nothing. Raises OSError on a full disk.
    """
    limit = node_limit() if limit is None else limit
    prefix = f".gather-{bundle.name}-"
    for stale in bundle.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=bundle.parent))
    fetches = {name: _Fetch() for name in wanted}
    threads = BoundedThreads("ccbed-gather")
    fetching = [
        threads.start(functools.partial(_fetch, source, name, paths, staging, fetches[name], limit))
        for name, paths in wanted.items()
    ]
    limit_s = patience_s * count_waves(len(wanted))
    for late in wait(fetching, limit_s).not_done:
        late.cancel()  # one that has not begun would make the directory again
    for name, fetch in fetches.items():
        if fetch.done:
            _redact(staging / name, secrets)
            _replace(staging / name, bundle / "nodes" / name)
        else:
            reason = f"not fetched within {limit_s:g} s"
            fetches[name] = _Fetch(missing=[{"node": name, "path": path, "reason": reason} for path, _ in wanted[name]])
    shutil.rmtree(staging, ignore_errors=True)
    for fetch in fetches.values():
        if fetch.no_space:
            raise fetch.no_space
    return _summary(fetches.values(), bundle)


class GatheredEvents:
    """The events in the gathered files. Those of an incarnation are read once, so it is for one gather that has ended."""

    def __init__(self, bundle: Path) -> None:
        self._bundle = bundle
        self._events: dict[tuple[str | None, str | None], set[tuple[str, int]]] = {}

    def has(self, event: Event) -> bool:
        """Return whether the files that were gathered from the event's node have it; True for a node without any gathered file.

        The events of keepers are copied when the run has ended, and are not looked up.
        """
        source, directory = event.source, self._bundle / "nodes" / str(event.source.node)
        if source.writer in (label.KEEPER_DIR, label.OUTSIDE) or not directory.is_dir():
            return True
        incarnation = source.node, source.incarnation
        if incarnation not in self._events:
            self._events[incarnation] = set(_read_events(directory.glob(f"*.{source.incarnation}.jsonl")))
        return (source.writer, source.n) in self._events[incarnation]


def _read_events(files: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """(writer, number) of each event, without a line that was copied while it was written."""
    for line in (line for file in files for line in file.read_bytes().splitlines()):
        with suppress(ValueError, KeyError, TypeError):
            written = json.loads(line)["source"]
            yield str(written["writer"]), int(written["n"])


def _fetch(source: FileSource, node: str, wanted: Wanted, staging: Path, fetch: _Fetch, limit: int) -> None:
    """Fetch the files of one node, ``limit`` bytes at most."""
    try:
        fetched = source.fetch_all(node, [(path, staging / node / to) for path, to in wanted], limit)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            fetch.no_space = error
        fetched = [Fetched(path=path, size=0, reason=str(error)) for path, _ in wanted]
    fetch.size = sum(entry.size for entry in fetched)
    fetch.missing += [{"node": node, "path": entry.path, "reason": entry.reason} for entry in fetched if entry.reason]
    fetch.capped += [
        {"node": node, "path": entry.path, "files": entry.capped, "limit": limit} for entry in fetched if entry.capped
    ]
    fetch.done = True


def _replace(fetched: Path, target: Path) -> None:
    """Move fetched files to their directory; those of an earlier attempt are removed."""
    if not fetched.exists():
        return
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    fetched.rename(target)


def _redact(directory: Path, secrets: Sequence[str]) -> None:
    """Replace the secrets in logs; a very short secret stays, because its text occurs by chance."""
    for file in directory.rglob("*.log") if secrets else ():
        text = file.read_bytes().decode(errors="surrogateescape")
        if (hidden := vaulted.hide(text, secrets)) != text:
            file.write_bytes(hidden.encode(errors="surrogateescape"))


def _summary(fetches: Iterable[_Fetch], bundle: Path) -> dict[str, Any]:
    fetches = list(fetches)
    return {
        "files": sum(1 for file in (bundle / "nodes").rglob("*") if file.is_file()),
        "sums": seal.sums(bundle, "nodes"),
        "bytes": sum(fetch.size for fetch in fetches),
        "missing": [entry for fetch in fetches for entry in fetch.missing],
        "capped": [entry for fetch in fetches for entry in fetch.capped],
    }
