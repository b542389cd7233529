"""Walks the plan of `up`: ends what must go, prepares the host, starts what is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..core import engine_errors
from ..model import codec
from ..model.bed import BedSpec, Change, Diff
from ..model.errors import InfrastructureError
from ..model.event import Command, Event
from ..model.provider import Provider
from . import asking

KILL_S = 15.0
APPLY_S = 60.0
#: So many looks in a row that fail: a host is lost.
LOST_AFTER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How long the parts took, in seconds; ``keeper_s`` is 0.0 where the keeper was there. ``ended``: pids."""

    keeper_s: float
    nodes_s: float
    ended: tuple[int, ...] = ()


def apply(
    provider: Provider,
    bed: BedSpec,
    diff: Diff,
    *,
    token: str,
    heard: Callable[[Event], None] = lambda event: None,
    prepared: Callable[[float], None] = lambda seconds: None,
) -> Applied:
    """``token`` makes the commands' keys unique to this `up`. ``prepared`` is told when the keeper is there.

    Raises InfrastructureError with a line per node that did not come up.
    """
    start = time.monotonic()
    ended = provider.retire(bed) if _all_anew(diff) else ()
    provider.prepare(bed)
    middle = time.monotonic()
    prepared(middle - start if diff.keeper else 0.0)
    ask = asking.bound(provider, bed)
    kills = () if _all_anew(diff) else _kills((*diff.of("remove"), *diff.of("replace")), token)
    _all(ask, kills, bed, heard)
    _all(ask, _starts(bed, (*diff.of("create"), *diff.of("replace")), token), bed, heard)
    return Applied(
        keeper_s=middle - start if diff.keeper else 0.0, nodes_s=time.monotonic() - middle, ended=tuple(ended)
    )


def _all_anew(diff: Diff) -> bool:
    """Nodes whose keeper must change cannot be handed over: everything is ended first. A keeper that is gone left its nodes."""
    return not diff.detached and diff.keeper is not None and diff.keeper.action == "replace"


def _kills(changes: Iterable[Change], token: str) -> tuple[Command, ...]:
    return tuple(
        Command(f="node.kill", key=f"up-{token}/kill/{change.node}", node=change.node, deadline_s=KILL_S)
        for change in changes
    )


def _starts(bed: BedSpec, changes: Iterable[Change], token: str) -> tuple[Command, ...]:
    return tuple(
        Command(
            f="node.apply",
            key=f"up-{token}/apply/{change.node}",
            node=change.node,
            deadline_s=APPLY_S,
            value=codec.plain(bed.node(change.node)),
        )
        for change in changes
    )


def _all(ask: asking.Asking, commands: tuple[Command, ...], bed: BedSpec, heard: Callable[[Event], None]) -> None:
    lost = _Lost(ask.provider, bed)
    answers = ask.all(commands, heard, vain=lost)
    wrong = [(str(one.node), lost.reason(one) or asking.problem(answers[one.key], one)) for one in commands]
    if failed := [(node, text) for node, text in wrong if text]:
        raise _refusal(bed, failed)


class _Lost:
    """Nodes whose host is not reached any more, several times in a row: nothing is waited for from there."""

    def __init__(self, provider: Provider, bed: BedSpec) -> None:
        self._provider = provider
        self._bed = bed
        self._missed: dict[str, list[str]] = {}

    def __call__(self, command: Command) -> bool:
        node = str(command.node)
        found = self._provider.look(self._bed, node)
        self._missed[node] = [*self._missed.get(node, ()), found.reason] if found.state == "unreachable" else []
        return len(self._missed[node]) >= LOST_AFTER

    def reason(self, command: Command) -> str:
        """Why nothing came from the node's host; empty where it was not lost."""
        node = str(command.node)
        missed = self._missed.get(node, [])
        host = self._bed.node(node).host if any(one.name == node for one in self._bed.nodes) else "?"
        return f"its host {host} was lost: {missed[-1]}" if len(missed) >= LOST_AFTER else ""


def _refusal(bed: BedSpec, failed: Iterable[tuple[str, str]]) -> InfrastructureError:
    """What an engine says is told in plain words before its own, with what to do; for the rest there is the keeper's log."""
    explain = engine_errors.explain if bed.provider == "docker" else lambda text: None
    told = [(node, text, explain(text)) for node, text in failed]
    problems = [
        f"node {node}: {known.text} ({text})" if known else f"node {node}: {text}" for node, text, known in told
    ]
    hints = [known.fix if known else f"ccbed logs {bed.name}/keeper" for _, _, known in told]
    return InfrastructureError(
        *problems, hint="\n".join(dict.fromkeys([*hints, f"to go on: ccbed up {bed.inventory}"]))
    )
