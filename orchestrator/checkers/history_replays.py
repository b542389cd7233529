"""Every decision in the history follows from the events before it: a replay of the engine makes the same decisions."""

from __future__ import annotations

from .. import views
from ..core.verdict import replay
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = True


def check(run: Run, params: Params) -> Verdict:
    """A difference is a failure; where another version of the engine decided, the verdict is unknown."""
    name = "history-replays"
    if run.format < 2:
        return views.unknown(name, views.NOT_COMPARED)
    findings = list(replay.contradictions(run))
    count = sum(event.type == "invoke" for event in run.history.events)
    doubts = [*views.not_ended(run.history), *views.not_started(run.history)]
    if not views.by_same_code(run):
        return views.conclude(name, f"{count} commands follow from the events", doubts=[*findings, *doubts])
    return views.conclude(name, f"{count} commands follow from the events", failures=findings, doubts=doubts)
