"""Derives seeds from the trial's seed: one per purpose and rank, equal on every machine."""

from __future__ import annotations

import hashlib


def derive(seed: int, *purpose: object) -> int:
    """A 63-bit seed for ``purpose`` (e.g. ``"data", 2``), independent of those for other purposes."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
