"""Items of a trial of the workload ``emulate``: made from a sizing or a trace, merged where they follow one another, as YAML."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...model.algorithm import LIBRARY
from .answer import Answer
from .layout import Groups

#: Types that the workload moves; others travel as bytes.
_MOVED = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int8", "uint8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """``trials`` times the operation after ``gap_ms`` of computing each; ``groups`` empty: all ranks are one group."""

    operation: str
    bytes: int
    trials: int
    gap_ms: float = 0.0
    algorithm: str = "ring"
    dtype: str = "float32"
    groups: Groups = ()

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "operation": self.operation, "bytes": self.bytes, "trials": self.trials, "gap_ms": round(self.gap_ms, 6),
            "algorithm": self.algorithm, "dtype": self.dtype if self.dtype in _MOVED else "uint8",
        }  # fmt: skip
        return {**found, "groups": [list(group) for group in self.groups]} if self.groups else found


def of_answer(answer: Answer) -> tuple[Item, ...]:
    """Collective by collective: those of all full steps, then those of the short last ones where they differ.

    Without a data set: of one step. An item's send-recv exchanges: it carries two of the messages, one each way at once.
    """
    found = answer.trials
    total, short = (found.total, found.short) if found else (1, 0)
    made = []
    for row in answer.rows:
        one = row.collective
        count = one.count // 2 if one.operation == "send-recv" else one.count
        groups = () if len(one.groups) == 1 and one.ranks == answer.question.layout.gpus else one.groups
        item = Item(
            operation=one.operation, bytes=one.size, trials=count * total, dtype=one.dtype, groups=groups,
            algorithm=row.price.algorithm if row.price else LIBRARY,
        )  # fmt: skip
        if row.last_size == one.size or not short:
            made.append(item)
            continue
        if total > short:
            made.append(dataclasses.replace(item, trials=count * (total - short)))
        made.append(dataclasses.replace(item, bytes=row.last_size, trials=count * short))
    return tuple(made)


def merged(found: Iterable[Item]) -> tuple[Item, ...]:
    """Equal neighbours as one item; its gap is their mean, so that the computing time in all stays what it was."""
    made: list[Item] = []
    for item in found:
        if made and dataclasses.replace(made[-1], trials=0, gap_ms=0) == dataclasses.replace(item, trials=0, gap_ms=0):
            before = made[-1]
            trials = before.trials + item.trials
            gap = (before.gap_ms * before.trials + item.gap_ms * item.trials) / trials
            made[-1] = dataclasses.replace(before, trials=trials, gap_ms=gap)
        else:
            made.append(item)
    return tuple(made)


def trial(name: str, items: Sequence[Item], ranks: int, notes: Sequence[str]) -> str:
    """The trial's file: ``notes`` as comments, one line per item."""
    head = [*(f"# {note}" for note in notes), f"trial: {name}", "workload: emulate", "params:", "  items:"]
    body = [f"    - {_flow(item.document)}" for item in items]
    world = f"world: {{nodes: {ranks}, ranks_per_node: 1, backend: auto}}"
    return "\n".join([*head, *body, world, "recovery: {policy: none}", ""])


def _flow(document: dict[str, Any]) -> str:
    """One line of YAML: a mapping whose values are names, numbers and lists of numbers."""
    pairs = (f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in document.items())
    return "{" + ", ".join(pairs) + "}"
