"""Every decision in the history follows from the events before it: the engine, run again, takes the same ones."""

from __future__ import annotations

from dataclasses import dataclass

from .. import views
from ..core.verdict import replay
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = True
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """A difference is a failure; where another version of the engine decided, it is unknown."""
    name = "history-replays"
    if run.format < 2:
        return views.unknown(name, views.NOT_COMPARED)
    findings = list(replay.contradictions(run))
    count = sum(event.type == "invoke" for event in run.history.events)
    doubts = [*views.unended(run.history), *views.unstarted(run.history)]
    if not views.by_same_code(run):
        return views.conclude(name, f"{count} commands follow from the events", doubts=[*findings, *doubts])
    return views.conclude(name, f"{count} commands follow from the events", failures=findings, doubts=doubts)
