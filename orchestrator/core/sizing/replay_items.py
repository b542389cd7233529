"""Replay items of the workload ``emulate``: made from a training's size or a trace, merged, and written as YAML."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...model.algorithm import LIBRARY
from .layout import Groups
from .training_size import TrainingSize

#: Element types that the workload supports; other types are sent as bytes.
_MOVED = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int8", "uint8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """``trials`` iterations of the operation, each after ``gap_ms`` of computing; empty ``groups``: a group of all ranks."""

    operation: str
    bytes: int
    trials: int
    gap_ms: float = 0.0
    algorithm: str = "ring"
    dtype: str = "float32"
    groups: Groups = ()

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "operation": self.operation, "bytes": self.bytes, "trials": self.trials, "gap_ms": round(self.gap_ms, 6),
            "algorithm": self.algorithm, "dtype": self.dtype if self.dtype in _MOVED else "uint8",
        }  # fmt: skip
        return {**document, "groups": [list(group) for group in self.groups]} if self.groups else document


def from_training_size(answer: TrainingSize) -> tuple[Item, ...]:
    """The items of each collective: of all full steps, then of the short last steps if they differ.

    Without a data set: of one step. A send-recv item exchanges two messages, one in each direction at once.
    """
    trials = answer.batches
    total, short = (trials.total, trials.short) if trials else (1, 0)
    made = []
    for row in answer.rows:
        collective = row.collective
        count = collective.count // 2 if collective.operation == "send-recv" else collective.count
        groups = (
            () if len(collective.groups) == 1 and collective.ranks == answer.request.layout.gpus else collective.groups
        )
        item = Item(
            operation=collective.operation, bytes=collective.size, trials=count * total, dtype=collective.dtype, groups=groups,
            algorithm=row.price.algorithm if row.price else LIBRARY,
        )  # fmt: skip
        if row.last_size == collective.size or not short:
            made.append(item)
            continue
        if total > short:
            made.append(dataclasses.replace(item, trials=count * (total - short)))
        made.append(dataclasses.replace(item, bytes=row.last_size, trials=count * short))
    return tuple(made)


def merge(items: Iterable[Item]) -> tuple[Item, ...]:
    """Merge equal neighbours; the gap is their mean, so that the total computing time stays the same."""
    made: list[Item] = []
    for item in items:
        if made and dataclasses.replace(made[-1], trials=0, gap_ms=0) == dataclasses.replace(item, trials=0, gap_ms=0):
            before = made[-1]
            trials = before.trials + item.trials
            gap = (before.gap_ms * before.trials + item.gap_ms * item.trials) / trials
            made[-1] = dataclasses.replace(before, trials=trials, gap_ms=gap)
        else:
            made.append(item)
    return tuple(made)


def write_trial(name: str, items: Sequence[Item], ranks: int, notes: Sequence[str]) -> str:
    """The text of the trial's file: ``notes`` as comments, a line per item."""
    head = [*(f"# {note}" for note in notes), f"trial: {name}", "workload: emulate", "params:", "  items:"]
    body = [f"    - {_flow(item.document)}" for item in items]
    world = f"world: {{nodes: {ranks}, ranks_per_node: 1, backend: auto}}"
    return "\n".join([*head, *body, world, "recovery: {policy: none}", ""])


def _flow(document: dict[str, Any]) -> str:
    """A mapping of names, numbers and lists of numbers on one line of YAML."""
    pairs = (f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in document.items())
    return "{" + ", ".join(pairs) + "}"
