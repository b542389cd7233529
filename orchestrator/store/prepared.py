"""The records of the last preparation of each host of a bed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from . import paths


def read(state: Path, bed: str) -> dict[str, dict[str, Any]]:
    """Host -> ``parts``, ``python``, ``firewall``; empty if there is no record: then the hosts are prepared again."""
    try:
        content = json.loads(_file(state, bed).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write(state: Path, bed: str, hosts: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the records of these hosts, or replace them."""
    paths.write_json(_file(state, bed), {**read(state, bed), **hosts})


def forget(state: Path, bed: str, hosts: Collection[str] | None = None) -> None:
    """Remove the records of these hosts, or of all hosts."""
    kept = {host: record for host, record in read(state, bed).items() if hosts is not None and host not in hosts}
    if kept:
        paths.write_json(_file(state, bed), kept)
    else:
        _file(state, bed).unlink(missing_ok=True)


def _file(state: Path, bed: str) -> Path:
    return state / "prepared" / f"{bed}.json"
