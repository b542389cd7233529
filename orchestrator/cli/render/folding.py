"""Fold lines that are longer than the terminal is wide: between words, below the text behind their label."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

#: Columns in which the text behind the labels of a line may begin.
_LABELS = 28
_GAP = re.compile(r" {2,}")
#: Parts of a line that belong together, such as commands, have a wide gap between them.
_WIDE_GAP = re.compile(r" {4,}")


def fold(line: str, width: int, plain: Callable[[str], str], hanging: int | None = None) -> Iterator[str]:
    """Yield ``line`` as lines of at most ``width`` columns; a longer word, such as a path, stays whole.

    ``plain``: the text without its styles; ``hanging``: the column of further lines (default: below the text behind the label).
    """
    visible = plain(line)
    if len(visible) <= width:
        yield line
        return
    indent = min(_text_column(visible) if hanging is None else hanging, width // 2)
    row = ""
    for part in _parts(line):
        if not plain(row).strip() or len(plain(row)) + len(plain(part)) <= width:
            row += part
        else:
            yield row.rstrip(" ")
            row = " " * indent + part.lstrip(" ")
        *whole, row = _words(row, width, indent, plain)
        yield from whole
    yield row


def _parts(line: str) -> Iterator[str]:
    """The line, cut before each wide gap; leading blanks belong to the first part."""
    start = 0
    for match in _WIDE_GAP.finditer(line):
        if line[start : match.start()].strip() and match.start() > _LABELS:
            yield line[start : match.start()]
            start = match.start()
    yield line[start:]


def _words(text: str, width: int, indent: int, plain: Callable[[str], str]) -> Iterator[str]:
    row = ""
    for word in re.split(r"( +)", text):
        is_label = len(plain(row)) <= indent
        if word.strip() and not is_label and len(plain(row)) + len(plain(word)) > width:
            yield row.rstrip(" ")
            row = " " * indent
        if word.strip() or plain(row).strip() or not row:
            row += word
    yield row


def _text_column(visible: str) -> int:
    """The column of the text behind the last label: after the last gap of two blanks that ends in the first columns."""
    leading = len(visible) - len(visible.lstrip(" "))
    ends = [match.end() for match in _GAP.finditer(visible) if leading < match.end() <= _LABELS]
    return ends[-1] if ends else leading + 2
