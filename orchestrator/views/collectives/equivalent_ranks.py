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


def rounds(case: Case, moved: Transfers, seen: Pattern) -> list[list[Round]]:
    """Per group its rounds; none of a group of which some rank does something else in some step."""
    return [found for group in case.groups if len(group) > 1 for found in [_of_group(group, moved, seen)] if found]


def _of_group(group: tuple[int, ...], moved: Transfers, seen: Pattern) -> list[Round]:
    stages: dict[tuple[int, int], list[Stage]] = {}
    for stage in seen.stages:
        if stage.rank in group:
            stages.setdefault((stage.op, stage.index), []).append(stage)
    found = [Round(stages=tuple(each)) for _, each in sorted(stages.items())]
    return found if all(_even(one, group, moved) for one in found) else []


def _even(one: Round, group: tuple[int, ...], moved: Transfers) -> bool:
    """Whether each rank of the group sends and receives as much as each other."""
    columns = [column for stage in one.stages for column in stage.columns]
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
