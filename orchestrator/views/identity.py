"""Whether the documents of a bundle are those that the run began with."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import codec
from ..model.event import Event
from ..model.events import GangStartDone, RunBegin
from ..model.run import Run
from .clock import mapping
from .findings import Finding, found

#: What is said of every bundle of the first format.
NOT_COMPARED = "format 1: contents not compared"


def identity(run: Run) -> Iterator[Finding]:
    """``run.begin`` states format, trial, twin and the SHA-256 of plan, documents and inputs; what differs is reported.

    Another version of ccbed may compute another id from the same trial.json, whose SHA-256 is compared all the same.
    """
    begin = run.history.first(RunBegin)
    if begin is None:
        yield found("the history has no run.begin")
        return
    twin = run.twin.key if run.twin else None
    due = {"format": run.format, "twin": twin, "plan": run.files.sha256("plan.json")}
    if by_same_code(run):
        due["trial"] = run.trial.id
    for name, value in due.items():  # as it is written: a key that is absent is not null
        if name not in begin.value or begin.value[name] != value:
            yield found(f"run.begin states {name} {begin.value.get(name)}, the bundle has {value}", begin)
    about = mapping(run.extras.get("bundle.json"))
    for name in ("run", "bed"):
        if (stated := getattr(begin.data, name)) != about.get(name):
            yield found(f"run.begin states {name} {stated}, bundle.json has {about.get(name)}", begin)
    yield from _sums(run, begin)
    for event in run.history.of(GangStartDone):
        if event.data.begin != codec.digest(begin.value):
            yield found(f"{event.node} was told of another run.begin", begin, event)


def by_same_code(run: Run) -> bool:
    """Whether the code that judges the run is the code that drove it."""
    begin = run.history.first(RunBegin)
    return begin is not None and begin.data.code == run.code


def _sums(run: Run, begin: Event[RunBegin]) -> Iterator[Finding]:
    """Every document and input has the SHA-256 that run.begin states, and none is there that it does not state."""
    stated = {f"inputs/{path}": sum_ for path, sum_ in (begin.data.inputs or {}).items()}
    stated |= begin.data.documents or {}
    for path, sum_ in sorted(stated.items()):
        if run.files.sha256(path) != sum_:
            yield found(f"{path} is not the file that the run began with (SHA-256)", begin)
    for path in run.files.paths():
        if path.startswith("inputs/") and path not in stated:
            yield found(f"{path} was not among the inputs when the run began", begin)
