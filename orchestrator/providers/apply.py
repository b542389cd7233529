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
    """Nodes whose keeper is gone or must change cannot be handed over: everything is ended first."""
    return (
        not diff.detached
        and diff.keeper is not None
        and bool(diff.of("replace") or diff.of("remove") or diff.keeper.action == "replace")
    )


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
    answers = ask.all(commands, heard)
    wrong = [(command.node, asking.problem(answers[command.key], command)) for command in commands]
    if failed := [(str(node), text) for node, text in wrong if text]:
        raise _refusal(bed, failed)


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
