"""Commands outside of a run: send them to a bed, wait for every answer, each with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..model.bed import BedSpec
from ..model.errors import KeeperGoneError
from ..model.event import Clock, Command, Event, Source
from ..model.provider import Cursors, Provider

#: The name under which commands that belong to no run are filed.
BED = "bed"
_SLICE_S = 0.25
_LOOK_S = 2.0


@dataclass(kw_only=True)
class Asking:
    """A provider bound to a run (or to the bed), the cursors of what it has said so far."""

    provider: Provider
    cursors: Cursors
    clock: Callable[[], float] = field(default=time.monotonic)

    def all(
        self,
        commands: Iterable[Command],
        heard: Callable[[Event], None] = lambda event: None,
        waiting: Callable[[], None] = lambda: None,
        vain: Callable[[Command], bool] = lambda command: False,
    ) -> Mapping[str, Event | None]:
        """Answers by key; None for a command that was not answered within its deadline. ``waiting`` is called meanwhile.

        ``vain``: asked now and then whether an answer can still come.
        """
        sent = tuple(commands)
        answers: dict[str, Event | None] = {command.key: None for command in sent}
        start = self.clock()
        for command in sent:
            try:
                self.provider.perform(command)
            except KeeperGoneError as error:
                answers[command.key] = _vain(command, str(error))
        due = {command.key: start + command.deadline_s for command in sent}
        looked = start
        while open_keys := [key for key, answer in answers.items() if answer is None]:
            now = self.clock()
            if now - looked > _LOOK_S:
                looked = now
                due |= {command.key: now for command in sent if command.key in open_keys and vain(command)}
            left = max(due[key] for key in open_keys) - now
            if left <= 0:
                break
            self._poll(min(left, _SLICE_S), answers, heard)
            waiting()
        return answers

    def _poll(self, timeout_s: float, answers: dict[str, Event | None], heard: Callable[[Event], None]) -> None:
        events, self.cursors = self.provider.poll(self.cursors, timeout_s)
        for event in events:
            if event.type in ("ok", "fail", "info") and answers.get(str(event.key), event) is None:
                answers[str(event.key)] = event
                heard(event)


def bound(provider: Provider, bed: BedSpec, run: str = BED) -> Asking:
    """Bind the provider; what it said before is not told again."""
    return Asking(provider=provider, cursors=provider.open(bed, run))


def _vain(command: Command, reason: str) -> Event:
    """What is answered where nobody is who could."""
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


def problem(answer: Event | None, command: Command) -> str:
    """What went wrong with a command; empty if nothing did."""
    if answer is None:
        return f"no answer to {command.f} within {command.deadline_s:g} s"
    if answer.type == "ok":
        return ""
    return str(answer.value.get("reason") or f"{command.f} failed")
