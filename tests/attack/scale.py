"""How many attacks a test makes, and from which seed.

``CCBED_ATTACK_SCALE`` 1 makes all of them (``make attack``); the default is a twentieth, for CI. ``CCBED_ATTACK_SEED`` chooses others.
"""

from __future__ import annotations

import os
import random

SCALE = float(os.environ.get("CCBED_ATTACK_SCALE") or 0.05)
SEED = int(os.environ.get("CCBED_ATTACK_SEED") or 8)


def count(full: int) -> int:
    """The number of attacks to make of ``full``; at least one."""
    return max(1, round(full * SCALE))


def generator(name: str) -> random.Random:
    """Random numbers for the attack ``name``: the same for the same seed."""
    return random.Random(f"{name}/{SEED}")
