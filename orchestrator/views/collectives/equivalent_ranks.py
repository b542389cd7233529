"""The rounds in which all ranks of a group do the same, so that their times may be compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .dependencies import Pattern, Stage

if TYPE_CHECKING:
    from .experiment import Case
    from .samples import Transfers

#: Bytes of two ranks are equal if they differ by no more: shares cut by quotient and remainder, some elements each.
_EVEN = 64
_PART = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A step of the schedule: one stage of each rank of a group."""

    stages: tuple[Stage, ...]


def rounds(case: Case, moved: Transfers, pattern: Pattern) -> list[list[Round]]:
    """Per group its rounds; none of a group of which some rank does something else in some step."""
    return [own for group in case.groups if len(group) > 1 for own in [_of_group(group, moved, pattern)] if own]


def _of_group(group: tuple[int, ...], moved: Transfers, pattern: Pattern) -> list[Round]:
    stages: dict[tuple[int, int], list[Stage]] = {}
    for stage in pattern.stages:
        if stage.rank in group:
            stages.setdefault((stage.op, stage.index), []).append(stage)
    own = [Round(stages=tuple(stages_of_round)) for _, stages_of_round in sorted(stages.items())]
    return own if all(_even(round_, group, moved) for round_ in own) else []


def _even(round_: Round, group: tuple[int, ...], moved: Transfers) -> bool:
    """Whether each rank of the group sends and receives as much as each other."""
    columns = [column for stage in round_.stages for column in stage.columns]
    for ends in (moved.peer, moved.rank):
        messages: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        for column in columns:
            messages[int(ends[column])] += 1
            sizes[int(ends[column])] += int(moved.size[column])
        if set(messages) != set(group) or len(set(messages.values())) > 1:
            return False
        if max(sizes.values()) - min(sizes.values()) > max(_EVEN, _PART * max(sizes.values())):
            return False
    return True
