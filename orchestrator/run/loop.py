"""The only loop that performs commands and feeds what comes of them back as events."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..core.engine import duplicates, engine, fold, liveness
from ..core.engine.state import State
from ..model import redaction
from ..model.bed import NodeStatus
from ..model.errors import KeeperGoneError, on_disk
from ..model.event import Clock, Command, Event, Source
from ..model.payload import EventType
from ..model.plan import Plan
from ..model.provider import Cursors, Provider
from ..model.trial import Trial

#: These change what exists: the journal is on disk before they are sent.
_SYNCED = ("fault.act", "fault.heal", "node.apply", "node.kill")
#: These are carried out by the keeper, so a node's exit does not end them.
_BY_KEEPER = ("fault.act", "fault.heal", "node.apply", "node.kill")

#: After a resume a timer that is overdue still waits so long (or its own time), in seconds.
GRACE_S = 3.0


class Book(Protocol):
    """A journal: ``store.journal.Journal``, or one in memory."""

    events: list[Event]

    def append(self, event: Event) -> Event | None: ...

    def sync(self) -> None: ...


@dataclass(kw_only=True)
class Loop:
    """One orchestrator at work on one run. ``heard`` is told every event once it is in the journal.

    ``reveal`` puts secrets into a command that is sent; what is written down has placeholders in their places.
    ``probe``: the status of a node; ``start_probe``: it will soon be needed.
    """

    trial: Trial
    plan: Plan
    book: Book
    provider: Provider
    now: Callable[[], Clock]
    probe: Callable[[str], NodeStatus]
    start_probe: Callable[[str], None] = lambda node: None
    gather: Callable[[], Mapping[str, Any]]
    heard: Callable[[Event, State], None] = lambda event, state: None
    interrupted: Callable[[], bool] = lambda: False
    reveal: Callable[[Command], Command] = lambda command: command
    cursors: Cursors = field(default_factory=dict)
    _open: dict[str, tuple[Command, float]] = field(default_factory=dict)
    _timers: list[tuple[float, str]] = field(default_factory=list)
    _queue: deque[Event] = field(default_factory=deque)
    _watch: liveness.Watch = field(default_factory=lambda: liveness.Watch(looked=0.0))
    _pace: liveness.Pace = field(default_factory=liveness.Pace)
    _told: bool = False

    def run(self) -> State:
        """Until the run has ended or was suspended. The journal already holds ``run.begin``."""
        self._watch = liveness.Watch(looked=self.now().mono)
        state = self._catch_up()
        while not state.over:
            state = self._turn(state)
        return state

    # --- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self, state: State) -> State:
        events, self.cursors = self.provider.poll(self.cursors, self._patience())
        state = self._take(state, events)
        return self._take(state, (*self._fired(), *self._overdue(), *self._watched(state), *self._asked_to_stop()))

    def _take(self, state: State, events: Iterable[Event]) -> State:
        """Write events, all of them first: the end of the run may follow from one, and nothing is written after the end.

        Then do what follows from each, and what follows from that.
        """
        if state.over:
            return state
        for event in events:
            self._write(event)
        return self._flush(state)

    def _write(self, event: Event) -> None:
        """Into the journal, and from there into the queue of events whose consequences are due."""
        placed = self.book.append(duplicates.noted(event, self.book.events))
        if placed is not None:
            self._queue.append(placed)

    def _flush(self, state: State) -> State:
        while self._queue and not state.over:
            event = self._queue.popleft()
            if self._repeated(event):
                continue
            self._note_progress(event)
            self._note_heal(state, event)
            state, commands = engine.step(self.trial, state, event)
            self.heard(event, state)
            for command in commands:
                self._issue(command)
            for cut in self._cut_off(event):
                self._write(cut)
        return state

    def _repeated(self, event: Event) -> bool:
        """A second answer to a command that is closed; closes the command otherwise."""
        if event.type not in ("ok", "fail", "info"):
            return False
        return self._open.pop(str(event.key), None) is None

    # --- commands -----------------------------------------------------------------------------------------------------

    def _issue(self, command: Command) -> None:
        about = {"node": command.node, "epoch": command.epoch, "key": command.key}
        if command.f == "note":
            if command.value["f"] == "run.end":
                self._abandon()
            self._write(self._own("note", command.value["f"], command.value["value"], **about))
            return
        value = {**_shown(command.value), "deadline_s": command.deadline_s}
        placed = self.book.append(self._own("invoke", command.f, value, **about))
        if placed is not None:
            self._perform(command, placed.at.mono)

    def _perform(self, command: Command, since: float) -> None:
        """Send a command out; the answer comes as an event."""
        self._open[command.key] = (command, since + command.deadline_s)
        if command.f == "timer":
            heapq.heappush(self._timers, (since + float(command.value["after_s"]), command.key))
        elif command.f == "gather":
            self._write(self._own("ok", "gather", self._gathered(), key=command.key, epoch=command.epoch))
        else:
            if command.f in _SYNCED:
                self.book.sync()
            self._send(command)

    def _send(self, command: Command) -> None:
        """Without a way to its host it was not sent, and the run goes on without it. What is wrong with a file is raised."""
        try:
            self.provider.perform(self.reveal(command))
        except OSError as error:
            if on_disk(error):
                raise
            gone = {"gone": True} if isinstance(error, KeeperGoneError) else {}
            self._write(self._indeterminate(command, f"not sent: {error}", **gone))

    def _gathered(self) -> Mapping[str, Any]:
        """Fetch, then hear what the fetched files say and was not heard yet: the history lacks nothing of them."""
        value = self.gather()
        while events := self._said():
            for event in events:
                self._write(event)
        return value

    def _said(self) -> Sequence[Event]:
        """What the nodes have said since the last poll, without waiting."""
        events, self.cursors = self.provider.poll(self.cursors, 0.0)
        return events

    def _cut_off(self, event: Event) -> list[Event]:
        """A node that has exited answers nothing any more: close what was asked of its agent as indeterminate."""
        if event.f != "node.exit":
            return []
        cut = [
            command for command, _ in self._open.values()
            if command.node == event.node and command.f not in (*_BY_KEEPER, "timer", "gather")
            and command.incarnation in (None, event.source.incarnation)
        ]  # fmt: skip
        return [self._indeterminate(command, "the node exited") for command in cut]

    def _overdue(self) -> list[Event]:
        now = self.now().mono
        late = [command for command, due in self._open.values() if due <= now and command.f != "timer"]
        return [self._indeterminate(command, f"no answer within {command.deadline_s:g} s") for command in late]

    def _indeterminate(self, command: Command, reason: str, **more: Any) -> Event:
        about = {"node": command.node, "epoch": command.epoch, "key": command.key}
        return self._own("info", command.f, {"reason": reason, **more}, **about)

    def _abandon(self) -> None:
        """Nothing is left open in the history of a run that has ended."""
        for command, _ in list(self._open.values()):
            self.book.append(self._indeterminate(command, "the run ended"))
        self._open.clear()

    # --- time ---------------------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        if self._queue:
            return 0.0
        due = self._timers[0][0] - self.now().mono if self._timers else liveness.LOOK_S
        return max(0.0, min(due, liveness.LOOK_S))

    def _fired(self) -> list[Event]:
        now, fired = self.now().mono, []
        while self._timers and self._timers[0][0] <= now:
            _, key = heapq.heappop(self._timers)
            if key in self._open:
                fired.append(self._own("ok", "timer", {}, key=key))
        return fired

    # --- liveness -----------------------------------------------------------------------------------------------------

    def _watched(self, state: State) -> list[Event]:
        """Silence of nodes and standstill of the gang, a few times a second."""
        now = self.now().mono
        if now - self._watch.looked < liveness.LOOK_S:
            return []
        before = self._watch
        self._watch, late = liveness.look(before, now, self._beats(state))
        found = [self._own("note", "controller.late", {"late_s": round(late, 3)})] if late > 0.5 else []
        return [*found, *self._heard(state, before), *self._silences(state), *self._standstill(state, now)]

    def _beats(self, state: State) -> dict[str, tuple[str, int]]:
        """The heart-beats of the incarnations that count. One that was never heard is silent from the first look on."""
        found = dict(self.provider.heartbeats())
        for name, node in state.nodes.items():
            if node.usable and found.get(name, ("", 0))[0] != node.incarnation:
                found[name] = (node.incarnation, -1)
        return found

    def _heard(self, state: State, before: liveness.Watch) -> list[Event]:
        """Suspects that beat again, as the same incarnation."""
        again = [
            node for node in liveness.heard(before, self._watch)
            if node in state.nodes and self._watch.beats[node].incarnation == before.beats[node].incarnation
        ]  # fmt: skip
        silent = {node: round(self._watch.looked - before.beats[node].at, 3) for node in again}
        return [self._own("note", "node.heard", {"silent_s": since}, node=node) for node, since in silent.items()]

    def _silences(self, state: State) -> list[Event]:
        found = []
        for node in liveness.suspects(self._watch, self.trial.liveness):
            if self._expected(state, node):
                found.append(self._own("note", "node.suspect", self._silence(node), node=node))
                self.start_probe(node)
            self._watch = liveness.mark(self._watch, node)
        for node in liveness.lost(self._watch, self.trial.liveness):
            if self._expected(state, node) and (seen := self._confirmed(node)):
                value = {**self._silence(node), "seen": seen}
                found.append(self._own("note", "node.silent", value, node=node))
        return found

    def _expected(self, state: State, node: str) -> bool:
        """Whether the heart-beat that was seen last is that of the incarnation that counts now."""
        known = state.nodes.get(node)
        return known is not None and known.usable and self._watch.beats[node].incarnation == known.incarnation

    def _silence(self, node: str) -> dict[str, Any]:
        return {"silent_s": round(liveness.silent_for(self._watch, node), 3)}

    def _confirmed(self, node: str) -> str:
        """What the silent node is seen to be; empty while it is seen running and may only be slow."""
        found = self.probe(node).state
        patience = liveness.PATIENCE * self.trial.liveness.lost_s
        slow = found in ("warm", "busy", "starting") and liveness.silent_for(self._watch, node) < patience
        return "" if slow else found

    def _standstill(self, state: State, now: float) -> list[Event]:
        since = liveness.stalled(self._pace, now, self.trial.liveness) if state.stage == "run" else None
        if since is None:
            return []
        self._pace = liveness.Pace()
        return [self._own("note", "gang.stalled", {"since_s": round(since, 3)}, epoch=state.epoch)]

    def _note_progress(self, event: Event) -> None:
        step = event.value.get("step")
        if event.f in ("rank.step", "progress") and isinstance(step, int):
            self._pace = liveness.advance(self._pace, step, self.now().mono)
        elif event.f in ("recovery.decided", "rank.held"):
            self._pace = liveness.Pace(per_step=self._pace.per_step)

    def _note_heal(self, state: State, event: Event) -> None:
        """Detection alone consults it: what follows from a silence is decided as ever."""
        fault = state.faults.get(str(event.value.get("id"))) if event.f == "heal.verified" else None
        if fault:
            self._watch = liveness.healed(self._watch, fault.hit, self.now().mono, self.trial.liveness)

    # --- beginnings ---------------------------------------------------------------------------------------------------

    def _catch_up(self) -> State:
        """Fold the history, issue what it asked for and never sent, drain what the nodes have said meanwhile.

        What was sent and is still not answered after that is sent again under the same key, with its whole deadline; a
        timer that is overdue waits for those answers first.
        """
        state, commands = fold.open_commands(self.trial, self.plan, self.book.events)
        sent = {e.key: e for e in self.book.events if e.type == "invoke"}
        done = {e.key for e in self.book.events if e.key and e.type != "invoke"}
        waiting = [command for command in commands if command.key not in done]
        again = [command for command in waiting if command.key in sent]
        for command in again:
            self._open[command.key] = (command, sent[command.key].at.mono + command.deadline_s)
        for command in waiting:
            if command.key not in sent:
                self._forgo(command) if state.ending and command.f == "fault.act" else self._issue(command)
        state = self._drain(self._flush(state))
        now = self.now().mono
        for command in again:
            if command.key in self._open:
                self._perform(command, _since(command, sent[command.key].at.mono, now))
        return self._flush(state)

    def _forgo(self, command: Command) -> None:
        """An injection that was decided, but never sent, is not made any more when the run is being closed."""
        about = {"node": command.node, "epoch": command.epoch, "key": command.key}
        self._write(self._own("invoke", command.f, command.value, **about))
        self._open[command.key] = (command, 0.0)
        self._write(self._own("fail", command.f, {"reason": "the run was cut off before it was sent"}, **about))

    def _drain(self, state: State) -> State:
        while not state.over and (events := self._said()):
            state = self._take(state, events)
        return state

    def _asked_to_stop(self) -> list[Event]:
        if self._told or not self.interrupted():
            return []
        self._told = True
        return [self._own("note", "run.interrupted", {})]

    def _own(self, type: EventType, f: str, value: Mapping[str, Any], **about: Any) -> Event:
        """An event of the controller's own; the journal numbers it."""
        return Event(type=type, f=f, value=value, at=self.now(), source=Source(writer="ctl", n=0), **about)


def _shown(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is written down of a command: an inventory's secrets are not. It is never sent again from there."""
    names = value.get("secret_names", ())
    return {**value, "env": redaction.redacted(value["env"], names)} if isinstance(value.get("env"), Mapping) else value


def _since(command: Command, sent: float, now: float) -> float:
    """From when on the time of a command that is sent again counts: a timer runs on, an answer gets its time anew."""
    if command.f != "timer":
        return now
    after_s = float(command.value["after_s"])
    return max(sent, now + min(after_s, GRACE_S) - after_s)
