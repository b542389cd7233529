"""Commands outside of a run: send them to a bed and wait for every outcome, each with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from ..model.bed import BedSpec
from ..model.errors import KeeperGoneError
from ..model.event import Clock, Command, Event, Source
from ..model.frozen import dataclass, field
from ..model.provider import Cursors, Provider

#: The run name of commands that belong to no run.
BED = "bed"
_SLICE_S = 0.25
_CHECK_S = 2.0


@dataclass(kw_only=True)
class BedCommands:
    """A provider bound to a run (or to the bed), and the cursors of the events read so far."""

    provider: Provider
    cursors: Cursors
    clock: Callable[[], float] = field(default=time.monotonic)

    def perform(
        self,
        commands: Iterable[Command],
        on_outcome: Callable[[Event], None] = lambda event: None,
        while_waiting: Callable[[], None] = lambda: None,
        is_vain: Callable[[Command], bool] = lambda command: False,
    ) -> Mapping[str, Event | None]:
        """Outcomes by key; None for a command without an outcome within its deadline.

        ``while_waiting`` is called between polls; ``is_vain`` now and then, to learn that no outcome can come any more.
        """
        sent = tuple(commands)
        outcomes: dict[str, Event | None] = {command.key: None for command in sent}
        start = self.clock()
        for command in sent:
            try:
                self.provider.perform(command)
            except KeeperGoneError as error:
                outcomes[command.key] = _unperformed(command, str(error))
        due = {command.key: start + command.deadline_s for command in sent}
        checked = start
        while open_keys := [key for key, outcome in outcomes.items() if outcome is None]:
            now = self.clock()
            if now - checked > _CHECK_S:
                checked = now
                due |= {command.key: now for command in sent if command.key in open_keys and is_vain(command)}
            remaining_s = max(due[key] for key in open_keys) - now
            if remaining_s <= 0:
                break
            self._poll(min(remaining_s, _SLICE_S), outcomes, on_outcome)
            while_waiting()
        return outcomes

    def _poll(self, timeout_s: float, outcomes: dict[str, Event | None], on_outcome: Callable[[Event], None]) -> None:
        events, self.cursors = self.provider.poll(self.cursors, timeout_s)
        for event in events:
            if event.type in ("ok", "fail", "info") and outcomes.get(str(event.key), event) is None:
                outcomes[str(event.key)] = event
                on_outcome(event)


def bind(provider: Provider, bed: BedSpec, run: str = BED) -> BedCommands:
    """Bind the provider; events from before are not read again."""
    return BedCommands(provider=provider, cursors=provider.open(bed, run))


def _unperformed(command: Command, reason: str) -> Event:
    """The outcome of a command that nothing can perform."""
    return Event(
        type="info",
        f=command.f,
        key=command.key,
        node=command.node,
        epoch=command.epoch,
        value={"reason": reason},
        at=Clock(boot="", mono=0.0, wall=0.0),
        source=Source(writer="ctl", n=0),
    )


def problem(outcome: Event | None, command: Command) -> str:
    """Return why a command failed; empty if it did not."""
    if outcome is None:
        return f"no response to {command.f} within {command.deadline_s:g} s"
    if outcome.type == "ok":
        return ""
    reason = getattr(outcome.data, "reason", None)
    return str(reason or f"{command.f} failed")
