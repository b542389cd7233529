"""Text of ranks, hosts and bundles as a terminal may show it: control characters become visible, colours are ccbed's own."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

#: Control characters but the new line and the tab, what changes the direction of text, and halves of a surrogate pair.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: Marks the styled parts of a line until it is printed; no text from elsewhere can contain it.
_NONCE = secrets.token_hex(8)
_MARK = re.compile(rf"\x00{_NONCE}:(\w*);")


def clean(text: str) -> str:
    """``text`` without control characters: a carriage return becomes a new line, any other is written as ``\\x1b``."""
    return _CONTROL.sub(_visible, text.replace("\r\n", "\n").replace("\r", "\n"))


def styled(text: str, name: str) -> str:
    """``text`` in the style ``name``, for ``shown``."""
    return f"\x00{_NONCE}:{name};{text}\x00{_NONCE}:;"


def shown(text: str, styles: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for the terminal: cleaned, with the escape sequences of ``styled`` parts."""
    parts = _MARK.split(text)
    if len(parts) == 1:
        return clean(text)
    import click

    codes = {name: click.style("", reset=False, **style) for name, style in styles.items()} | {"": "\x1b[0m"}
    return "".join(clean(part) if index % 2 == 0 else codes[part] for index, part in enumerate(parts))


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
