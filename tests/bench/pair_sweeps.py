"""Synthetic pair sweeps: links of an oversubscribed leaf-spine network with one or two slow parts.

Leaves of eight nodes; pairs of different leaves reach 60 %. Persistent differences of 0.5 % per node and direction and 1 % per
pair, 0.5 % from repeat to repeat, and 1 % of the samples are 10 to 30 % worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .nights import Floats

LEAF = 8
KINDS = ("link", "direction", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """``rates``: from x to x repeats. ``truth``: kind and parts of each slow part."""

    rates: Floats
    nodes: tuple[str, ...]
    groups: Mapping[str, str]
    truth: frozenset[tuple[str, tuple[str, ...]]]


def sweep(seed: int, size: float, *, defects: int | None = None, nodes: int | None = None, repeats: int = 5) -> Sweep:
    """One or two slow parts without a common node, by the seed."""
    rng = np.random.default_rng(seed)
    count = nodes or int(rng.integers(8, 65))
    names = tuple(f"n{index:02d}" for index in range(count))
    leaf = np.arange(count) // LEAF
    rate = np.where(leaf[:, None] == leaf, 100.0, 60.0)
    rate *= np.exp(rng.normal(0, 0.005, (count, 1)) + rng.normal(0, 0.005, count) + rng.normal(0, 0.01, (count, count)))
    free = list(rng.permutation(count))
    truth, slowdown = set(), np.ones((count, count))
    for _ in range(int(rng.integers(1, 3)) if defects is None else defects):
        kind = KINDS[rng.integers(3)]
        first, second = int(free.pop()), int(free.pop())
        pairs = {"direction": [(first, second)], "link": [(first, second), (second, first)]}.get(kind)
        if pairs is None:
            pairs = [(first, other) for other in range(count)] + [(other, first) for other in range(count)]
        for pair in pairs:
            slowdown[pair] = min(slowdown[pair], 1 - size)
        parts = (names[first],) if kind == "node" else (names[first], names[second])
        truth.add((kind, tuple(sorted(parts)) if kind == "link" else parts))
    samples = (rate * slowdown)[..., None] * np.exp(rng.normal(0, 0.005, (count, count, repeats)))
    is_bad = rng.random(samples.shape) < 0.01
    samples = np.where(is_bad, samples / (1 + rng.uniform(0.1, 0.3, samples.shape)), samples)
    return Sweep(
        rates=samples,
        nodes=names,
        groups={name: f"leaf{leaf[i]}" for i, name in enumerate(names)},
        truth=frozenset(truth),
    )
