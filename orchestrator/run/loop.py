"""The event loop of a run: it feeds events to the engine, and sends the commands that the engine returns."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..core.engine import engine, fold, liveness
from ..core.engine.state import State
from ..model import event as model
from ..model import events as payloads
from ..model import redaction
from ..model.bed import NodeStatus
from ..model.errors import KeeperGoneError, on_disk
from ..model.event import Clock, Command, Event, Source
from ..model.frozen import dataclass, field
from ..model.payload import EventType, Payload
from ..model.plan import Plan
from ..model.provider import Cursors, Provider
from ..model.trial import REPLACE, Trial

#: These change the bed: the journal is on disk before they are sent.
_SYNCED = (payloads.FaultAct, payloads.FaultHeal, payloads.NodeApply, payloads.NodeKill)
#: After a resume an overdue timer still waits so many seconds, or its own time.
GRACE_S = 3.0
#: A keeper mostly replies within this time; afterwards the loop checks whether it still exists.
ABANDONED_S = 1.0
#: Events that are taken between two looks at whether the run is interrupted.
AT_ONCE = 256


class Journal(Protocol):
    """``store.journal.Journal``, or a journal in memory."""

    events: list[Event]

    def append(self, event: Event) -> Event | None: ...

    def sync(self) -> None: ...


@dataclass(kw_only=True)
class Loop:
    """The loop of one orchestrator on one run. ``on_event`` gets every event once it is in the journal.

    ``reveal`` puts secrets into a command that is sent; the journal has placeholders for them.
    ``ends_by_interrupt``: an interruption ends the run; else the run can be resumed.
    ``is_gathered``: do the gathered files have this event? A node may write another one after its files were copied.
    ``drains`` returns host -> why it is drained, None where that is not known.
    ``probe`` returns the status of a node; ``start_probe``: it will soon be needed.
    """

    trial: Trial
    plan: Plan
    journal: Journal
    provider: Provider
    now: Callable[[], Clock]
    probe: Callable[[str], NodeStatus]
    start_probe: Callable[[str], None] = lambda node: None
    gather: Callable[[], Mapping[str, Any]]
    is_gathered: Callable[[Event], bool] = lambda event: True
    on_event: Callable[[Event, State], None] = lambda event, state: None
    is_interrupted: Callable[[], bool] = lambda: False
    drains: Callable[[], Mapping[str, str] | None] = lambda: None
    ends_by_interrupt: bool = False
    reveal: Callable[[Command], Command] = lambda command: command
    cursors: Cursors = field(default_factory=dict)
    _open: dict[str, tuple[Command, float]] = field(default_factory=dict)
    _timers: list[tuple[float, str]] = field(default_factory=list)
    _deadlines: list[tuple[float, str]] = field(default_factory=list)
    _queue: deque[Event] = field(default_factory=deque)
    _polled: deque[Event] = field(default_factory=deque)
    _watch: liveness.Watch = field(default_factory=lambda: liveness.Watch(checked_at=0.0))
    _pace: liveness.Pace = field(default_factory=liveness.Pace)
    _stopping: bool = False

    def run(self) -> State:
        """Run until the run has ended or is interrupted. The journal already holds ``run.begin``."""
        self._watch = liveness.Watch(checked_at=self.now().mono)
        state = self._catch_up()
        while not state.over:
            state = self._turn(state)
        return state

    # --- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self, state: State) -> State:
        if not self._polled:
            events, self.cursors = self.provider.poll(self.cursors, self._patience())
            self._polled.extend(events)
        state = self._take(state, [self._polled.popleft() for _ in range(min(AT_ONCE, len(self._polled)))])
        late = () if self._polled else (*self._fired(), *self._overdue(), *self._check_liveness(state))
        return self._take(state, (*late, *self._interruption()))

    def _take(self, state: State, events: Iterable[Event]) -> State:
        """Write all events to the journal, then perform the commands that follow from each of them.

        All are written first: the run may end with one of them, and nothing is written after the end.
        """
        if state.over:
            return state
        for event in events:
            self._write(event)
        return self._flush(state)

    def _write(self, event: Event) -> None:
        """Append an event to the journal, and queue it for the engine."""
        numbered = self.journal.append(fold.mark_repeated(event, self.journal.events))
        if numbered is not None:
            self._queue.append(numbered)

    def _flush(self, state: State) -> State:
        while self._queue and not state.over:
            event = self._queue.popleft()
            if self._is_repeated_reply(event):
                continue
            self._note_progress(state, event)
            self._note_heal(state, event)
            state, commands = engine.step(self.trial, state, event)
            self.on_event(event, state)
            for command in commands:
                self._issue(command)
            for reply in self._lost_replies(event):
                self._write(reply)
        return state

    def _is_repeated_reply(self, event: Event) -> bool:
        """Close the command that the event replies to; True for a second reply."""
        if event.type not in ("ok", "fail", "info"):
            return False
        return self._open.pop(str(event.key), None) is None

    # --- commands -----------------------------------------------------------------------------------------------------

    def _issue(self, command: Command) -> None:
        about = {"node": command.node, "epoch": command.epoch, "key": command.key}
        if isinstance(command.data, payloads.Note):
            if command.data.f == payloads.RunEnd.NAME:
                self._close_commands()
            self._write(self._raw("note", command.data.f, command.data.value, **about))
            return
        value = {**_without_secrets(command.value), "deadline_s": command.deadline_s}
        numbered = self.journal.append(self._raw("invoke", command.f, value, **about))
        if numbered is not None:
            self._perform(command, numbered.at.mono)

    def _perform(self, command: Command, since: float) -> None:
        """Send a command; the reply comes as an event. Its deadline begins when it is sent: a slow disk is no late reply."""
        if command.kind in _SYNCED:
            self.journal.sync()
            since = max(since, self.now().mono)
        self._open[command.key] = (command, since + command.deadline_s)
        if isinstance(command.data, payloads.Timer):
            heapq.heappush(self._timers, (since + (command.data.after_s or 0.0), command.key))
        elif isinstance(command.data, payloads.Gather):
            self._write(
                self._raw("ok", payloads.Gather.NAME, self._gather_and_poll(), key=command.key, epoch=command.epoch)
            )
        else:
            self._send(command)
            due = max(since, self.now().mono) + command.deadline_s
            heapq.heappush(self._deadlines, (due, command.key))
            if command.key in self._open:
                self._open[command.key] = (command, due)

    def _send(self, command: Command) -> None:
        """Send a command. Without a connection to its host the reply is ``info``; an error of a file is raised."""
        try:
            self.provider.perform(self.reveal(command))
        except OSError as error:
            if on_disk(error):
                raise
            self._write(self._unperformed(command, f"not sent: {error}", error))

    def _gather_and_poll(self) -> Mapping[str, Any]:
        """Fetch the files of the nodes, then write the events that these files have and the journal lacks."""
        value = self.gather()
        while events := self._poll_now():
            for event in filter(self.is_gathered, events):
                self._write(event)
        return value

    def _poll_now(self) -> Sequence[Event]:
        """Return the events of the nodes since the last poll, without waiting."""
        events, self.cursors = self.provider.poll(self.cursors, 0.0)
        taken, self._polled = (*self._polled, *events), deque()
        return taken

    def _lost_replies(self, event: Event) -> list[Event]:
        """A node that has exited sends no reply: close the open commands of its agent as indeterminate."""
        if event.kind is not payloads.NodeExit:
            return []
        lost = [  # not what the keeper performs: it outlives the node
            command for command, _ in self._open.values()
            if command.node == event.node and command.kind not in (*payloads.KEEPER_COMMANDS, payloads.Timer, payloads.Gather)
            and command.incarnation in (None, event.source.incarnation)
        ]  # fmt: skip
        return [self._indeterminate(command, "the node exited") for command in lost]

    def _overdue(self) -> list[Event]:
        now, is_open = self.now().mono, False
        while self._deadlines and self._deadlines[0][0] <= now:
            is_open |= heapq.heappop(self._deadlines)[1] in self._open
        if not is_open:
            return []
        late = [command for command, due in self._open.values() if due <= now and command.kind is not payloads.Timer]
        return [self._indeterminate(command, f"no reply within {command.deadline_s:g} s") for command in late]

    def _abandoned(self, now: float) -> list[Event]:
        """Close the commands of a keeper that has gone since they were sent to it, and those that their host refused."""
        events = []
        for command, due in list(self._open.values()):
            if command.node is None or command.kind is payloads.Timer or now - (due - command.deadline_s) < ABANDONED_S:
                continue
            try:
                self.provider.require_performer(command)
            except OSError as error:
                events.append(self._unperformed(command, f"no reply: {error}", error))
        replies = self._poll_now() if events else ()  # the last ones of the keeper
        replied = {event.key for event in replies}
        return [*replies, *(event for event in events if event.key not in replied)]

    def _unperformed(self, command: Command, reason: str, error: OSError) -> Event:
        is_gone = isinstance(error, KeeperGoneError)
        ended = str(error) if isinstance(error, KeeperGoneError) and error.with_bed else None
        return self._closing(command, payloads.CommandFailed(reason=reason, gone=is_gone or None, bed_ended=ended))

    def _indeterminate(self, command: Command, reason: str) -> Event:
        return self._closing(command, payloads.CommandFailed(reason=reason))

    def _closing(self, command: Command, failed: payloads.CommandFailed) -> Event:
        about = {"node": command.node, "epoch": command.epoch, "key": command.key}
        return self._event(failed, type="info", f=command.f, **about)

    def _close_commands(self) -> None:
        """Close every open command: the history of a run that has ended has none."""
        for command, _ in list(self._open.values()):
            self.journal.append(self._indeterminate(command, "the run ended"))
        self._open.clear()

    # --- time ---------------------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        if self._queue:
            return 0.0
        due = self._timers[0][0] - self.now().mono if self._timers else liveness.CHECK_INTERVAL_S
        return max(0.0, min(due, liveness.CHECK_INTERVAL_S))

    def _fired(self) -> list[Event]:
        now, fired = self.now().mono, []
        while self._timers and self._timers[0][0] <= now:
            _, key = heapq.heappop(self._timers)
            if key in self._open:
                fired.append(self._event(payloads.TimerDone(), key=key))
        return fired

    # --- liveness -----------------------------------------------------------------------------------------------------

    def _check_liveness(self, state: State) -> list[Event]:
        """Detect silent nodes and a stalled gang, a few times a second."""
        now = self.now().mono
        if now - self._watch.checked_at < liveness.CHECK_INTERVAL_S:
            return []
        previous = self._watch
        self._watch, late = liveness.check(previous, now, self._heartbeats(state))
        self._pace = liveness.delayed(self._pace, late, now)
        delays = [self._event(payloads.ControllerLate(late_s=round(late, 3)))] if late > 0.5 else []
        return [
            *delays,
            *self._abandoned(now),
            *self._changed_drains(state),
            *self._recovered(state, previous),
            *self._silences(state),
            *self._stall(state, now),
        ]

    def _changed_drains(self, state: State) -> list[Event]:
        """Report which hosts are drained, where recovery may place a node on another host."""
        drains = self.drains() if REPLACE in self.plan.policy else None
        return [] if drains is None or drains == state.drained else [self._event(payloads.HostsDrained(hosts=drains))]

    def _heartbeats(self, state: State) -> dict[str, tuple[str, int]]:
        """Return the heart-beats of the current incarnations. A node that never had one is silent from the first check on."""
        beats = dict(self.provider.heartbeats())
        for name, node in state.nodes.items():
            if node.usable and beats.get(name, ("", 0))[0] != node.incarnation:
                beats[name] = (node.incarnation, -1)
        return beats

    def _recovered(self, state: State, previous: liveness.Watch) -> list[Event]:
        """Report suspects whose heart-beat continues, in the same incarnation."""
        recovered = [
            node for node in liveness.heard(previous, self._watch)
            if node in state.nodes and self._watch.beats[node].incarnation == previous.beats[node].incarnation
        ]  # fmt: skip
        silent = {node: round(self._watch.checked_at - previous.beats[node].at, 3) for node in recovered}
        return [self._event(payloads.NodeHeard(silent_s=since), node=node) for node, since in silent.items()]

    def _silences(self, state: State) -> list[Event]:
        events = []
        for node in liveness.suspects(self._watch, self.trial.liveness):
            if self._is_current(state, node):
                events.append(self._event(payloads.NodeSuspect(silent_s=self._silence_s(node)), node=node))
                self.start_probe(node)
            self._watch = liveness.with_suspect(self._watch, node)
        events += [
            self._event(payloads.NodeSilent(silent_s=self._silence_s(node), seen=status), node=node)
            for node in liveness.lost(self._watch, self.trial.liveness)
            if self._is_current(state, node) and (status := self._status_if_lost(node))
        ]
        return events

    def _is_current(self, state: State, node: str) -> bool:
        """Return whether the last heart-beat is that of the node's current incarnation."""
        known = state.nodes.get(node)
        return known is not None and known.usable and self._watch.beats[node].incarnation == known.incarnation

    def _silence_s(self, node: str) -> float:
        return round(liveness.silent_for(self._watch, node), 3)

    def _status_if_lost(self, node: str) -> str:
        """Return the probed status of a silent node; empty while it runs and may only be slow."""
        status = self.probe(node).state
        patience = liveness.PATIENCE * self.trial.liveness.lost_s
        is_slow = status in ("warm", "busy", "starting") and liveness.silent_for(self._watch, node) < patience
        return "" if is_slow else status

    def _stall(self, state: State, now: float) -> list[Event]:
        if self.trial.workload == "script":
            return self._standstill(state, now)
        since = liveness.stalled(self._pace, now, self.trial.liveness) if state.stage == "run" else None
        if since is None:
            return []
        self._pace = liveness.Pace()
        return [self._event(payloads.GangStalled(since_s=round(since, 3)), epoch=state.epoch)]

    def _standstill(self, state: State, now: float) -> list[Event]:
        """A script that completes no step, or whose ranks do not join, is inspected; the engine decides whether it has stalled."""
        timeout_s = self.trial.params.get("timeout_s")
        quiet = liveness.quiet(self._pace, now, self.trial.liveness, timeout_s)
        if quiet is None and state.stage == "start":
            quiet = liveness.unjoined(self._pace, now)
        if quiet is None or not state.active or state.inspection is not None:
            return []
        self._pace = liveness.inspected(self._pace)
        return [self._event(quiet, epoch=state.epoch)]

    def _note_progress(self, state: State, event: Event) -> None:
        """Follow the steps of this attempt. What is reported late of an earlier one is no progress: nodes may be starting meanwhile."""
        if event.epoch is not None and event.epoch < state.epoch:
            return
        if event.kind in (payloads.RankStep, payloads.Progress) and event.data.step is not None:
            self._pace = liveness.advance(self._pace, event.data.step, self.now().mono, event.data.pause_s or 0.0)
        elif event.kind is payloads.RankExit and event.data.code == 0:
            self._pace = liveness.with_exit(self._pace, event.data.rank, self.now().mono)
        elif event.kind is payloads.GangStartDone:
            self._pace = liveness.started(self._pace, self.now().mono)
        elif event.kind in (payloads.RecoveryDecided, payloads.RecoveryGrown, payloads.RankHeld):
            self._pace = liveness.Pace(per_step=self._pace.per_step)
        elif (
            event.kind in (payloads.FaultVerified, payloads.RankReleased, payloads.HoldExpired)
            and self._pace.at is None
        ):
            self._pace = liveness.released(self._pace, self.now().mono)

    def _note_heal(self, state: State, event: Event) -> None:
        """Give a node time for its heart-beat after a heal. Only the detection uses this."""
        fault = state.faults.get(event.data.id) if event.kind is payloads.HealVerified else None
        if fault:
            self._watch = liveness.healed(self._watch, fault.hit, self.now().mono, self.trial.liveness)

    # --- start and resume -----------------------------------------------------------------------------------------------

    def _catch_up(self) -> State:
        """Fold the history, issue the commands that were never sent, and poll the events since the last orchestrator.

        A command without a reply is then sent again under the same key, with its whole deadline. An overdue timer waits
        for those replies first.
        """
        state, commands = fold.open_commands(self.trial, self.plan, self.journal.events)
        sent = {e.key: e for e in self.journal.events if e.type == "invoke"}
        done = {e.key for e in self.journal.events if e.key and e.type != "invoke"}
        waiting = [command for command in commands if command.key not in done]
        resent = [command for command in waiting if command.key in sent]
        for command in resent:
            self._open[command.key] = (command, sent[command.key].at.mono + command.deadline_s)
        for command in waiting:
            if command.key not in sent:
                self._cancel(command) if state.ending and command.kind is payloads.FaultAct else self._issue(command)
        state = self._drain(self._flush(state))
        now = self.now().mono
        for command in resent:
            if command.key in self._open:
                self._perform(command, _since(command, sent[command.key].at.mono, now))
        return self._flush(state)

    def _cancel(self, command: Command) -> None:
        """Close an injection that was decided, but never sent: the run is ending."""
        about = {"node": command.node, "epoch": command.epoch, "key": command.key}
        self._write(self._raw("invoke", command.f, command.value, **about))
        self._open[command.key] = (command, 0.0)
        failed = payloads.CommandFailed(reason="the run was cut off before it was sent")
        self._write(self._event(failed, type="fail", f=command.f, **about))

    def _drain(self, state: State) -> State:
        while not state.over and (events := self._poll_now()):
            state = self._take(state, events)
        return state

    def _interruption(self) -> list[Event]:
        if self._stopping or not self.is_interrupted():
            return []
        self._stopping = True
        return [self._event(payloads.RunInterrupted(is_final=self.ends_by_interrupt or None))]

    def _event(self, payload: Payload, **about: Any) -> Event:
        """Return an event of the controller itself; the journal numbers it."""
        return model.event(payload, at=self.now(), source=Source(writer="ctl", n=0), **about)

    def _raw(self, type: EventType, f: str, value: Mapping[str, Any], **about: Any) -> Event:
        """Return an event of the controller; the journal numbers it."""
        return Event(type=type, f=f, value=value, at=self.now(), source=Source(writer="ctl", n=0), **about)


def _without_secrets(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Redact the environment for the journal. A command is never sent again from there."""
    names = value.get("secret_names", ())
    return {**value, "env": redaction.redacted(value["env"], names)} if isinstance(value.get("env"), Mapping) else value


def _since(command: Command, sent: float, now: float) -> float:
    """Return when the time of a resent command starts: a timer continues, any other command has its whole deadline."""
    if not isinstance(command.data, payloads.Timer):
        return now
    after_s = command.data.after_s or 0.0
    return max(sent, now + min(after_s, GRACE_S) - after_s)
