"""Print lines, tables and errors: with colours on a terminal, as plain text elsewhere."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from ...model import codec, vaulted
from ...model.frozen import dataclass, field, replace

if TYPE_CHECKING:
    from ...model.plugin import Catalogue


class Style(NamedTuple):
    """The look of a part of a line. ``fg``: its colour."""

    fg: str | None = None
    bold: bool | None = None
    dim: bool | None = None


_STYLES: Mapping[str, Style] = {
    "PASS": Style("green", bold=True),
    "FAIL": Style("red", bold=True),
    "UNKNOWN": Style("yellow", bold=True),
    "WARN": Style("yellow", bold=True),
    "FAULT": Style("red"),
    "good": Style("green"),
    "bad": Style("red"),
    "warn": Style("yellow"),
    "dim": Style(dim=True),
    "head": Style(bold=True),
}
#: Control characters but the new line and the tab, what changes the direction of text, and halves of a surrogate pair.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: Delimits the styled parts of a line until it is printed; no foreign text can contain it.
_NONCE = os.urandom(8).hex()
_DELIMITER = re.compile(rf"\x00{_NONCE}:(\w*);")
#: Where the width is not known.
_COLUMNS = 80
#: Cells of tables that name a state or an outcome.
_CELLS = {
    "warm": "green", "ready": "green",
    "busy": "cyan", "paused": "yellow", "starting": "yellow", "dead": "red", "absent": "red", "unreachable": "red",
    "pass": "green", "fail": "red", "unknown": "yellow",
}  # fmt: skip
#: Columns in which the text behind the labels of a line may begin.
_LABELS = 28
_GAP = re.compile(r" {2,}")
#: Parts of a line that belong together, such as commands, have a wide gap between them.
_WIDE_GAP = re.compile(r" {4,}")


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """``colour``: on a terminal; ``live``: the last line may be rewritten. ``secrets``: values from a vault, never printed.

    ``width``, ``error_width``: columns of a terminal to which lines of ``out`` and ``err`` are folded; 0: lines stay whole.
    ``verbosity``: -1 with --quiet, 1 with --verbose. ``formats``: of documents printed so far: json.
    """

    out: TextIO
    err: TextIO
    colour: bool = False
    live: bool = False
    width: int = 0
    error_width: int = 0
    verbosity: int = 0
    secrets: set[str] = field(default_factory=set)
    formats: set[str] = field(default_factory=set)

    @property
    def quiet(self) -> bool:
        return self.verbosity < 0

    @property
    def verbose(self) -> bool:
        return self.verbosity > 0

    @property
    def narrator(self) -> Terminal:
        """The terminal for what a verb tells on its way to the result: nothing with --quiet; problems are shown all the same."""
        return self.silent() if self.quiet else self

    def silent(self) -> Terminal:
        """A terminal that prints problems only."""
        return replace(self, out=io.StringIO(), live=False)

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """Discard what follows if the reader of the output has gone, as with ``| head``: a run goes on without it."""
        try:
            yield
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.out.fileno())
            os.close(null)

    def hidden(self, value: Any) -> Any:
        """Remove the values from a vault out of a text or JSON value."""
        return vaulted.hide(value, tuple(self.secrets))

    def shown(self, text: str) -> str:
        """Return a text as it is printed: without foreign control characters and values from a vault."""
        return _printed(self.hidden(text), _STYLES)

    def line(self, text: str = "") -> None:
        self.lines([text])

    def lines(self, lines: Iterable[str]) -> None:
        self.clear()
        self.out.write(self.shown("".join(f"{row}\n" for line in lines for row in self._folded(line, self.width))))
        self.out.flush()

    def _folded(self, text: str, width: int, hanging: int | None = None) -> Iterator[str]:
        """The rows of a text; each line is folded to ``width``."""
        for line in text.split("\n") if width else [text]:
            yield from fold(line, width, unstyled, hanging) if width else [line]

    def block(self, text: str) -> None:
        """Print a part of a foreign text, such as a log."""
        self.out.write(self.shown(text))

    def status(self, text: str) -> None:
        """Print a line that the next one replaces; only on a terminal."""
        if self.live:
            line = " ".join(clean(self.hidden(text)).split("\n"))
            self.out.write(f"\r\x1b[2K{line[: _width() - 1]}")
            self.out.flush()

    def clear(self) -> None:
        if self.live:
            self.out.write("\r\x1b[2K")

    def style(self, text: str, name: str) -> str:
        return _styled(text, name) if self.colour and name in _STYLES else text

    def json(self, value: Any, *, indent: int | None = 1) -> None:
        """Print a dataclass or JSON value, for programs. ``indent`` None: on one line."""
        self.formats.add("json")
        self.out.write(json.dumps(self.hidden(codec.plain(value)), indent=indent) + "\n")
        self.out.flush()

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Any]], indent: str = "  ") -> None:
        """Print columns as wide as their content, numbers aligned to the right."""
        body = [[self.shown(str(cell)) for cell in row] for row in rows]
        right = [bool(body) and all(_number(row[column]) for row in body) for column in range(len(head))]
        self.clear()
        names = [self.shown(name) for name in head]
        (self._rich_table if self.colour or self.width else self._plain_table)(names, body, right, indent)
        self.out.flush()

    def _rich_table(self, head: Sequence[str], body: list[list[str]], right: list[bool], indent: str) -> None:
        """Print with rich: long cells are folded, states and outcomes have colours."""
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for name, number in zip(head, right, strict=True):
            table.add_column(name, justify="right" if number else "left", overflow="fold")
        for row in body:
            table.add_row(*(Text(cell, style=_CELLS.get(cell, "")) for cell in row))
        console = Console(
            file=self.out, force_terminal=self.colour, highlight=False, width=max(self.width or _width(), 60)
        )
        console.print(Padding(table, (0, 0, 0, len(indent)), expand=False))

    def _plain_table(self, head: Sequence[str], body: list[list[str]], right: list[bool], indent: str) -> None:
        """Print text that does not depend on the width of the terminal."""
        widths = [max(len(row[column]) for row in [list(head), *body]) for column in range(len(head))]
        for row in [list(head), *body]:
            cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
            self.out.write((indent + "  ".join(cells)).rstrip() + "\n")

    def error(self, problems: Iterable[str], hint: str = "") -> None:
        """Print ``error:`` and each problem, then ``next:`` and the hint, on stderr."""
        self.clear()
        for problem in problems:
            for text in clean(self.hidden(problem)).split("\n"):
                self._complain(self.style("error:", "bad"), text)
        for text in clean(self.hidden(hint)).splitlines():
            self._complain(self.style("next:", "head"), text)
        self.err.flush()

    def _complain(self, label: str, text: str) -> None:
        """Print a line on stderr; further rows of it are below the text behind ``label``."""
        for row in self._folded(f"{label} {text}", self.error_width, len(unstyled(label)) + 1):
            self.err.write(self.shown(f"{row}\n"))

    def note(self, text: str) -> None:
        """Print a line on stderr that is no problem."""
        self.clear()
        self._complain(self.style("note:", "dim"), text)
        self.err.flush()

    def warn(self, text: str) -> None:
        self.clear()
        self._complain(self.style("warning:", "warn"), text)
        self.err.flush()


class Invocation(Protocol):
    """The part of the session that a display of a run knows: its terminal, its plugins, and the beds that go down with it."""

    terminal: Terminal
    is_json: bool

    @property
    def catalogue(self) -> Catalogue: ...
    def releases(self, bed: str) -> bool: ...


def standard() -> Terminal:
    """Return a terminal of stdout and stderr. ``NO_COLOR`` switches colours off; ``FORCE_COLOR`` switches them on off a terminal."""
    tty = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    forced = os.environ.get("FORCE_COLOR", "") not in ("", "0", "false")
    return Terminal(
        out=sys.stdout,
        err=sys.stderr,
        colour=(tty or forced) and not os.environ.get("NO_COLOR"),
        live=tty,
        width=_width() if sys.stdout.isatty() else 0,
        error_width=_width() if sys.stderr.isatty() else 0,
    )


def _number(text: str) -> bool:
    return text.replace(".", "").replace(",", "").isdigit() or text in ("", "-")


def _width() -> int:
    """The columns of the terminal; COLUMNS overrides them."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(stream.fileno()).columns or _COLUMNS  # type: ignore[union-attr]
    return _COLUMNS


def clean(text: str) -> str:
    """Replace control characters: a carriage return by a new line, any other by its escape such as ``\\x1b``."""
    return _CONTROL.sub(_visible, text.replace("\r\n", "\n").replace("\r", "\n"))


def _styled(text: str, name: str) -> str:
    """Return ``text`` in the style ``name``, for ``_printed``."""
    return f"\x00{_NONCE}:{name};{text}\x00{_NONCE}:;"


def unstyled(text: str) -> str:
    """A text as wide as it is printed."""
    return _DELIMITER.sub("", text)


def _printed(text: str, styles: Mapping[str, Style]) -> str:
    """Return a line for the terminal: cleaned, with the escape sequences of ``_styled`` parts."""
    parts = _DELIMITER.split(text)
    if len(parts) == 1:
        return clean(text)
    import click

    codes = {name: click.style("", reset=False, **style._asdict()) for name, style in styles.items()} | {"": "\x1b[0m"}
    return "".join(clean(part) if index % 2 == 0 else codes[part] for index, part in enumerate(parts))


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


# --- fold lines that are longer than the terminal is wide: between words, below the text behind their label -----------


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
