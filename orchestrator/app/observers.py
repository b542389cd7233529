"""Interfaces for the progress of use cases: a terminal, the log of a program, or a test that keeps the order implements them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from ..model.frozen import dataclass

if TYPE_CHECKING:
    from ..model.bed import BedSpec, BedStatus, Diff
    from ..model.event import Event
    from ..model.launch import Result
    from ..model.plan import Placement
    from ..model.trial import Trial


class Screen(Protocol):
    """Takes lines of text. ``secrets``: values from a vault, which it never shows."""

    @property
    def secrets(self) -> set[str]: ...
    @property
    def narrator(self) -> Screen:
        """The same for what is told on the way to the result, which a quiet one leaves out."""

    def silent(self) -> Screen:
        """A screen that shows problems only."""

    def hidden(self, value: Any) -> Any:
        """A text or JSON value without the values from a vault."""

    def line(self, text: str = "") -> None: ...
    def lines(self, lines: Iterable[str]) -> None: ...
    def block(self, text: str) -> None:
        """Show a part of a foreign text, such as a log."""

    def status(self, text: str) -> None:
        """Show a line that the next one replaces."""

    def warn(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run that is about to begin. ``slots``: group rank -> node; ``last_step``: None where it is not known.

    ``notes``: of the workload; ``job``: lines on the Slurm job of the bed; ``hide`` replaces the secrets in a text.
    """

    trial: Trial
    bed: BedSpec
    placement: Placement
    slots: tuple[str, ...]
    last_step: int | None
    notes: tuple[str, ...]
    job: tuple[str, ...]
    hide: Callable[[str], str]


class RunObserver(Protocol):
    """Follows a run, in this order: planned, begun, events and notes, ended, judged."""

    def planned(self, run: PlannedRun) -> None: ...
    def begun(self, directory: str) -> None:
        """The run, or a run to compare it with, is recorded in ``directory``."""

    def event(self, event: Event) -> None: ...
    def reference(self, steps: int, event: Event) -> None:
        """An event of a run to compare with; ``steps``: of the run itself, 0 where they are not known."""

    def cached_twin(self, run: str) -> None: ...
    def note(self, text: str) -> None: ...
    def stage(self, text: str) -> None:
        """Work begins that is no event of the run."""

    def ended(self, result: Result) -> None: ...
    def judged(self, result: Result) -> None:
        """The result is final, and its directory has its names."""


class BedObserver(Protocol):
    """Follows a change of a bed."""

    def away(self, bed: BedSpec, diff: Diff) -> None:
        """Nodes on hosts that left the inventory cannot be reached."""

    def planned(self, bed: BedSpec, status: BedStatus, diff: Diff, versions: tuple[str, str]) -> None:
        """``versions``: of torch and Python in the interpreter of process nodes; empty where they are not known."""

    def keepers_start(self, bed: BedSpec) -> None: ...
    def keepers_started(self, bed: BedSpec, status: BedStatus | None, seconds: float) -> None:
        """``status``: None on several hosts."""

    def node_ready(self, ready: int, count: int) -> None: ...
    def nodes_ready(self, bed: BedSpec, status: BedStatus, diff: Diff, seconds: float) -> None: ...
    def changed(self, bed: BedSpec, status: BedStatus, took: str) -> None: ...
    def unchanged(self, bed: BedSpec, status: BedStatus, settings: str, run: str, took: str) -> None:
        """``run``: that is open on the bed, else empty."""

    def hosts(self, batch: tuple[str, ...], done: int, count: int) -> None:
        """A part of the bed's hosts is changed next."""


def callbacks(observer: RunObserver) -> dict[str, Callable[..., None]]:
    """Return the fields of a ``Request`` that report its run."""
    return {
        "on_begin": observer.begun,
        "on_event": observer.event,
        "on_cached_twin": observer.cached_twin,
        "on_note": observer.note,
        "on_stage": observer.stage,
        "on_reference": observer.reference,
    }
