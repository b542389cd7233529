"""Carries primitives out, one after the other, and observes until the state that they name is reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...model.act import Primitive
from ..oslayer import namespaces
from ..oslayer.event_loop import Loop
from . import containing_host, primitives, programs
from .primitives import Node

AGAIN_S = 0.002
#: How long one primitive of several may take to show.
PROOF_S = 2.0
#: Hosts are not looked at as often as processes.
AROUND_S = 0.1
#: Primitives whose injection is repeated until the state is reached: new processes may have come in between.
REPEATED = ("power", "pause", "limit")

Evidence = Mapping[str, Any]


def check(wanted: Iterable[Primitive], node: Node) -> None:
    """Raises primitives.Unsupported for what cannot be carried out here, before anything is done."""
    listed = list(wanted)
    primitives.check((one for one in listed if not containing_host.concerns(one)), node)
    for one in listed:
        if containing_host.concerns(one) and (problem := containing_host.objection(one)):
            raise primitives.Unsupported(problem)
        _in_network(one, node)


def each(
    loop: Loop,
    wanted: Sequence[Primitive],
    node: Node,
    limit_s: float,
    go_on: Callable[[Sequence[str]], bool],
    then: Callable[[Evidence, Sequence[str]], None],
    proofs: Sequence[Primitive] = (),
) -> None:
    """One after the other; then call with what was done and what went wrong. ``go_on``: may the next one follow?

    ``proofs``: states that must be observed right after the primitive that brings them about, before the next follows.
    """
    done: dict[str, Any] = {}
    problems: list[str] = []

    def step(index: int) -> None:
        if index == len(wanted) or not go_on(problems):
            then(done, problems)
            return

        def finished(evidence: Evidence, problem: str) -> None:
            done.update(evidence)
            problems.extend([problem] if problem else [])
            if problem or wanted[index] not in proofs:
                step(index + 1)
                return
            prove(loop, [wanted[index]], [], node, PROOF_S, lambda: go_on(problems), proved)

        def proved(good: bool, evidence: Evidence) -> None:
            done.update(evidence)
            problems.extend([] if good else [f"{wanted[index].kind}: not verified"])
            step(index + 1)

        if containing_host.concerns(wanted[index]):
            try:
                program = _in_network(wanted[index], node).args["run"]
            except primitives.Unsupported as error:
                finished({}, str(error))
                return
            programs.start(loop, program, limit_s, finished)
        else:
            finished(*_done(wanted[index], node))

    step(0)


def prove(
    loop: Loop,
    wanted: Sequence[Primitive],
    again_by: Sequence[Primitive],
    node: Node,
    limit_s: float,
    in_force: Callable[[], bool],
    then: Callable[[bool, Evidence], None],
) -> None:
    """Look until everything is as wanted, repeating what may be repeated; then call.

    Once it is not ``in_force`` any more nothing is repeated: a rollback must not be fought.
    """
    until = time.monotonic() + limit_s
    pause_s = AROUND_S if any(map(containing_host.concerns, wanted)) else AGAIN_S
    repeated = [one for one in again_by if one.kind in REPEATED and not containing_host.concerns(one)]

    def look() -> None:
        if not in_force():
            then(False, {"overtaken": "healed before it was verified"})
            return
        seen = [_holds(one, node) for one in wanted]
        good = bool(seen) and all(reached for reached, _ in seen)
        if good or time.monotonic() > until:
            then(good, {name: value for _, evidence in seen for name, value in evidence.items()})
            return
        for one in repeated:
            _done(one, node)
        loop.later(pause_s, look)

    loop.later(AGAIN_S, look)


def inspect(
    loop: Loop,
    wanted: Sequence[Primitive],
    node: Node,
    limit_s: float,
    then: Callable[[bool | None, Evidence], None],
) -> None:
    """Observe once whether all of ``wanted`` holds (None: not known within ``limit_s``); then call with the evidence."""
    until = time.monotonic() + limit_s

    def look() -> None:
        seen = [_holds(one, node) for one in wanted]
        states = [reached for reached, _ in seen]
        unknown = not states or (None in states and False not in states)
        if unknown and states and time.monotonic() < until:
            loop.later(AGAIN_S, look)
            return
        evidence = {name: value for _, part in seen for name, value in part.items()}
        then(None if unknown else all(states), evidence)

    look()


def _done(one: Primitive, node: Node) -> tuple[dict[str, Any], str]:
    """What was done and what went wrong: whatever it is, a rollback must still be possible."""
    try:
        return primitives.apply(one, node), ""
    except Exception as error:  # noqa: BLE001
        return {}, f"{one.kind}: {type(error).__name__}: {error}"


def _holds(one: Primitive, node: Node) -> tuple[bool | None, dict[str, Any]]:
    try:
        if containing_host.concerns(one):
            return containing_host.holds(_in_network(one, node))
        return primitives.holds(one, node)
    except Exception as error:  # noqa: BLE001
        return None, {"problem": f"{one.kind}: {type(error).__name__}: {error}"}


def _in_network(one: Primitive, node: Node) -> Primitive:
    """A program with ``network`` as it is run in the node's network namespace. Raises Unsupported where it has none."""
    if not one.args.get("network"):
        return one
    if not namespaces.has_own_network(node.pid):
        raise primitives.Unsupported(
            f"{one.kind}: {node.name} has no network of its own; the program would act on its host"
        )
    run = ["nsenter", "--target", str(node.pid), "--net", *one.args["run"]]
    return Primitive(kind=one.kind, args={**one.args, "run": run})
