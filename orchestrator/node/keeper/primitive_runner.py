"""Performs the primitives of an act one after the other, observes until their states are reached, and that they last."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...model.act import ENDING_SIGNALS, Act, Primitive
from ...model.events.fault_events import FaultLasted
from ..oslayer import namespaces, processes
from ..oslayer.event_loop import Loop, Steps, Timer
from ..oslayer.processes import Process
from . import host_primitives, node_primitives
from .host_primitives import Evidence
from .node_protocol import ExternalNode, Node, Observed, Unsupported

#: The pause between two observations doubles from the first to the second: one may scan all processes, which takes 5 ms of a core.
POLL_S, LONGEST_POLL_S = 0.002, 0.032
#: Hosts are observed less often than processes.
HOST_POLL_S = 0.1
#: The pauses between two observations, which may scan all processes: while the state holds, and while it does not or is not known.
PAUSE_S, DOUBT_S = 0.5, 0.05
#: A state that does not hold for so long, on processes that live, has ended: processes that are being killed end earlier.
BROKEN_S = 2.0
#: The same of a limit that the kernel shows: a process that is being killed keeps its cgroup to its end.
UNLIMITED_S = 0.5
#: CPU time beyond what a state allows that proves that it was lifted between two observations: more than one long system call
#: takes, which the kernel does not interrupt; what each process may add by the ticks of its clocks, and each CPU by one of its
#: scheduler. In seconds.
LIFTED_S, TICKS_S, TICK_S = 0.5, 0.02, 0.004
#: Primitives that are repeated until the state is reached, as new processes may have started meanwhile.
REPEATED = ("power", "pause", "limit")
#: The problem of an injection whose healing was ordered before all of its primitives were performed.
OVERTAKEN = "healed before it was injected"


def check_supported(primitives: Iterable[Primitive], node: Node) -> None:
    """Raises Unsupported for a primitive that cannot be performed, before any is performed."""
    listed = list(primitives)
    node_primitives.check_supported((item for item in listed if not host_primitives.is_of_host(item)), node)
    for primitive in listed:
        if host_primitives.is_of_host(primitive) and (problem := host_primitives.why_unsupported(primitive)):
            raise Unsupported(problem)
        _in_network(primitive, node)


def perform_all(
    loop: Loop,
    primitives: Sequence[Primitive],
    node: Node,
    limit_s: float,
    may_continue: Callable[[Sequence[str]], bool],
    proofs: Sequence[Primitive] = (),
) -> Steps[tuple[Evidence, list[str]]]:
    """Perform one after the other, while ``may_continue``; the evidence and the problems.

    If primitives are left out and there is no other problem, the problem is OVERTAKEN.
    ``proofs``: states that verify the whole. Those of all primitives but the last must be observed before the next primitive
    is performed. A primitive of ``proofs`` that ends processes must reach one.
    """
    evidence_of_all: dict[str, Any] = {}
    problems: list[str] = []
    until = time.monotonic() + limit_s
    for number, primitive in enumerate(primitives, start=1):
        if not may_continue(problems):
            return evidence_of_all, problems or [OVERTAKEN]
        evidence, problem = yield from _start(loop, primitive, node, limit_s)
        evidence_of_all.update(evidence)
        if primitive in proofs and not problem:
            problem = node_primitives.why_ineffective(primitive, evidence)
        if problem:
            problems.append(problem)
        elif grace_s := float(primitive.args.get("grace_s", 0.0)):
            has_ended, _ = yield from observe_until([primitive], [], node, grace_s, lambda: may_continue(problems))
            evidence_of_all["ended_within_grace"] = has_ended
        elif primitive in proofs and number < len(primitives):
            left_s = until - time.monotonic()
            is_reached, more = yield from observe_until([primitive], [], node, left_s, lambda: may_continue(problems))
            evidence_of_all.update(more)
            problems.extend([] if is_reached else [f"{primitive.kind}: not verified"])
    return evidence_of_all, problems


def observe_until(
    primitives: Sequence[Primitive],
    repeatable: Sequence[Primitive],
    node: Node,
    limit_s: float,
    is_in_force: Callable[[], bool],
) -> Steps[tuple[bool, Evidence]]:
    """Observe until all states are reached, and repeat those of ``repeatable`` that may be repeated; were they, and the evidence.

    It ends when the fault is no longer in force: a rollback must not be undone. The rollback begins after this last
    observation, which may still show the states.
    """
    until = time.monotonic() + limit_s
    pause_s = HOST_POLL_S if any(map(host_primitives.is_of_host, primitives)) else POLL_S
    repeated = [item for item in repeatable if item.kind in REPEATED and not host_primitives.is_of_host(item)]
    yield POLL_S
    while True:
        observations = [observe(primitive, node) for primitive in primitives]
        is_reached = bool(observations) and all(holds for holds, _ in observations)
        if not is_reached and not is_in_force():
            return False, {"overtaken": "healed before it was verified"}
        pairs = zip(primitives, observations, strict=True)
        is_refused = any(item.kind == "inside" and "problem" in evidence for item, (_, evidence) in pairs)
        if is_reached or is_refused or time.monotonic() > until:
            return is_reached, merged(observations)
        for primitive in repeated:
            _perform(primitive, node)
        yield pause_s
        pause_s = max(pause_s, min(2 * pause_s, LONGEST_POLL_S))


def adopt(primitives: Sequence[Primitive], node: Node) -> None:
    """Let the node note, after a restart of the keeper, which of its processes injections of the earlier keeper have stopped.

    Single processes come first: where the whole node is stopped, no others could be told from them.
    """
    stops = [item for item in primitives if item.kind == "pause" or item.args.get("signal") == "STOP"]
    for primitive in sorted(stops, key=lambda item: item.kind == "pause"):
        if observe(primitive, node)[0]:
            _perform(primitive, node)


def observe_once(primitives: Sequence[Primitive], node: Node, limit_s: float) -> Steps[tuple[bool | None, Evidence]]:
    """Observe once whether all states hold (None: not known within ``limit_s``); with the evidence."""
    until = time.monotonic() + limit_s
    while True:
        observations = [observe(primitive, node) for primitive in primitives]
        states = [holds for holds, _ in observations]
        is_unknown = not states or (None in states and False not in states)
        if not (is_unknown and states and time.monotonic() < until):
            return None if is_unknown else all(states), merged(observations)
        yield POLL_S


class FaultWatch:
    """``members``: the processes that the fault hit; once none of them lives, nothing is left to observe."""

    def __init__(self, loop: Loop, states: Sequence[Primitive], node: Node, members: Sequence[Process]) -> None:
        self._loop, self._states, self._node, self._members = loop, states, node, members
        self._samples = 0
        self._broken_since: float | None = None
        self._broken: dict[str, Any] | None = None
        #: Process -> the CPU time that it had used at the last observation of the states, which ended at ``_used_at``.
        self._used: dict[tuple[int, int], float] = {}
        self._used_at, self._excess_s = 0.0, 0.0
        self._is_lifted(members, *self._observe_states(members))
        self._timer: Timer | None = loop.call_later(PAUSE_S, self._sample)

    def end(self, id: str) -> FaultLasted:
        """Observe for the last time, just before the healing."""
        if self._timer:
            self._timer.cancel()
        living = self._living()
        holds, evidence = self._observe(living)
        if self._broken is None and living and holds is False:
            self._broken = evidence
        held = False if self._broken is not None else True if living else None
        return FaultLasted(id=id, held=held, samples=self._samples, evidence=self._broken or evidence)

    def _sample(self) -> None:
        living, now = self._living(), time.monotonic()
        holds, evidence = self._observe(living)
        self._broken_since = (self._broken_since or now) if living and holds is False else None
        limit_s = UNLIMITED_S if "cpu_percent" in evidence else BROKEN_S
        if self._broken_since is not None and now - self._broken_since >= limit_s:
            self._broken = evidence
        is_over = not living or self._broken is not None
        pause_s = PAUSE_S if holds else DOUBT_S
        self._timer = None if is_over else self._loop.call_later(pause_s, self._sample)

    def _living(self) -> list[Process]:
        current = [(member, processes.find(member.pid)) for member in self._members]
        return [
            now for member, now in current if now and now.start == member.start and now.state not in processes.EXITED
        ]

    def _observe(self, living: Sequence[Process]) -> Observed:
        self._samples += 1
        holds, evidence = self._observe_states(living)
        if self._is_lifted(living, holds, evidence):
            self._broken = {**evidence, "cpu_s_beyond_the_fault": round(self._excess_s, 2)}
        return holds, evidence

    def _observe_states(self, living: Sequence[Process]) -> Observed:
        observations = [self._observe_state(state, living) for state in self._states]
        known = [holds for holds, _ in observations]
        return (False if False in known else None if None in known else True), merged(observations)

    def _is_lifted(self, living: Sequence[Process], holds: bool | None, evidence: Evidence) -> bool:
        """Have the processes used more CPU time, while the states held at all observations, than these states allow?"""
        shares = [share for state in self._states if (share := _cpu_share(state, evidence)) is not None]
        if not (holds and shares):
            return False
        now, hit = time.monotonic(), [*living] if self._states[0].kind == "signal" else self._node.processes()
        allowed = min(shares)  # of a stopped process the kernel ends what it has begun: a write, or the process itself
        used = {(process.pid, process.start): processes.cpu_s(process.pid, kernel=allowed > 0) for process in hit}
        spent_s = sum(max(0.0, cpu_s - self._used.get(process, cpu_s)) for process, cpu_s in used.items())
        self._excess_s = max(0.0, self._excess_s + spent_s - allowed * (time.monotonic() - self._used_at))
        self._used, self._used_at = used, now
        return self._excess_s > LIFTED_S + TICKS_S * len(used) + TICK_S * (os.cpu_count() or 1)

    def _observe_state(self, state: Primitive, living: Sequence[Process]) -> Observed:
        """A signal stops its processes for good: those of a later gang have the same ranks."""
        if state.kind == "signal":
            return all(map(self._node.is_stopped, living)), {
                "state": ", ".join(item.state for item in living) or "gone"
            }
        return observe(state, self._node)


def watch(loop: Loop, act: Act, node: Node) -> FaultWatch | None:
    """Watch a fault that was just verified; None for a state that is the host's, or that leaves no process."""
    states = act.verify
    if not act.heal or any(map(host_primitives.is_of_host, states)) or any(map(_is_final, states)):
        return None
    signals = [state for state in states if state.kind == "signal"]
    members = node_primitives.find_targets(signals[0], node) if signals else node.processes()
    return FaultWatch(loop, states, node, members) if members else None


