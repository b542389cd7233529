"""Parse a trial's faults: the kind, the node and the trigger; every trigger is checked to be reachable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...model.plugin import Catalogue
from ...model.trial import PHASES, SAVE_PHASES, FaultPlan, Trigger, World
from . import source_positions, trial_draft, written_values

#: Phases of a gang's life that belong to no step.
LIFE_PHASES = ("rendezvous", "init", "restore", "shutdown")
#: Events that may trigger a fault (``on:``).
ON_EVENTS = (
    "store.open", "gang.start", "gang.joined", "gang.stop", "rank.joined", "rank.restored", "rank.step", "rank.exit",
    "node.exit", "node.silent", "gang.stalled", "recovery.decided", "resume.chosen", "node.apply", "fence.write",
    "checkpoint.scan", "checkpoint.commit", "save.committed", "fault.verified", "fault.healed", "progress",
)  # fmt: skip
#: Where a fault of a script acts unless its trigger is given: there is a checkpoint to resume from, and work to lose.
DEFAULT_SAVE = 2
_AT_KEYS = ("step", "phase", "after", "on", "nth", "epoch", "after-save")
_AFTER_SAVE = re.compile(r"(\d+)(?:\+(\d+))?")
_NODE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")


def parse(
    draft: trial_draft.Draft,
    catalogue: Catalogue,
    world: World,
    params: Mapping[str, Any] | None,
    last_step: int | None,
) -> tuple[FaultPlan, ...]:
    """The planned faults in order; mistakes are recorded in ``draft``. ``params`` None: they are wrong, so is every step."""
    body = draft.content.get("faults")
    if body is None:
        return ()
    if not isinstance(body, list):
        draft.add_problem(("faults",), "must be a list such as [crash-node: {node: 2}]", body)
        return ()
    points = _TriggerPoints(
        params=params, last_step=last_step, phases=_phases(draft.content.get("workload"), catalogue)
    )
    faults = [_fault(draft, index, item, catalogue, world, points) for index, item in enumerate(body)]
    planned = tuple(fault for fault in faults if fault)
    _reject_duplicates(draft, planned)
    return planned


def _reject_duplicates(draft: trial_draft.Draft, faults: tuple[FaultPlan, ...]) -> None:
    """The same fault twice at one point of one node acts once; the second would never be proved."""
    unique: list[FaultPlan] = []
    for fault in faults:
        if any(replace(fault, id=other.id) == other for other in unique):
            draft.add_problem(
                ("faults", int(fault.id[1:]), fault.fault),
                "is planned twice on this node at the same point; remove it, or give it another point",
                f"node {fault.node}",
                hint="--at step=20 --at step=40, once per --fail-node, sets a point for each",
            )
        unique.append(fault)


def _phases(workload: Any, catalogue: Catalogue) -> tuple[str, ...]:
    """The phases of the workload's steps, where it declares them; the first is the default of a fault's trigger."""
    plugin = catalogue.workloads.get(workload) if isinstance(workload, str) else None
    return tuple(getattr(plugin.module, "PHASES", ())) if plugin else ()


class _TriggerPoints:
    """The points that a trigger may name: the workload's steps and phases, and the steps that write checkpoints."""

    def __init__(self, params: Mapping[str, Any] | None, last_step: int | None, phases: tuple[str, ...]) -> None:
        self.phases = phases
        self.has_valid_params = params is not None
        self.last_step = last_step
        self.is_watched = set(SAVE_PHASES) <= set(phases)
        self.life_phases = () if self.is_watched else LIFE_PHASES
        every = (params or {}).get("checkpoint_every")
        self.checkpoint_every = every if isinstance(every, int) and every > 0 else None

    def halfway(self, phase: str) -> int | None:
        """Step ``last_step // 2``; for the checkpoint phase the nearest earlier step that writes one."""
        if self.last_step is None:
            return None
        half = max(1, self.last_step // 2)
        every = self.checkpoint_every
        return max(every, half - half % every) if phase == "checkpoint" and every else half


def _fault(
    draft: trial_draft.Draft, index: int, item: Any, catalogue: Catalogue, world: World, points: _TriggerPoints
) -> FaultPlan | None:
    where: source_positions.Path = ("faults", index)
    if isinstance(item, str):
        item = {item: {}}
    if not isinstance(item, dict) or len(item) != 1:
        draft.add_problem(where, "must be a single fault with its settings, such as crash-node: {node: 2}", item)
        return None
    name, body = next(iter(item.items()))
    plugin = catalogue.faults.get(name)
    if plugin is None:
        draft.add_problem(
            (*where, name),
            f"unknown fault; {written_values.nearest(name, catalogue.faults)}",
            name,
            hint="ccbed list faults",
        )
        return None
    body = {} if body is None else body
    if not isinstance(body, dict):
        draft.add_problem((*where, name), "must be a mapping such as {node: 2}", body)
        return None
    where = (*where, name)
    settings = {key: value for key, value in body.items() if key not in ("node", "at")}
    problem_count = len(draft.problems)
    node = _node(trial_draft.Section(draft=draft, where=where, content=body), world)
    at = _trigger(draft, (*where, "at"), body.get("at"), points)
    params = draft.convert_arguments(where, plugin.module.Params, settings, f"setting of {name}")
    if len(draft.problems) == problem_count:
        draft.construct(where, plugin.module.Params, params)
    if node is None or at is None or len(draft.problems) > problem_count:
        return None
    return FaultPlan(id=f"f{index}", fault=name, node=node, at=at, params=params)


def _node(section: trial_draft.Section, world: World) -> int | str | None:
    draft, where, setting = section.draft, section.where, section.get("node")
    if "node" not in section.content:
        draft.add_problem(where, "needs a node, such as node: 2")
        return None
    if isinstance(setting, str) and _NODE_NAME.fullmatch(setting):
        return setting
    try:
        number = written_values.whole(setting)
    except ValueError as error:
        section.add_problem("node", f"{error}, or a node's name such as n2")
        return None
    if number >= world.nodes:
        larger_world = f"--nodes {number + 1}" if draft.option(where) else f"world: {{nodes: {number + 1}}}"
        command = f"ccbed run {draft.document.name} --fail-node {world.nodes - 1}"
        hint = f"{command if draft.option(where) else f'use a node from 0 to {world.nodes - 1}'}, or {larger_world}"
        section.add_problem("node", f"the trial has nodes 0..{world.nodes - 1}", hint=hint)
        return None
    return number


def _trigger(
    draft: trial_draft.Draft, where: source_positions.Path, setting: Any, points: _TriggerPoints
) -> Trigger | None:
    body = _as_mapping(setting)
    if body is None:
        draft.add_problem(
            where, "must be a mapping such as {step: 30, phase: allreduce}, or a time such as 10s", setting
        )
        return None
    problem_count = len(draft.problems)
    draft.reject_unknown_keys(where, body, _AT_KEYS, "key")
    section = trial_draft.Section(draft=draft, where=where, content=body)
    numbers = _numbers(section) | _after_save(section, points)
    after, phase, on = _after(section, points), _phase(section, points), _on(section)
    if len(draft.problems) > problem_count or _has_conflict(section):
        return None
    step = numbers.pop("step", None)
    if phase in SAVE_PHASES:
        numbers.setdefault("nth", 1 if phase == "load" else DEFAULT_SAVE)
    elif step is None and after is None and on is None and "after_save" not in numbers and points.is_watched:
        numbers |= {"after_save": DEFAULT_SAVE}
    elif step is None and after is None and on is None and "after_save" not in numbers and phase not in LIFE_PHASES:
        step = points.halfway(phase)
        if step is None and points.has_valid_params:
            draft.add_problem(
                where, "the number of steps is not known, so half of it is not known either; give a step or a time"
            )
        if step is None:
            return None
    if step is not None and not _is_reachable(draft, (*where, "step"), step, phase, points):
        return None
    return Trigger(step=step, phase=phase, after_s=after, on=on, **numbers)


def _as_mapping(at: Any) -> dict[str, Any] | None:
    """``10s``, ``save`` and ``step=20,phase=allreduce`` in the form of the mapping; None for any other value."""
    if at is None:
        return {}
    if isinstance(at, dict):
        return at
    if at in SAVE_PHASES:
        return {"phase": at}
    if not isinstance(at, str):
        return {"after": at} if isinstance(at, int | float) and not isinstance(at, bool) else None
    if "=" not in at:
        return {"after": at}
    pairs = [part.partition("=") for part in at.split(",")]
    return {key.strip(): value.strip() for key, _, value in pairs}


def _numbers(section: trial_draft.Section) -> dict[str, int]:
    numbers = {}
    for name, minimum in (("step", 1), ("nth", 1), ("epoch", 0)):
        if section.get(name) is None:
            continue
        try:
            numbers[name] = written_values.whole(section.get(name), minimum)
        except ValueError as error:
            section.add_problem(name, str(error))
    return numbers


def _after_save(section: trial_draft.Section, points: _TriggerPoints) -> dict[str, int]:
    """``2+3``: three steps after the second checkpoint that a script commits."""
    setting = section.get("after-save")
    if setting is None:
        return {}
    match = _AFTER_SAVE.fullmatch(str(setting))
    if not match or not int(match[1]):
        section.add_problem("after-save", "must be the number of a save, and steps, such as 2 or 2+3")
        return {}
    if not points.is_watched:
        section.add_problem("after-save", "is for scripts; use on: checkpoint.commit with nth")
    return {"after_save": int(match[1]), "steps_later": int(match[2] or 0)}


def _after(section: trial_draft.Section, points: _TriggerPoints) -> float | None:
    if section.get("after") is None:
        return None
    try:
        return written_values.seconds(section.get("after"))
    except ValueError as error:
        of_saves = f", after-save=2+3, {', '.join(SAVE_PHASES)}" if points.is_watched else ""
        section.add_problem("after", f"{error}, or a point: step=20{of_saves}")
        return None


def _phase(section: trial_draft.Section, points: _TriggerPoints) -> str:
    own = points.phases
    valid = (*own, *points.life_phases) if own else tuple(phase for phase in PHASES if phase not in SAVE_PHASES)
    phase = section.get("phase", own[0] if own else "allreduce")
    if phase not in PHASES:
        section.add_problem("phase", f"unknown phase; {written_values.nearest(str(phase), PHASES)}")
    elif phase not in valid:
        known = ", ".join(valid)
        section.draft.add_problem(
            (*section.where, "phase"), f"this workload has no such phase; its phases: {known}", phase
        )
    return str(phase)


def _on(section: trial_draft.Section) -> str | None:
    on = section.get("on")
    if on is not None and on not in ON_EVENTS:
        section.add_problem("on", f"unknown event; {written_values.nearest(str(on), ON_EVENTS)}")
    return None if on is None else str(on)


def _has_conflict(section: trial_draft.Section) -> bool:
    """Return whether keys exclude each other; the conflict is recorded."""
    draft, where = section.draft, section.where
    kinds = [key for key in ("step", "after", "on", "after-save") if section.get(key) is not None]
    phase = section.get("phase")
    if len(kinds) > 1:
        draft.add_problem(where, f"{' and '.join(kinds)} exclude each other; give one of them")
    elif phase is not None and kinds and kinds[0] not in ("step", "after-save"):
        draft.add_problem((*where, "phase"), f"is valid with step, not with {kinds[0]}")
    elif phase in (*LIFE_PHASES, *SAVE_PHASES) and kinds:
        draft.add_problem((*where, kinds[0]), f"phase {phase} belongs to no step; leave {kinds[0]} out")
    else:
        return False
    return True


def _is_reachable(
    draft: trial_draft.Draft, where: source_positions.Path, step: int, phase: str, points: _TriggerPoints
) -> bool:
    if points.last_step is not None and step > points.last_step:
        draft.add_problem(where, f"the last step is {points.last_step}", step)
        return False
    if phase == "checkpoint" and points.checkpoint_every and step % points.checkpoint_every:
        draft.add_problem(
            where, f"no checkpoint is written in this step: one is written every {points.checkpoint_every} steps", step
        )
        return False
    return True
