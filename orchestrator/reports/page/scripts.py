"""The scripts of a page, and the policy under which a browser runs these and no others, whatever text a run left."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

from markupsafe import Markup

from ...model.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripts:
    """``policy``: the Content-Security-Policy; ``texts``: to be written between the tags without any change."""

    policy: str
    texts: tuple[Markup, ...]


@functools.cache
def of_page(*names: str) -> Scripts:
    """The files of this folder, in this order."""
    texts = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in names]
    return Scripts(policy=policy(texts), texts=tuple(Markup(text) for text in texts))  # noqa: S704 (our own files)


def policy(texts: Iterable[str]) -> str:
    """Nothing from outside; scripts by their SHA-256."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