def _cpu_share(state: Primitive, evidence: Evidence) -> float | None:
    """Return how many CPUs the processes of a state may use; None: any, or the kernel does not enforce it, as where they run in turns."""
    if state.kind == "pause" or state.args.get("signal") == "STOP":
        return 0.0
    return (
        float(state.args["cpu_percent"]) / 100
        if state.kind == "limit" and "cpu_percent" in state.args and "cpu_percent" in evidence
        else None
    )


def _is_final(state: Primitive) -> bool:
    """Does it leave no process, or an answer that stays?"""
    return state.kind in ("power", "inside") or state.args.get("signal") in ENDING_SIGNALS


def merged(observations: Sequence[Observed]) -> dict[str, Any]:
    return {name: value for _, evidence in observations for name, value in evidence.items()}


def _start(loop: Loop, primitive: Primitive, node: Node, limit_s: float) -> Steps[tuple[Evidence, str]]:
    """Perform a primitive of the node at once, or run the program of a primitive of its host; (evidence, problem)."""
    if not host_primitives.is_of_host(primitive):
        return _perform(primitive, node)
    try:
        argv = _in_network(primitive, node).args["run"]
    except Unsupported as error:
        return {}, str(error)
    return (yield from host_primitives.run_program(loop, argv, limit_s))


