"""A sentence for each event of a history: templates by the event's name, filled in with its fields."""

from __future__ import annotations

import contextlib
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...core.verdict.sentence import seconds
from ...model.event import Event
from ...views import mapping, start_name
from . import page_facts

#: Name of an event -> templates; the first whose fields the event has is used. ``node`` and ``start`` are fields of every event.
NOTES: Mapping[str, Sequence[str]] = {
    "run.begin": ("the run begins on bed {bed}",),
    "run.resumed": ("another orchestrator continues the run",),
    "run.interrupted": ("the run is interrupted: {reason}", "the run is interrupted"),
    "run.stopped": ("the run is ended as planned, at {at}",),
    "run.end": ("the run ends: {outcome}, {reason}", "the run ends: {outcome}"),
    "controller.late": ("the controller was delayed by {late_s} s",),
    "command.refused": ("{node} rejected a command: {reason}",),
    "gang.joined": ("every rank of {start} has joined",),
    "gang.stalled": ("the worker group stalled: {reason}", "the worker group stalled: no step for {since_s} s"),
    "gang.quiet": ("no step for {since_s} s: the ranks are inspected",),
    "gang.busy": ("the worker group works: {reason}",),
    "gang.joining": ("{reason}",),
    "store.retried": ("ports {taken} are in use; the store listens on {port}",),
    "recovery.waiting": ("no host has room for {lost}; recovery waits for {wait_s} s ({hosts})",),
    "hosts.drained": ("no node is placed on hosts that are set aside: {hosts}", "no host is set aside any longer"),
    "recovery.decided": (
        "recovery from the loss of {lost} by {policy}; ranks go on with {slots} (new hosts: {hosts})",
        "recovery from the loss of {lost} by {policy}; ranks go on with {slots}",
        "recovery of ranks {failed}, restarted in place on {slots}",
    ),
    "recovery.growing": ("{joining} can rejoin; the worker group stops after a checkpoint",),
    "recovery.grown": ("{joined} rejoined; ranks go on with {slots}",),
    "recovery.replaced": ("{lost} is replaced while the others run on ({policy})",),
    "recovery.refused": ("no recovery: {reason}",),
    "rank.start": ("rank {rank} started on {node} (pid {pid})", "rank {rank} started on {node}"),
    "rank.joining": (
        "rank {rank} joins as rank {number} of {world}, with the store at {store}",
        "rank {rank} joins as rank {number} of {world}",
        "rank {rank} joins a process group",
    ),
    "rank.joined": ("rank {rank} joined a process group of {world} ranks ({backend})",),
    "rank.restored": ("rank {rank} begins with checkpoint {name} of step {step}", "rank {rank} begins at step {step}"),
    "rank.step": ("rank {rank} completed step {step}, its {mark} since this start",),
    "rank.unobserved": ("of rank {rank} this cannot be judged: {what}, {why}",),
    "rank.inside": ("rank {rank} is inside {phase} of step {step}", "rank {rank} is at the point of the hold"),
    "rank.held": ("rank {rank} waits in {phase} of step {step}", "rank {rank} waits in {phase}"),
    "rank.released": ("rank {rank} continues after {held_s} s",),
    "hold.expired": ("the hold of rank {rank} expired",),
    "rank.finished": ("rank {rank} finished its {steps} steps", "rank {rank} finished"),
    "rank.error": ("rank {rank} on {node} ends with {kind}: {message}", "rank {rank} on {node} ends with {kind}"),
    "rank.exit": ("rank {rank} on {node} left with code {code}: {error}", "rank {rank} on {node} left with code {code}"),
    "progress": ("step {step} of {steps}, loss {loss}", "step {step}, loss {loss}", "step {step}"),
    "node.suspect": ("no heart-beat of {node} for {silent_s} s",),
    "node.silent": ("{node} is lost: no heart-beat for {silent_s} s",),
    "node.heard": ("{node} beats again after {silent_s} s",),
    "node.exit": ("{node} exited with code {code}", "{node} exited"),
    "node.ended": ("{node} ended with code {code}", "{node} ended"),
    "agent.ready": ("the agent of {node} takes commands",),
    "fault.planned": ("{fault} is planned on node {node}: {trigger}", "{fault} is planned"),
    "fault.target": ("fault {id} acts on {node}, group rank {rank}", "fault {id} acts on {node}"),
    "fault.unreached": ("fault {id} does not act: {reason}",),
    "fault.before": ("fault {id}: {node} was observed before the injection ({evidence})",),
    "fault.injected": ("fault {id} was injected on {node} ({evidence})", "fault {id} was injected on {node}"),
    "fault.verified": ("fault {id} was verified on {node} ({evidence})", "fault {id} was verified on {node}"),
    "fault.lasted": ("fault {id} was observed {samples} times until it was undone; held: {held} ({evidence})",),
    "fault.healed": ("fault {id} was undone on {node}",),
    "heal.verified": ("fault {id} was verified as undone on {node} ({evidence})",),
    "lease.armed": ("{holder} undoes the fault after {lease_s} s",),
    "lease.over": ("the time limit of the fault is over: it is undone",),
    "resume.chosen": ("the ranks load checkpoint {name} of step {step}", "the ranks start at step {step}"),
    "checkpoint.commit": ("rank {rank} committed checkpoint {name} of step {step}",),
    "save.committed": ("rank {rank} saved {path} after {n} steps", "rank {rank} saved a checkpoint"),
    "checkpoint.refused": ("a commit of an earlier start was rejected: {name}",),
    "checkpoint.failed": ("checkpoint {name} is lost: {reason}",),
    "checkpoint.skipped": ("checkpoint {name} is skipped: {reason}",),
    "command.repeated": ("{f} came again; its outcome was repeated",),
    "collective.sequence": ("rank {rank} replays {iterations} collectives with their gaps",),
    "collective.plan": ("rank {rank} measures {iterations} iterations of {count} cases",),
    "collective.measured": ("case {case} is measured: median {median_s} over {iterations} iterations",),
    "collective.auto": ("case {case}: {chosen} is chosen, {why}", "case {case}: {chosen} is chosen"),
    "collective.wrong": ("rank {rank} got a wrong result in case {case}, step {step}: {got} where {expected} was due",),
    "link.probing": ("{directions} directions of links are probed",),
    "link.pair": (
        "link from rank {rank} to rank {peer}: start-up {alpha_s}, {beta_s_per_byte}",
        "link from rank {rank} to rank {peer}: {reason}",
    ),
    "link.fit": ("all links: start-up {alpha_s}, {beta_s_per_byte}",),
    "traffic": ("rank {rank} sent in its first step: {measured}",),
    "reference.compared": ("rank {rank} differs from one process by at most {difference} ({of}) after {steps} steps",),
    "probe.done": ("probe {probe} ended early on rank {rank}: {error}", "probe {probe} ended on rank {rank}"),
}  # fmt: skip


