"""Applies the plan of `up`: ends outdated nodes, prepares the hosts, starts missing nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from ..core.bed import error_explanations
from ..model import codec
from ..model.bed import BedSpec, BedStatus, Change, Diff, NodeSpec
from ..model.errors import InfrastructureError
from ..model.event import Command, Event, command
from ..model.events import NodeApply, NodeKill
from ..model.provider import Provider
from . import bed_commands

KILL_S = 15.0
#: So many containers of a host are started at once: each imports torch, which keeps a core and the disk busy.
AT_ONCE = 4
#: So many processes that are forked. What the keeper writes between two forks both children have in copies of their own.
FORKED_AT_ONCE = 64
#: The problem of a node that was not ready in time.
SLOW = "no response to node.apply"
#: How often starting nodes are observed.
_OBSERVE_S = 0.5
#: After so many failed observations in a row a host is lost.
LOST_AFTER = 3


def apply(
    provider: Provider,
    bed: BedSpec,
    diff: Diff,
    *,
    token: str,
    on_event: Callable[[Event], None] = lambda event: None,
    on_prepared: Callable[[float], None] = lambda seconds: None,
) -> float:
    """Return how long the nodes took, in seconds.

    ``token`` makes the commands' keys unique to this `up`. ``on_prepared`` is called when the keeper is ready.
    Raises InfrastructureError with a line per node that did not come up.
    """
    start = time.monotonic()
    if _replaces_keeper(diff):
        provider.retire(bed)
    provider.prepare(bed)
    middle = time.monotonic()
    on_prepared(middle - start if diff.keeper else 0.0)
    commands = bed_commands.bind(provider, bed)
    kills = () if _replaces_keeper(diff) else _kills((*diff.of("remove"), *diff.of("replace")), token)
    _perform_waves(commands, (kills,), bed, on_event)
    _perform_waves(commands, _waves(bed, (*diff.of("create"), *diff.of("replace")), token), bed, on_event)
    return time.monotonic() - middle


def _replaces_keeper(diff: Diff) -> bool:
    """Return whether the keeper must be replaced: its nodes end with it. A keeper that is dead has left its nodes already."""
    return not diff.detached and diff.keeper is not None and diff.keeper.action == "replace"


def _kills(changes: Iterable[Change], token: str) -> tuple[Command, ...]:
    return tuple(
        command(
            NodeKill(host=change.host or None),
            f"up-{token}/kill/{change.node}",
            node=change.node.partition("@")[0],
            deadline_s=KILL_S,
        )
        for change in changes
    )


def _waves(bed: BedSpec, changes: Iterable[Change], token: str) -> tuple[tuple[Command, ...], ...]:
    """Return waves of up to AT_ONCE nodes of a host, or FORKED_AT_ONCE. The more nodes a host starts at once, the longer each may take."""
    by_name = {node.name: node for node in bed.nodes}
    by_host: dict[str, list[NodeSpec]] = {}
    for change in changes:
        node = by_name[change.node]
        by_host.setdefault(node.host, []).append(node)
    at_once = AT_ONCE if bed.provider == "docker" else FORKED_AT_ONCE
    rounds = max((-(-len(nodes) // at_once) for nodes in by_host.values()), default=0)
    shares = [
        [nodes[first : first + at_once] for nodes in by_host.values()] for first in range(0, rounds * at_once, at_once)
    ]
    return tuple(tuple(_start(bed, node, len(share), token) for share in wave for node in share) for wave in shares)


def _start(bed: BedSpec, node: NodeSpec, together: int, token: str) -> Command:
    """``together``: how many nodes its host starts at once."""
    limit_s = bed.start_timeout_s * max(1.0, together / (2 if node.container else FORKED_AT_ONCE / 2))
    return Command(
        f=NodeApply.NAME,
        key=f"up-{token}/apply/{node.name}",
        node=node.name,
        deadline_s=limit_s,
        value=codec.plain(node),
    )


def _perform_waves(
    commands: bed_commands.BedCommands,
    waves: Iterable[tuple[Command, ...]],
    bed: BedSpec,
    on_event: Callable[[Event], None],
) -> None:
    """Perform wave after wave, also after failures: nodes that become ready stay. Raises InfrastructureError."""
    failed: list[tuple[str, str]] = []
    lost = _LostHosts(commands.provider, bed)
    for wave in waves:
        pending = [command for command in wave if not lost.reason(command)]
        outcomes = commands.perform(pending, on_event, is_vain=lost)
        texts = (
            (str(command.node), lost.reason(command) or bed_commands.problem(outcomes.get(command.key), command))
            for command in wave
        )
        failed.extend((node, text) for node, text in texts if text)
    if failed:
        raise _failure(bed, failed)


def settle(
    provider: Provider, bed: BedSpec, status: BedStatus, sleep: Callable[[float], None] = time.sleep
) -> BedStatus:
    """The bed once no node is starting any more, or the start-up time is over."""
    until = time.monotonic() + bed.start_timeout_s
    while any(status.node(node.name).state == "starting" for node in bed.nodes) and time.monotonic() < until:
        sleep(_OBSERVE_S)
        status = provider.observe(bed)
    return status


class _LostHosts:
    """Hosts that were unreachable several times in a row: no outcome is awaited from their nodes."""

    def __init__(self, provider: Provider, bed: BedSpec) -> None:
        self._provider = provider
        self._bed = bed
        self._missed: dict[str, int] = {}
        self._reasons: dict[str, str] = {}

    def __call__(self, command: Command) -> bool:
        host = self._host(command)
        if not host:
            return False
        node = str(command.node)
        status = self._provider.observe_node(self._bed, node)
        self._missed[node] = self._missed.get(node, 0) + 1 if status.state == "unreachable" else 0
        if self._missed[node] >= LOST_AFTER:
            self._reasons[host] = f"its host {host} was lost: {status.reason}"
        return host in self._reasons

    def reason(self, command: Command) -> str:
        """Return why the host of the command's node is lost; empty if it is not."""
        return self._reasons.get(self._host(command), "")

    def _host(self, command: Command) -> str:
        """The host of the command's node; empty for a node that the bed does not list, and for nodes of this machine."""
        if self._bed.provider == "process":
            return ""
        return next((node.host for node in self._bed.nodes if node.name == command.node), "")


def _failure(bed: BedSpec, failed: Sequence[tuple[str, str]]) -> InfrastructureError:
    """Known errors of the engine are explained, with a fix; for others, the hint is the keeper's log."""
    explain = error_explanations.explain_engine if bed.provider == "docker" else lambda text: None
    explained = [(node, text, explain(text)) for node, text in failed]
    problems = [
        f"node {node}: {known.text} ({text})" if known else f"node {node}: {text}" for node, text, known in explained
    ]
    hints = [known.fix if known else f"ccbed logs {bed.name}/keeper" for _, _, known in explained]
    if any(SLOW in text for _, text in failed):
        hints.append(f"a slow host needs more than ccbed_start_timeout: {bed.start_timeout_s:g}s")
    return InfrastructureError(
        *problems,
        hint="\n".join(
            dict.fromkeys([*hints, f"to continue: ccbed up {bed.inventory}     nodes that are ready are kept"])
        ),
    )
