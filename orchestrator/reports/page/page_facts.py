"""The facts of a run as pairs of name and text: what ran, where, with what, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from ... import views
from ...core.verdict import sentence
from ...model.events import RunBegin
from ...model.run import Run, Twin
from ...model.trial import RUNGS
from ...views import RunView

Pairs = list[tuple[str, str]]
#: Lines of the log of the rank that failed, in a report.
TAIL = 40


def name(run: Run) -> str:
    """The run's id: from its first event, else the name of its directory."""
    begin = run.history.first(RunBegin)
    stated = (begin.data.run or "") if begin else ""
    return stated or PurePosixPath(run.directory).name or "run"


def bed(run: Run) -> str:
    begin = run.history.first(RunBegin)
    stated = begin.data.bed if begin else None
    return str(stated or document(run, "plan.json").get("bed", "unknown"))


def started(run: Run) -> str:
    """ISO 8601 in UTC, whole seconds; empty where the history is."""
    wall = run.history.events[0].at.wall if run.history.events else 0.0
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if wall > 0 else ""


def failed(run: Run, view: RunView) -> views.FailedRank | None:
    """The rank that failed, of a run that did not finish: what failed before a recovery is no reason."""
    return None if view.outcome in ("finished", "running") else views.failed_rank(run, TAIL)


def document(run: Run, file: str) -> Mapping[str, Any]:
    """A JSON document of the bundle, or nothing where it is missing or of another shape."""
    value = run.extras.get(file)
    return value if isinstance(value, Mapping) else {}


def command(run: Run) -> str:
    """Return how the run was started, as far as the bundle records it."""
    arguments = document(run, "bundle.json").get("command", "")
    return shlex.join(map(str, arguments)) if isinstance(arguments, list | tuple) else str(arguments)


def rerun(run: Run) -> str:
    return f"{_ccbed(run)} run {shlex.quote(str(PurePosixPath(run.directory) / 'trial.json'))}"


def recheck(run: Run) -> str:
    return f"{_ccbed(run)} check {shlex.quote(run.directory)}"


def _ccbed(run: Run) -> str:
    """Return the command with the plugins that the run used, which are in its bundle."""
    if not any(path.startswith("inputs/plugins/") for path in run.files.paths()):
        return "ccbed"
    return f"ccbed --plugins {shlex.quote(str(PurePosixPath(run.directory) / 'inputs/plugins'))}"


def trial(run: Run) -> Pairs:
    spec = run.trial
    world = f"{spec.world.nodes} nodes, {sentence.count(spec.world.ranks_per_node, 'rank')} per node"
    pairs = [
        ("trial", f"{spec.name} ({spec.id})"),
        ("workload", spec.workload),
        *((f"  {key}", text) for key, value in spec.params.items() if (text := show(value)) not in ("", "None")),
        ("world", world),
        ("backend", str(document(run, "plan.json").get("backend", spec.world.backend))),
        ("recovery", f"{', '.join(spec.recovery.policy) or 'none'}; at most {spec.recovery.max_restarts} restarts"),
        ("seed", str(spec.seed)),
        *(
            [("requires", f"{spec.require}; may lose: {', '.join(spec.accept) or 'nothing'}")]
            if spec.require != RUNGS[-1]
            else []
        ),
    ]
    return [*pairs, *((f"fault {fault.id}", _fault(fault.fault, fault.node, fault.at)) for fault in spec.faults)]


def run_facts(run: Run, view: RunView) -> Pairs:
    plan = document(run, "plan.json")
    pairs = [
        ("run", name(run)),
        ("bed", bed(run)),
        ("format", "" if run.format > 1 else views.NOT_COMPARED),
        ("nodes of the ranks", ", ".join(view.slots)),
        ("spares", ", ".join(map(str, plan.get("spares", ())))),
        *_placement(plan),
        ("started", started(run)),
        ("duration", sentence.seconds(view.duration_s)),
        ("events", f"{len(run.history.events):,}"),
        ("reference run", _reference(run.twin)),
        ("started by", command(run)),
        ("reason", str(document(run, "bundle.json").get("reason", ""))),
    ]
    return [(key, value) for key, value in pairs if value]


def _placement(plan: Mapping[str, Any]) -> Pairs:
    """The nodes that the run must not use, and what a probe said of its spares."""
    placement, substitutes = plan.get("placement") or {}, plan.get("substitutes") or {}
    excluded = {
        name: why for kind in ("quarantined", "unfit", "drained") for name, why in (placement.get(kind) or {}).items()
    }
    pairs = [
        (f"without {node}", f"it {reason}" + (f"; {substitutes[node]} has its place" if node in substitutes else ""))
        for node, reason in excluded.items()
    ]
    notes = "; ".join(map(str, placement.get("notes") or ()))
    return [*pairs, ("spares probed", notes if placement.get("spare_probe") else "")]


def fingerprint(run: Run) -> Pairs:
    """Software and hardware, flattened: ``torch.version`` and so on."""
    return [(name, text) for name, text in views.flat(document(run, "fingerprint.json"), show) if text]


def show(value: Any) -> str:
    """A value for people: lists with commas, no quotes around words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {show(item)}" for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(show(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _reference(twin: Twin | None) -> str:
    return f"{twin.run} ({twin.key[:16]}{', used again' * twin.reused})" if twin else "none"


def _later(at: Any) -> str:
    return "some steps " if at.steps_later is None else f"{at.steps_later} steps "


def _fault(fault: str, node: int | str, at: Any) -> str:
    who = f"group rank {node}" if isinstance(node, int) else node
    if at.on is not None and at.after_save is not None:
        return f"{fault} on {who} {_later(at)}after save {at.after_save}, observed"
    if at.on is not None:
        return f"{fault} on {who} after {at.on}" + (f" (no. {at.nth})" if at.nth > 1 else "")
    if at.after_save is not None:
        return f"{fault} on {who} {_later(at)}after save {at.after_save}, phase {at.phase}"
    if at.exact and at.step is None:
        return f"{fault} on {who} at phase {at.phase}"
    if at.step is None:
        return f"{fault} on {who} after {sentence.seconds(at.after_s or 0.0)}"
    return f"{fault} on {who} at step {at.step}, phase {at.phase}"
