"""Commands and what became of them: an invoke and the outcomes that carry its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from ..model.event import Event, History, P_co
from ..model.payload import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[P_co]):
    """One command. ``invokes`` has more than one entry where a resumed run asked again under the same key."""

    f: str
    key: str
    invokes: tuple[Event[P_co], ...]
    outcomes: tuple[Event, ...]

    @property
    def invoke(self) -> Event[P_co]:
        return self.invokes[0]

    @property
    def outcome(self) -> Event | None:
        """The first outcome; repeats of it only confirm it."""
        return self.outcomes[0] if self.outcomes else None

    @property
    def ok(self) -> Event | None:
        return next((event for event in self.outcomes if event.type == "ok"), None)

    @property
    def node(self) -> str | None:
        return self.invoke.node

    @property
    def epoch(self) -> int | None:
        return self.invoke.epoch

    @property
    def deadline_s(self) -> float | None:
        return getattr(self.invoke.data, "deadline_s", None)


def operations(history: History, *kinds: type[Payload]) -> tuple[Operation, ...]:
    """The commands named, or all, in the order in which they were first issued."""
    names = {kind.NAME for kind in kinds}
    invokes: dict[tuple[str, str], list[Event]] = {}
    outcomes: dict[tuple[str, str], list[Event]] = {}
    for event in history.events:
        if event.key is None or event.type == "note" or (names and event.f not in names):
            continue
        place = invokes if event.type == "invoke" else outcomes
        place.setdefault((event.f, event.key), []).append(event)
    return tuple(
        Operation(f=f, key=key, invokes=tuple(asked), outcomes=tuple(outcomes.get((f, key), ())))
        for (f, key), asked in invokes.items()
    )


def unasked(history: History) -> tuple[Event, ...]:
    """Outcomes that no earlier invoke asked for."""
    asked: set[tuple[str, str | None]] = set()
    found: list[Event] = []
    for event in history.events:
        if event.type == "invoke":
            asked.add((event.f, event.key))
        elif event.type != "note" and (event.f, event.key) not in asked:
            found.append(event)
    return tuple(found)
