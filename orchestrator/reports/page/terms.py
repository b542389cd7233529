"""The terms that are ccbed's own: looked up by `ccbed help`, and explained on a page where they first stand."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path

from markupsafe import escape

_FILE = Path(__file__).with_suffix(".json")
#: What is not text for people, or has a title of its own; then the text between two tags.
_PARTS = re.compile(
    r"<(script|style|svg|title|a|b|code|pre|button|summary|h1|h2|dt)\b.*?</\1>|<[^>]*>|([^<]+)", re.DOTALL
)


@functools.cache
def terms() -> Mapping[str, str]:
    """Term -> its two sentences."""
    return {name: term["text"] for name, term in json.loads(_FILE.read_text(encoding="utf-8")).items()}


@functools.cache
def names() -> Mapping[str, str]:
    """Every name that can be looked up, in lower case -> its term."""
    listed = json.loads(_FILE.read_text(encoding="utf-8"))
    return {other.lower(): name for name, term in listed.items() for other in (*term.get("also", ()), name)}


def explained(page: str) -> str:
    """The page with the meaning of each term as a title where it first stands in the text."""
    left = dict(terms())
    words = re.compile(rf"\b({'|'.join(sorted(map(re.escape, left), key=len, reverse=True))})(s?)\b", re.IGNORECASE)

    def term(match: re.Match[str]) -> str:
        text = left.pop(match[1].lower(), None)
        return match[0] if text is None else f'<abbr title="{escape(text)}">{match[0]}</abbr>'

    head, body, rest = page.partition("<body")
    return head + _PARTS.sub(lambda part: words.sub(term, part[2]) if part[2] and left else part[0], body + rest)
