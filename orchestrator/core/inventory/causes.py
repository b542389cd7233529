"""One line per cause: of many hosts with the same mistake one is named, and the others are counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

#: Up to so many lines of one cause are all shown: each names a place to correct.
LISTED = 3


def fold(problems: Iterable[str], hosts: Iterable[str]) -> Iterator[str]:
    """Lines that differ in nothing but their line number and the names of ``hosts`` have one cause."""
    names = "|".join(re.escape(name) for name in sorted(hosts, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])(?:{names})(?![\w-])|(?<=:)\d+(?=: )")
    groups: dict[str, list[str]] = {}
    for problem in problems:
        groups.setdefault(pattern.sub("*", problem), []).append(problem)
    for group in groups.values():
        if len(group) <= LISTED:
            yield from group
        else:
            yield f"{group[0]}; the same on {len(group) - 1} other hosts"
