"""The faults of a trial: which, on which node, and when; every trigger is checked to be reachable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...model.plugin import Catalogue
from ...model.trial import PHASES, FaultPlan, Trigger, World
from . import draft, source_positions, values

#: Phases of a gang's life that belong to no step.
LIFE_PHASES = ("rendezvous", "init", "restore", "shutdown")
#: Events on which a fault may be triggered (``on:``), each once in its place of a run's life.
ON_EVENTS = (
    "store.open", "gang.start", "gang.joined", "gang.stop", "rank.joined", "rank.restored", "rank.step", "rank.exit",
    "node.exit", "node.silent", "gang.stalled", "recovery.decided", "resume.chosen", "node.apply", "fence.write",
    "checkpoint.scan", "checkpoint.commit", "fault.verified", "fault.healed", "progress",
)  # fmt: skip
_AT_KEYS = ("step", "phase", "after", "on", "nth", "epoch")
_NODE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")


def parse(
    found: draft.Draft, catalogue: Catalogue, world: World, params: Mapping[str, Any] | None, last_step: int | None
) -> tuple[FaultPlan, ...]:
    """The planned faults in order; mistakes are noted in ``found``. ``params`` None: they are wrong, so no step is sure."""
    body = found.value.get("faults")
    if body is None:
        return ()
    if not isinstance(body, list):
        found.say(("faults",), "must be a list such as [crash-node: {node: 2}]", body)
        return ()
    points = _Points(params=params, last_step=last_step, phases=_phases(found.value.get("workload"), catalogue))
    made = [_fault(found, index, item, catalogue, world, points) for index, item in enumerate(body)]
    return tuple(fault for fault in made if fault)


def _phases(workload: Any, catalogue: Catalogue) -> tuple[str, ...]:
    """The phases of its steps, where the workload says which; the first is where a fault acts that does not say."""
    plugin = catalogue.workloads.get(workload) if isinstance(workload, str) else None
    return tuple(getattr(plugin.module, "PHASES", ())) if plugin else ()


class _Points:
    """What a trigger may aim at: the steps and phases of the workload, and the steps at which it writes checkpoints."""

    def __init__(self, params: Mapping[str, Any] | None, last_step: int | None, phases: tuple[str, ...]) -> None:
        self.phases = phases
        self.sure = params is not None
        self.last = last_step
        self.counts = params is None or _counts_steps(params, last_step)
        every = (params or {}).get("checkpoint_every")
        self.every = every if isinstance(every, int) and every > 0 else None

    def halfway(self, phase: str) -> int | None:
        """Step ``last // 2``; for the checkpoint phase the nearest earlier step that writes one."""
        if self.last is None:
            return None
        half = max(1, self.last // 2)
        return max(self.every, half - half % self.every) if phase == "checkpoint" and self.every else half


def _counts_steps(params: Mapping[str, Any], last_step: int | None) -> bool:
    """Whether the ranks of this workload pass through steps and phases, even where nobody knows yet how many steps there are.

    A script does not: what it tells of its steps is heard when they are over, and it cannot be held inside of one.
    """
    return last_step is not None or "checkpoint_every" in params


def _fault(
    found: draft.Draft, index: int, item: Any, catalogue: Catalogue, world: World, points: _Points
) -> FaultPlan | None:
    where: source_positions.Path = ("faults", index)
    if isinstance(item, str):
        item = {item: {}}
    if not isinstance(item, dict) or len(item) != 1:
        found.say(where, "must be one fault with its settings, such as crash-node: {node: 2}", item)
        return None
    name, body = next(iter(item.items()))
    plugin = catalogue.faults.get(name)
    if plugin is None:
        found.say(
            (*where, name), f"unknown fault; {values.nearest(name, catalogue.faults)}", name, hint="ccbed list faults"
        )
        return None
    body = {} if body is None else body
    if not isinstance(body, dict):
        found.say((*where, name), "must be a mapping such as {node: 2}", body)
        return None
    where = (*where, name)
    own = {key: value for key, value in body.items() if key not in ("node", "at")}
    before = len(found.problems)
    node = _node(found, where, body, world)
    at = _trigger(found, (*where, "at"), body.get("at"), points)
    params = found.build(where, plugin.module.Params, own, f"setting of {name}")
    if len(found.problems) == before:
        found.made(where, plugin.module.Params, params)
    if node is None or at is None or len(found.problems) > before:
        return None
    return FaultPlan(id=f"f{index}", fault=name, node=node, at=at, params=params)


def _node(found: draft.Draft, where: source_positions.Path, body: Mapping[str, Any], world: World) -> int | str | None:
    if "node" not in body:
        found.say(where, "needs a node, such as node: 2")
        return None
    given = body["node"]
    if isinstance(given, str) and _NODE_NAME.fullmatch(given):
        return given
    try:
        number = values.whole(given)
    except ValueError as error:
        found.say((*where, "node"), f"{error}, or a node's name such as n2", given)
        return None
    if number >= world.nodes:
        enough = f"--nodes {number + 1}" if found.option(where) else f"world: {{nodes: {number + 1}}}"
        again = f"ccbed run {found.document.name} --fail-node {world.nodes - 1}"
        hint = again if found.option(where) else f"name one of 0 to {world.nodes - 1}"
        found.say((*where, "node"), f"the trial has nodes 0..{world.nodes - 1}", given, hint=f"{hint}, or {enough}")
        return None
    return number


def _trigger(found: draft.Draft, where: source_positions.Path, given: Any, points: _Points) -> Trigger | None:
    body = _at(given)
    if body is None:
        found.say(where, "must be such as {step: 30, phase: allreduce} or 10s", given)
        return None
    before = len(found.problems)
    found.unknown(where, body, _AT_KEYS, "key")
    numbers = _numbers(found, where, body)
    after = _after(found, where, body)
    phase = _phase(found, where, body, points.phases)
    on = _on(found, where, body)
    if len(found.problems) > before or _clash(found, where, body, points):
        return None
    step = numbers.pop("step", None)
    if step is None and after is None and on is None and phase not in LIFE_PHASES:
        step = points.halfway(phase)
        if step is None and points.sure:
            found.say(
                where, "how many steps there are is not known here, so neither is half of them; give step or time"
            )
        if step is None:
            return None
    if step is not None and not _reachable(found, (*where, "step"), step, phase, points):
        return None
    return Trigger(step=step, phase=phase, after_s=after, on=on, **numbers)


def _at(given: Any) -> dict[str, Any] | None:
    """``10s`` and ``step=20,phase=allreduce`` in the form of the mapping; None for what is neither."""
    if given is None:
        return {}
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        return {"after": given} if isinstance(given, int | float) and not isinstance(given, bool) else None
    if "=" not in given:
        return {"after": given}
    pairs = [part.partition("=") for part in given.split(",")]
    return {key.strip(): value.strip() for key, _, value in pairs}


def _numbers(found: draft.Draft, where: source_positions.Path, body: Mapping[str, Any]) -> dict[str, int]:
    good = {}
    for name, least in (("step", 1), ("nth", 1), ("epoch", 0)):
        if body.get(name) is None:
            continue
        try:
            good[name] = values.whole(body[name], least)
        except ValueError as error:
            found.say((*where, name), str(error), body[name])
    return good


def _after(found: draft.Draft, where: source_positions.Path, body: Mapping[str, Any]) -> float | None:
    if body.get("after") is None:
        return None
    try:
        return values.seconds(body["after"])
    except ValueError as error:
        found.say((*where, "after"), str(error), body["after"])
        return None


def _phase(found: draft.Draft, where: source_positions.Path, body: Mapping[str, Any], own: tuple[str, ...]) -> str:
    phase = body.get("phase", own[0] if own else "allreduce")
    if phase not in PHASES:
        found.say((*where, "phase"), f"unknown phase; {values.nearest(str(phase), PHASES)}", phase)
    elif own and phase not in (*own, *LIFE_PHASES):
        passed = ", ".join((*own, *LIFE_PHASES))
        found.say((*where, "phase"), f"this workload passes no such phase; it passes {passed}", phase)
    return str(phase)


def _on(found: draft.Draft, where: source_positions.Path, body: Mapping[str, Any]) -> str | None:
    on = body.get("on")
    if on is not None and on not in ON_EVENTS:
        found.say((*where, "on"), f"unknown event; {values.nearest(str(on), ON_EVENTS)}", on)
    return None if on is None else str(on)


def _clash(found: draft.Draft, where: source_positions.Path, body: Mapping[str, Any], points: _Points) -> bool:
    """Note what cannot be meant together, or cannot be known for this workload."""
    kinds = [key for key in ("step", "after", "on") if body.get(key) is not None]
    phase = body.get("phase")
    if len(kinds) > 1:
        found.say(where, f"{' and '.join(kinds)} exclude each other; give one")
    elif phase is not None and kinds and kinds[0] != "step":
        found.say((*where, "phase"), f"goes with step, not with {kinds[0]}")
    elif phase in LIFE_PHASES and "step" in kinds:
        found.say((*where, "step"), f"phase {phase} belongs to no step; leave step out")
    elif not points.counts and (kinds == ["step"] or not kinds):
        option = found.option(where)
        hint = f"ccbed run {found.document.name} {option} --at 10s" if option else "at: 10s"
        found.say(where, "this workload cannot be held in a step; say when, such as 10s", hint=hint)
    else:
        return False
    return True


def _reachable(found: draft.Draft, where: source_positions.Path, step: int, phase: str, points: _Points) -> bool:
    if points.last is not None and step > points.last:
        found.say(where, f"the last step is {points.last}", step)
        return False
    if phase == "checkpoint" and points.every and step % points.every:
        found.say(where, f"no checkpoint is written there: one follows every {points.every} steps", step)
        return False
    return True