def _verified(act: str) -> tuple[str, str]:
    """Return what was done, and whether it was verified: with the evidence, and without."""
    done = f"the fault was {act} on {{node}}; verified: {{verified}}"
    return f"{done} ({{evidence}})", done


#: Name of a command -> what is asked for, and what was done, with most fields first.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "fence.write": ("no start before {start} may commit any more", "the fence is written"),
    "checkpoint.scan": ("{node} looks for the newest valid checkpoint", "the newest valid checkpoint is {newest}"),
    "store.open": ("{node} hosts the store of {start}", "the store listens on {address} port {port}"),
    "gang.start": ("{node} starts its ranks {ranks} of {start}", "{node} started {pids}"),
    "gang.stop": (
        "{node} ends its ranks of {start}",
        "no rank is left on {node}; processes that can run code: {left}; seconds from their notice to their end: {had_s}",
        "no rank is left on {node}; processes that can run code: {left}",
    ),
    "gang.inspect": ("{node} observes whether its ranks work", "{node} observed its ranks for {window_s} s"),
    "node.apply": ("{node} is started", "{node} runs"),
    "node.kill": ("every process of {node} is ended", "every process of {node} is ended; left {left}"),
    "fault.act": ("{fault} ({id}) is injected on {node}", *_verified("injected")),
    "fault.heal": ("fault {id} is undone on {node}", *_verified("undone")),
    "rank.release": ("rank {rank} shall continue", "the agent released the rank"),
    "rank.hold": ("rank {rank} shall wait in {phase}", "the order to wait was written"),
    "gather": ("the files of all nodes are fetched", "{files} files were fetched"),
    "exec": ("{node} runs {argv}", "the program left with code {code}"),
    "exec.stop": ("the program on {node} is ended", "the program does not run any more"),
    "timer": ("the controller waits {after_s} s", "the time is over"),
}  # fmt: skip
#: Fields that are for checkers.
_HIDDEN = ("digest", "cursors", "act", "sums", "deadline_s", "weights", "sha256", "begin", "system", "lineage")
_LONGEST = 240


def sentence(event: Event) -> str:
    """Return what happened, in words; of an event without a template its fields."""
    fields = dict(_fields(event))
    for template in _templates(event):
        if all(name in fields for _, name, _, _ in string.Formatter().parse(template) if name):
            return _shortened(template.format_map(fields))
    return _shortened("; ".join(f"{name} {text}" for name, text in fields.items() if name in event.value))


def _templates(event: Event) -> Iterator[str]:
    if event.f not in COMMANDS:
        yield from NOTES.get(event.f, ())
        return
    request, *done = COMMANDS[event.f]
    if event.type == "invoke":
        yield from (request, f"{event.f} is asked of {{node}}")
    elif event.type == "ok":
        yield from (*done, f"{event.f} is done on {{node}}")
    else:
        how = "failed" if event.type == "fail" else "has no known outcome"
        yield f"{event.f} {how}: {{reason}}"
        yield f"{event.f} {how}"


def _fields(event: Event) -> Iterator[tuple[str, str]]:
    yield "node", event.node or "the controller"
    yield "start", start_name(event.epoch or 0)
    for name, value in event.value.items():
        if name == "cases" and isinstance(value, list):
            yield "count", str(len(value))
            yield "iterations", f"{sum(_whole(mapping(case).get('iterations')) for case in value):,}"
        elif name not in _HIDDEN and value not in ("", None, [], {}):
            yield name, _text(name, value)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _text(name: str, value: Any) -> str:
    if name == "newest":
        return str(mapping(value).get("name", "none"))
    if name in _WORDS:
        with contextlib.suppress(TypeError, ValueError, AttributeError, ArithmeticError):
            return _WORDS[name](value)
    return page_facts.show(value)


def _trigger(value: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key.replace('_', ' ')} {page_facts.show(item)}" for key, item in value.items() if key != "exact"
    )


#: Name of a field -> its value in words; a value of another shape is shown as it is.
_WORDS: Mapping[str, Callable[[Any], str]] = {
    "evidence": lambda value: ", ".join(f"{key}: {page_facts.show(item) or 'none'}" for key, item in value.items()),
    "pids": lambda value: ", ".join(f"rank {rank} as process {pid}" for rank, pid in value.items()),
    "measured": lambda value: ", ".join(f"{count:,} bytes by {operation}" for operation, count in value.items()),
    "trigger": _trigger,
    "median_s": seconds,
    "alpha_s": lambda value: f"{value * 1e6:.3g} us",
    "beta_s_per_byte": lambda value: f"{8e-9 / value:.3g} Gbit/s",
}


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"
