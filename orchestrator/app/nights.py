"""Holds what the verbs of the test-bed ask the product of nights for, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .. import products

if TYPE_CHECKING:
    from ..model.plan import Placement
    from .requests import RunRequest
    from .trials import Source


class Nights(Protocol):
    """The functions of ``nightly/extensions.py``. ``session``: the invocation; those that print need that of a terminal.

    ``checked``: the trial, as ``app.run`` has checked it.
    """

    def repeat(self, session: Any, request: RunRequest, source: Source) -> int: ...
    def resumed_words(self, directory: Path) -> Sequence[str]: ...
    def show_ended(self, session: Any, directory: Path) -> int: ...
    def observer(self, session: Any) -> Any: ...
    def place(
        self, session: Any, request: RunRequest, checked: Any, placement: Placement, limit_s: float
    ) -> Placement: ...
    def kept_runs(self, runs_dir: Path, baselines: Path, *, recorded: bool) -> Mapping[str, str]: ...
    def show_page(self, session: Any, runs_dir: Path) -> None: ...


def product(what: str = "") -> Nights:
    """Return the product. Raises UsageError where it is not installed. ``what``: the option or verb that needs it."""
    extensions: Nights = products.part("nightly", "extensions", what)
    return extensions


def is_installed() -> bool:
    """Return whether the product is there."""
    return "nightly" in products.folders()
