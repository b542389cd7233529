"""Golden files: what a text looked like when somebody last read it. CCBED_GOLDEN=write renews them."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def same_as_golden(name: str, text: str) -> None:
    """Fails with a diff where ``text`` is not that of ``tests/golden/<name>``."""
    file = FOLDER / name
    if os.environ.get("CCBED_GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"{file} differs; after reading the diff: CCBED_GOLDEN=write make test"
