"""Commands and their outcomes: an invoke, and the outcomes with the same key."""

from __future__ import annotations

from ..model.event import Event, History
from ..model.frozen import dataclass
from ..model.payload import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One command. ``invokes`` has several entries where a resumed run issued it again under the same key."""

    f: str
    key: str
    invokes: tuple[Event, ...]
    outcomes: tuple[Event, ...]

    @property
    def invoke(self) -> Event:
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
    """The commands of these kinds (classes of invokes), or all, in the order in which they were first issued."""
    names = {kind.NAME for kind in kinds}
    invokes: dict[tuple[str, str], list[Event]] = {}
    outcomes: dict[tuple[str, str], list[Event]] = {}
    for event in history.events:
        if event.key is None or event.type == "note" or (names and event.f not in names):
            continue
        group = invokes if event.type == "invoke" else outcomes
        group.setdefault((event.f, event.key), []).append(event)
    return tuple(
        Operation(f=f, key=key, invokes=tuple(issued), outcomes=tuple(outcomes.get((f, key), ())))
        for (f, key), issued in invokes.items()
    )


def unrequested(history: History) -> tuple[Event, ...]:
    """Outcomes without an earlier invoke."""
    issued: set[tuple[str, str | None]] = set()
    outcomes: list[Event] = []
    for event in history.events:
        if event.type == "invoke":
            issued.add((event.f, event.key))
        elif event.type != "note" and (event.f, event.key) not in issued:
            outcomes.append(event)
    return tuple(outcomes)