def _perform(primitive: Primitive, node: Node) -> tuple[dict[str, Any], str]:
    """(evidence, problem). No exception leaves this function, so that a rollback stays possible."""
    try:
        return node_primitives.perform(primitive, node), ""
    except Exception as error:  # noqa: BLE001
        return {}, f"{primitive.kind}: {type(error).__name__}: {error}"


def observe(primitive: Primitive, node: Node) -> Observed:
    """Does the state hold (None: not known), and the evidence. No exception leaves this function."""
    try:
        if host_primitives.is_of_host(primitive):
            sessions = node.sessions if isinstance(node, ExternalNode) else None
            return host_primitives.observe(_in_network(primitive, node), sessions)
        return node_primitives.observe(primitive, node)
    except Exception as error:  # noqa: BLE001
        return None, {"problem": f"{primitive.kind}: {type(error).__name__}: {error}"}


def _in_network(primitive: Primitive, node: Node) -> Primitive:
    """A program with ``network`` as it runs in the node's network namespace. Raises Unsupported if the node has none."""
    if not primitive.args.get("network"):
        return primitive
    if not namespaces.has_own_network(node.pid):
        raise Unsupported(f"{primitive.kind}: {node.name} has no network of its own; the program would act on its host")
    run = ["nsenter", "--target", str(node.pid), "--net", *primitive.args["run"]]
    return Primitive(kind=primitive.kind, args={**primitive.args, "run": run})
