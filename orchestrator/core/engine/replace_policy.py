"""Policy ``replace``: start a lost node on another host of the bed with room, wait for one, and say why each host was refused.

The replacement has a name of its own, so two nodes of one name never live. Its place is free: an unused node, a node that
is started for this, or a node that was lost earlier and whose host responds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ...model.event import Event
from ...model.events import HostsDrained, RecoveryWaiting
from ...model.trial import REPLACE, Trial
from . import gang_commands
from .state import Commands, Result, State, note, timer

#: The role of a node that is started only in place of a lost one.
ROLE = "replacement"


def choose(state: State, lost: str, slots: Sequence[str]) -> str | None:
    """The node that takes the place of ``lost``; None where no host has room. ``slots``: those that are decided so far.

    A node that lives is taken first, then the host whose life is known, then the one with the fewest nodes of the gang.
    """
    places = [state.host(name) for name in slots if name and state.usable(name)]
    living = {state.host(name) for name, node in state.nodes.items() if node.usable}

    def rank(name: str) -> tuple[bool, bool, bool, int]:
        node, host = state.nodes[name], state.host(name)
        return not node.usable, node.suspect, host not in living, places.count(host)

    return min(_free(state, lost, slots), key=rank, default=None)


def refusals(state: State, lost: str, slots: Sequence[str]) -> Mapping[str, str]:
    """Every host of the bed without room for ``lost`` -> the reason, in words."""
    free = {state.host(name) for name in _free(state, lost, slots)}
    return {host: _reason(state, host, lost) for host in state.plan.hosts if host not in free}


def describe(hosts: Mapping[str, str]) -> str:
    """``h1 is full (n1); h2 does not respond``."""
    return "; ".join(f"{host} {reason}" for host, reason in hosts.items())


def waits(trial: Trial, state: State) -> bool:
    """Return whether recovery waits for room instead of giving up."""
    return REPLACE in state.plan.policy and bool(trial.recovery.replace_wait_s)


def wait(trial: Trial, state: State) -> Result:
    """Wait for room. Silent nodes are ordered to end, so that a host that returns has no node of an earlier attempt."""
    lost = tuple(name for name in state.slots if not state.usable(name))
    wait_s = trial.recovery.replace_wait_s or 0.0
    hosts = refusals(state, lost[0], state.slots)
    waiting = RecoveryWaiting(lost=lost, detector=state.detector, wait_s=wait_s, hosts=hosts)
    commands = (note(waiting, f"e{state.epoch}/waiting", epoch=state.epoch), timer(timer_key(state), wait_s))
    state, ends = end_silent(trial, replace(state, stage="wait", awaited=frozenset()))
    return state, (*commands, *ends)


def end_silent(trial: Trial, state: State) -> Result:
    """Order the silent nodes to end. The order waits for the return of their host, as long as recovery waits."""
    names = [name for name, node in state.nodes.items() if node.silent and not node.condemned]
    wait_s = trial.recovery.replace_wait_s or 0.0
    ends: Commands = tuple(
        replace(gang_commands.kill_node(state, name), key=f"e{state.epoch}/wait/{name}", deadline_s=wait_s)
        for name in names
    )
    condemned = {name: replace(state.nodes[name], condemned=True) for name in names}
    return replace(state, nodes={**state.nodes, **condemned}), ends


def timer_key(state: State) -> str:
    return f"e{state.epoch}/room"


def on_drained(trial: Trial, state: State, event: Event[HostsDrained]) -> Result:
    """Hosts were drained, or are drained no longer."""
    return replace(state, drained=event.data.hosts), ()


def with_lost_hosts(state: State) -> State:
    """The state that remembers which hosts did not respond when a recovery began."""
    hosts = {state.host(name) for name in state.slots if not state.usable(name)}
    silent = {host for host in hosts if state.silent_host(host)}
    return replace(state, lost_hosts=(state.lost_hosts - hosts) | silent)


def stands_for(state: State, chosen: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """Node -> the nodes that it replaces. One that could not be started stands for those before it: their hosts are not tried again."""
    return {new: (*_predecessors(state, lost), lost) for lost, new in chosen.items()}


def is_replacement(state: State, name: str) -> bool:
    """Return whether the node exists only in place of a lost one."""
    return state.plan.nodes[name].role == ROLE


def _free(state: State, lost: str, slots: Collection[str]) -> Iterator[str]:
    spares = {name for name in state.spares if state.usable(name)}
    places = _places_of_loss(state, lost)
    for name, node in state.nodes.items():
        host = state.host(name)
        is_taken = (name in slots and name != lost) or name in spares or name in state.absent
        is_elsewhere = host not in places or _is_back(state, host)
        if is_taken or node.silent or name in state.unrestartable or not is_elsewhere:
            continue
        if not (host in state.drained or state.silent_host(host) or state.plan.hosts.get(host, "")):
            yield name


def _places_of_loss(state: State, lost: str) -> Mapping[str, str]:
    """Hosts on which the node, or one that it stands for, was lost -> that node."""
    return {state.host(name): name for name in (lost, *reversed(_predecessors(state, lost)))}


def _predecessors(state: State, lost: str) -> tuple[str, ...]:
    """The nodes for which it stands, as long as its attempt was not started."""
    return () if state.is_started else state.stands_for.get(lost, ())


def _is_back(state: State, host: str) -> bool:
    return host in state.lost_hosts and not state.silent_host(host)


def _reason(state: State, host: str, lost: str) -> str:
    """Return why a host gets no node in place of ``lost``."""
    if host in state.drained:
        return state.drained[host]
    if state.silent_host(host):
        return "does not respond"
    failed = [f"could not start {name}: {why}" for name, why in state.unrestartable.items() if state.host(name) == host]
    if failed:
        return failed[0]
    if host in (places := _places_of_loss(state, lost)):
        return f"is where {places[host]} was lost"
    if state.plan.hosts[host]:
        return state.plan.hosts[host]
    names = [name for name, node in state.nodes.items() if state.host(name) == host and node.usable]
    return f"is full ({', '.join(names)})" if names else "has no room (ccbed_max_nodes)"
