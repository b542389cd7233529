"""The systems of a bed's nodes: the ``system.json`` of each, read through the provider."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..model.provider import Provider

FILE = "system.json"
LIMIT = 1024 * 1024


def read(provider: Provider, nodes: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """By node; empty for a node whose file is missing. The provider is open."""
    wanted = tuple(nodes)
    with tempfile.TemporaryDirectory(prefix="ccbed-systems-") as folder, ThreadPoolExecutor(max_workers=16) as pool:
        systems = pool.map(lambda name: _read(provider, name, Path(folder) / name / FILE), wanted)
        return dict(zip(wanted, systems, strict=True))


def _read(provider: Provider, name: str, to: Path) -> Mapping[str, Any]:
    provider.fetch(name, FILE, to, LIMIT)
    try:
        content = json.loads(to.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
