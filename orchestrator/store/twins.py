"""The cache of twins: uninterrupted runs, by what determines their result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..model import codec
from ..model.run import Twin
from ..model.trial import Trial
from . import paths

#: What of a fingerprint can change a bit of the result.
_DECIDES = ("torch", "cpu", "threads", "code", "backend")


def key(trial: Trial, fingerprint: Mapping[str, Any]) -> str:
    """Hash of the trial without its faults, recovery, checks and limits, and of the fingerprint's deciding parts."""
    content = {
        "workload": trial.workload,
        "params": codec.plain(trial.params),
        "world": {
            "nodes": trial.world.nodes,
            "ranks_per_node": trial.world.ranks_per_node,
            "backend": trial.world.backend,
        },
        "seed": trial.seed,
        "fingerprint": {name: fingerprint.get(name) for name in _DECIDES},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:24]


def get(state: Path, name: str) -> Twin | None:
    """None when there is none, or a damaged one: a twin can always be run again."""
    file = state / "twins" / f"{name}.json"
    try:
        twin = codec.build(Twin, json.loads(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return twin if twin.key == name else None


def put(state: Path, twin: Twin) -> None:
    paths.write_json(state / "twins" / f"{twin.key}.json", codec.plain(twin))
