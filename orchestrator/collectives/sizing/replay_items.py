"""Replay items of the workload ``emulate``: made from a training's size or a trace, merged, and written as YAML."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from ...model.algorithm import LIBRARY
from ...model.frozen import dataclass
from ...rank.exchange import cases
from .layout import Groups
from .training_size import TrainingSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """``trials`` iterations of the operation; empty ``groups``: a group of all ranks.

    ``gaps_ms``: computing before each iteration, since the ``end`` (``gap_from``: or the ``start``) of the collective before;
    empty: no gaps. ``after``, in place of gaps: (places back, ms since the end of that collective; 0 places: since the start).
    """

    operation: str
    bytes: int
    trials: int
    gaps_ms: tuple[float, ...] = ()
    gap_from: str = "end"
    after: tuple[tuple[int, float], ...] = ()
    algorithm: str = "ring"
    dtype: str = "float32"
    groups: Groups = ()

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "operation": self.operation, "bytes": self.bytes, "trials": self.trials, **self._pace(),
            "algorithm": self.algorithm, "dtype": self.dtype if self.dtype in cases.DTYPES else "uint8",  # as bytes
        }  # fmt: skip
        return {**document, "groups": [list(group) for group in self.groups]} if self.groups else document

    def _pace(self) -> dict[str, Any]:
        if self.after:
            return {"after": [[back, round(ms, 6)] for back, ms in self.after]}
        gaps = [round(gap, 6) for gap in self.gaps_ms or (0.0,)]
        start = {"gap_from": self.gap_from} if self.gap_from != "end" else {}
        return {"gap_ms": gaps if len(set(gaps)) > 1 else gaps[0], **start}


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
    """Merge equal neighbours; every iteration keeps its gap."""
    groups = itertools.groupby(items, key=lambda item: dataclasses.replace(item, trials=0, gaps_ms=()))
    return tuple(_merged(tuple(same)) for _, same in groups)


def _merged(same: Sequence[Item]) -> Item:
    gaps = tuple(gap for item in same for gap in item.gaps_ms or (0.0,) * item.trials)
    return dataclasses.replace(same[0], trials=sum(item.trials for item in same), gaps_ms=gaps if any(gaps) else ())


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
