"""One line per cause: of many hosts with the same mistake one is named, and the others are counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

#: Up to so many lines of a file with one cause are all shown: each is a place to correct.
LISTED = 3


def fold(problems: Iterable[str], hosts: Iterable[str]) -> Iterator[str]:
    """Lines that differ in nothing but their line number and the names of ``hosts`` have one cause."""
    names = "|".join(re.escape(name) for name in sorted(hosts, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])(?:{names})(?![\w-])|(?<=:)\d+(?=: )")
    groups: dict[str, list[str]] = {}
    for problem in problems:
        groups.setdefault(pattern.sub("*", problem), []).append(problem)
    for group in groups.values():
        has_lines = any(map(str.isdecimal, group[0].split(":")[1:2]))
        if len(group) <= (LISTED if has_lines else 1):
            yield from group
        else:
            yield f"{group[0]}; the same on {len(group) - 1} other host{'s' if len(group) > 2 else ''}"
