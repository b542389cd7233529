"""Lines, tables and errors: coloured on a terminal, plain text off it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from ...model import codec, vaulted
from . import printable

_STYLES: dict[str, dict[str, Any]] = {
    "PASS": {"fg": "green", "bold": True},
    "FAIL": {"fg": "red", "bold": True},
    "UNKNOWN": {"fg": "yellow", "bold": True},
    "FAULT": {"fg": "red"},
    "good": {"fg": "green"},
    "bad": {"fg": "red"},
    "warn": {"fg": "yellow"},
    "dim": {"dim": True},
    "head": {"bold": True},
}
#: Cells of tables that say how something is.
_CELLS = {
    "warm": "green", "busy": "cyan", "paused": "yellow", "starting": "yellow", "dead": "red", "absent": "red", "unreachable": "red",
    "pass": "green", "fail": "red", "unknown": "yellow",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """``colour``: only where a person looks at it; ``live``: a last line may be rewritten in place.

    ``secrets``: values out of a vault, which are never printed.
    """

    out: TextIO
    err: TextIO
    colour: bool = False
    live: bool = False
    secrets: set[str] = field(default_factory=set)

    def hidden(self, value: Any) -> Any:
        """A text or JSON value without the values out of a vault."""
        return vaulted.hide(value, tuple(self.secrets))

    def shown(self, text: str) -> str:
        """A text as it is printed: no control characters of others, no values out of a vault."""
        return printable.shown(self.hidden(text), _STYLES)

    def line(self, text: str = "") -> None:
        self.clear()
        self.out.write(self.shown(text) + "\n")
        self.out.flush()

    def lines(self, lines: Iterable[str]) -> None:
        self.clear()
        self.out.write(self.shown("".join(f"{line}\n" for line in lines)))
        self.out.flush()

    def block(self, text: str) -> None:
        """A part of a text that others wrote, such as a log."""
        self.out.write(self.shown(text))

    def status(self, text: str) -> None:
        """A line that the next one replaces; nothing off a terminal."""
        if self.live:
            line = " ".join(printable.clean(self.hidden(text)).split("\n"))
            self.out.write(f"\r\x1b[2K{line[: _width() - 1]}")
            self.out.flush()

    def clear(self) -> None:
        if self.live:
            self.out.write("\r\x1b[2K")

    def style(self, text: str, name: str) -> str:
        return printable.styled(text, name) if self.colour and name in _STYLES else text

    def json(self, value: Any) -> None:
        """A dataclass or JSON value, for programs."""
        self.out.write(json.dumps(self.hidden(codec.plain(value)), indent=1) + "\n")
        self.out.flush()

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Any]], indent: str = "  ") -> None:
        """Columns as wide as their content; numbers to the right."""
        body = [[self.shown(str(cell)) for cell in row] for row in rows]
        right = [bool(body) and all(_number(row[column]) for row in body) for column in range(len(head))]
        self.clear()
        names = [self.shown(name) for name in head]
        (self._rich_table if self.colour else self._plain_table)(names, body, right, indent)
        self.out.flush()

    def _rich_table(self, head: Sequence[str], body: list[list[str]], right: list[bool], indent: str) -> None:
        """For people: rich folds what does not fit, states and outcomes have their colours."""
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for name, number in zip(head, right, strict=True):
            table.add_column(name, justify="right" if number else "left", overflow="fold")
        for row in body:
            table.add_row(*(Text(cell, style=_CELLS.get(cell, "")) for cell in row))
        console = Console(file=self.out, force_terminal=True, highlight=False, width=max(_width(), 60))
        console.print(Padding(table, (0, 0, 0, len(indent)), expand=False))

    def _plain_table(self, head: Sequence[str], body: list[list[str]], right: list[bool], indent: str) -> None:
        """For programs and logs: the same text whatever the width."""
        widths = [max(len(row[column]) for row in [list(head), *body]) for column in range(len(head))]
        for row in [list(head), *body]:
            cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
            self.out.write((indent + "  ".join(cells)).rstrip() + "\n")

    def error(self, problems: Iterable[str], hint: str = "") -> None:
        """``error:`` for each problem and ``next:`` for what to do, on stderr."""
        self.clear()
        for problem in problems:
            for text in printable.clean(self.hidden(problem)).split("\n"):
                self.err.write(self.shown(f"{self.style('error:', 'bad')} {text}\n"))
        for text in printable.clean(self.hidden(hint)).splitlines():
            self.err.write(self.shown(f"{self.style('next:', 'head')} {text}\n"))
        self.err.flush()

    def warn(self, text: str) -> None:
        self.clear()
        self.err.write(self.shown(f"{self.style('warning:', 'warn')} {text}\n"))
        self.err.flush()


def standard() -> Terminal:
    """stdout and stderr of this process. ``NO_COLOR`` is honoured."""
    tty = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return Terminal(out=sys.stdout, err=sys.stderr, colour=tty and not os.environ.get("NO_COLOR"), live=tty)


def age(seconds: float) -> str:
    """``12 s``, ``3 min``, ``2 h``, ``4 d``."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def size(count: int) -> str:
    """``512 B``, ``3.4 MiB``, ``1.2 GiB``."""
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def _number(text: str) -> bool:
    return text.replace(".", "").replace(",", "").isdigit() or text in ("", "-")


def _width() -> int:
    try:
        return os.get_terminal_size().columns
    except OSError:
        return 80
