"""Combinations of kinds that are drawn, and what is right for each by the job's own record of the truth."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS: Mapping[str, Sequence[object]] = {
    "model": ("mlp", "bn", "norm"),
    "opt": ("adam", "adamw", "sgd"),
    "sched": ("none", "torch", "own"),
    "save": ("whole", "two", "thread"),
    "data": ("map", "stream", "drawn"),
    "accum": (1, 2),
    "eval": (0, 1),
    "ema": (0, 1),
    "scaler": (0, 1),
    "sums": (0, 1),
    "dropout": (0.0, 0.2),
}
#: Ways to resume wrongly -> the kinds with which each of them has an effect.
FLAWS: Mapping[str, Mapping[str, Sequence[object]]] = {
    "weights": {},
    "optimizer": {},
    "rank-opt": {"opt": ("adam", "adamw", "sgd")},
    "mixed": {},
    "settings": {},
    "sched": {"sched": ("torch", "own")},
    "rng": {"dropout": (0.2,)},
    "data": {},
    "ema-unsaved": {"ema": (1,)},
    "ema-unloaded": {"ema": (1,)},
    "scaler": {"scaler": (1,)},
    "buffers": {"model": ("bn",)},
    "sums": {"sums": (1,)},
    "twice": {},
}
#: The kinds of the job that smooths its gradients by itself; in bfloat16 smaller rates change nothing.
MOMENTUM: Mapping[str, Sequence[object]] = {
    "lr": (1e-7, 5e-6, 1e-4, 1e-2, 1e-1),
    "opt": ("sgd", "adam", "adamw"),
    "dtype": ("float32", "bfloat16"),
    "norm": ("none", "batch", "layer"),
}
#: What sums in another order explain, relative to the value: in the first ``SOON`` steps after a resumption, and later.
SOON, ROUNDING, LATER = 6, 1e-3, 0.05
#: By how much more it rounds in bfloat16.
SHORT = 10
EXACT = ("batch", "rng", "lr", "decay", "scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A job: its kinds, its flaw (``none`` for half of all), and the time of a step in seconds."""

    number: int
    kinds: Mapping[str, object]
    flaw: str
    sleep: float
    job: str = "job"

    @property
    def arguments(self) -> list[str]:
        options = {**self.kinds, "flaw": self.flaw, "sleep": self.sleep}
        return [text for name, value in options.items() for text in (f"--{name}", str(value))]

    @property
    def name(self) -> str:
        return f"{self.number:03d} {self.flaw}: " + " ".join(f"{value}" for value in self.kinds.values())


def draws(seed: int, count: int) -> list[Draw]:
    """The same for the same seed: the first ones do not depend on ``count``."""
    return [_draw(number, random.Random(f"{seed}/{number}")) for number in range(count)]


def _draw(number: int, source: random.Random) -> Draw:
    kinds = {name: source.choice(values) for name, values in KINDS.items()}
    flaw = "none" if source.random() < 0.5 else source.choice(sorted(FLAWS))
    for name, values in FLAWS.get(flaw, {}).items():
        if kinds[name] not in values:
            kinds[name] = source.choice(values)
    return Draw(number=number, kinds=kinds, flaw=flaw, sleep=source.choice((0.01, 0.02, 0.05)))


def momentum_draws(seed: int, count: int) -> list[Draw]:
    """Of the job that smooths its gradients by itself, every second one with the momentum lost."""
    return [_momentum_draw(number, random.Random(f"momentum/{seed}/{number}")) for number in range(count)]


def _momentum_draw(number: int, source: random.Random) -> Draw:
    kinds = {name: source.choice(values) for name, values in MOMENTUM.items()}
    if kinds["dtype"] == "bfloat16":
        kinds["lr"] = source.choice((1e-3, 1e-2))
    return Draw(number=number, kinds=kinds, flaw="lost" if number % 2 else "none", sleep=0.03, job="momentum")


def differences(clean: Path, drill: Path, more: float = 1) -> list[str]:
    """What the drill did otherwise after its resume than the undisturbed job, by the records of both; empty if nothing.

    ``more``: by how much more than float32 it rounds.
    """
    changed: dict[str, int] = {}
    for path in sorted(clean.glob("truth/r*.jsonl")):
        known = {row["step"]: row for row in _rows(path)}
        rows = _rows(drill / "truth" / path.name)
        last = [row for row in rows if row["pid"] == rows[-1]["pid"]] if rows else []
        if len(last) == len(rows) or [row["step"] for row in last] != [*range(last[0]["step"], max(known) + 1)]:
            changed.setdefault("steps", 0)
        if sum(row["step"] in known for row in last) and last[0]["step"] > 1 and _begins_early(rows, last):
            changed.setdefault("work twice", last[0]["step"])
        for row in last:
            for part, value in known.get(row["step"], {}).items():
                if part not in ("step", "pid") and not _is_equal(
                    part, value, row[part], more * (ROUNDING if row["step"] - last[0]["step"] < SOON else LATER)
                ):
                    changed.setdefault(part, row["step"])
    return [f"{part} from step {step}" for part, step in sorted(changed.items(), key=lambda item: (item[1], item[0]))]


def _begins_early(rows: list[dict[str, Any]], last: list[dict[str, Any]]) -> bool:
    """Whether the last process began at a step that is not after a save."""
    return bool((last[0]["step"] - 1) % 10)


def _is_equal(part: str, value: float, other: float, bound: float) -> bool:
    if part in EXACT:
        return value == other
    return math.isclose(value, other, rel_tol=bound, abs_tol=ROUNDING)


def _rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]
