"""The commands of a gang: prepare its attempt, start it on every node, stop it."""

from __future__ import annotations

from dataclasses import replace

from ...model import codec, events
from ...model.event import Command, Event, command
from ...model.gang import GangSpec, Resume
from ...model.payload import Payload
from ...model.plugin import BUILT_IN
from ...model.trial import Trial
from ..spec import own_paths
from . import faults
from .state import Commands, Node, Result, State, note, timer

#: How long a node may take to respond while its heartbeat goes on: 64 ranks that end on two busy cores take longer than 5 s. A node
#: without a heartbeat is lost earlier.
RESPONSE_S = 60.0
#: How long the keeper of a host that is considered lost, or that did not respond to an earlier command within RESPONSE_S, may take to
#: kill a node: it is most likely dead, and each wait of a run for it would be added to the others.
SILENT_HOST_S = 10.0
#: The same to start a node: a container that imports torch on an overloaded machine needs more than 10 s.
SILENT_START_S = 30.0
#: ccbed's own workloads whose model is small and of a fixed size. Others may have buffers of any size, or use a GPU under gloo.
_SMALL = ("train-dp", "train-ddp", "train-fsdp", "train-pp", "train-tp")
#: A replaced silent node is killed before the next attempt, if its keeper responds within this time.
DRAIN_S = 0.5
#: The deadline of an inspection, which lasts up to 6.5 s.
INSPECT_S = 15.0


def prepare(trial: Trial, state: State) -> Result:
    """Prepare fence and store of the attempt, the checkpoint to resume (behind the fence), and the missing nodes.

    Replaced silent nodes are killed as well; a response of a lost host is not awaited.
    """
    state, ends = condemn(state)
    awaited_ends = {end.key for end in ends if not state.silent_host(state.host(str(end.node)))}
    fixer = next((name for name in state.slots if state.usable(name)), None)
    missing = tuple(dict.fromkeys(name for name in state.slots if not state.usable(name)))
    starts = tuple(_start_node(state, name) for name in missing)
    awaited = {command.key for command in starts} | awaited_ends | {_key(state, "store")}
    commands: Commands = (*ends, *starts)
    if state.usable(state.slots[0]):  # first: a store that must be forked starts while its agent does the rest
        commands += (_store(trial, state),)
    if fixer:
        state = replace(state, fence_ordered=state.epoch)
        checkpoints = _checkpoints(state, fixer)
        commands += checkpoints
        awaited |= {command.key for command in checkpoints}
    return replace(state, stage="prepare", awaited=frozenset(awaited)), commands


def on_prepared(trial: Trial, state: State, event: Event) -> Result:
    """A response of the preparation; the last response starts the gang."""
    follow: Commands = ()
    name = str(event.node)
    if event.command is events.NodeKill and event.type == "ok":
        state = replace(state, nodes={**state.nodes, name: replace(state.nodes[name], alive=False, reachable=False)})
        follow = (apply_node(state, name),) if name in state.slots else ()
    elif event.kind is events.NodeApplyDone:
        state = with_applied_node(state, event)
        state, follow = _after_apply(trial, state, name)
    elif event.kind is events.CheckpointScanDone:
        state, follow = _scanned(state, event)
    elif event.kind is events.StoreOpenDone:
        state = replace(state, store=(event.data.address, event.data.port))
        follow = _retried(state, event)
    pending = {command.key for command in follow if command.kind is not events.Note}
    state = replace(state, awaited=(state.awaited - {str(event.key)}) | pending)
    if state.awaited:
        return state, follow
    state, commands = start(trial, state)
    return state, follow + commands


def _retried(state: State, event: Event[events.StoreOpenDone]) -> Commands:
    if not event.data.retries:
        return ()
    retried = events.StoreRetried(taken=event.data.retries, port=event.data.port)
    return (note(retried, _key(state, "retried"), of=event.node, epoch=state.epoch),)


def with_applied_node(state: State, event: Event[events.NodeApplyDone]) -> State:
    """The state after a node was started: its new incarnation is current, and it can be started again."""
    name = str(event.node)
    node = Node(incarnation=event.data.incarnation, ordinal=event.data.ordinal)
    unrestartable = {other: reason for other, reason in state.unrestartable.items() if other != name}
    unresponsive = state.unresponsive - {state.host(name)}
    return replace(state, nodes={**state.nodes, name: node}, unrestartable=unrestartable, unresponsive=unresponsive)


def start(trial: Trial, state: State) -> Result:
    """Start the gang when everything is prepared: one gang.start per node."""
    step = (state.resume.step or 0) if state.resume else 0
    state = replace(state, stage="start", lineage=(*state.lineage, (state.epoch, step)))
    facts = codec.plain(state.resume or events.ResumeChosen(step=0))
    chosen = command(events.Note(f=events.ResumeChosen.NAME, value=facts), _key(state, "resume"), epoch=state.epoch)
    slots = tuple(dict.fromkeys(state.slots))
    return state, (chosen, *(start_on(trial, state, name) for name in slots))


def stop(trial: Trial, state: State, *, dump: bool = False) -> Result:
    """Kill the ranks of the attempt on every usable node.

    The next attempt does not wait until the kernel has freed the memory of workloads that are small and use no GPU.
    """
    plugin = state.plan.workload
    is_small = trial.workload in _SMALL and plugin is not None and plugin.source == BUILT_IN
    accepts_exiting = is_small and state.plan.backend == "gloo"
    commands = tuple(
        stop_command(state, name, stop_key(state, name), dump=dump, accepts_exiting=accepts_exiting)
        for name in state.slots
        if state.usable(name)
    )
    state = replace(state, awaited=frozenset(command.key for command in commands))
    return state, (
        *commands,
        timer(settle_key(state), trial.liveness.settle_s + _longest_grace_s(state)),
    ) if commands else ()


def stop_command(
    state: State,
    name: str,
    key: str,
    *,
    dump: bool = False,
    accepts_exiting: bool = False,
    response_s: float = RESPONSE_S,
) -> Command:
    """``response_s``: how long the node may take after the grace."""
    incarnation = state.nodes[name].incarnation
    payload = events.GangStop(
        epoch=state.epoch, dump=dump, grace_s=state.plan.grace_s or None, save_grace_s=state.plan.save_grace_s or None,
        accepts_exiting=accepts_exiting or None,
    )  # fmt: skip
    deadline_s = response_s + _longest_grace_s(state)
    return command(payload, key, node=name, incarnation=incarnation, epoch=state.epoch, deadline_s=deadline_s)


def _longest_grace_s(state: State) -> float:
    return max(state.plan.grace_s, state.plan.save_grace_s)


def inspect_command(state: State, name: str, count: int, *, stacks: bool) -> Command:
    incarnation = state.nodes[name].incarnation
    payload, key = events.GangInspect(epoch=state.epoch, stacks=stacks), _key(state, f"inspect{count}/{name}")
    return command(payload, key, node=name, incarnation=incarnation, epoch=state.epoch, deadline_s=INSPECT_S)


def next_epoch(state: State) -> State:
    """The state of the next attempt, without the previous gang."""
    return replace(
        state, epoch=state.epoch + 1, store=None, resume=None, awaited=frozenset(), detector="", vacant=frozenset(),
        started=frozenset(), joining={}, joined=frozenset(), finished=frozenset(), exited=frozenset(), failed=frozenset(),
        needs_stacks=False, inspection=None, standstill="", is_growing=False, failed_at=None, lost_at={},
    )  # fmt: skip


def stop_key(state: State, name: str) -> str:
    return _key(state, f"stop/{name}")


def kill_key(state: State, name: str) -> str:
    return _key(state, f"kill/{name}")


def settle_key(state: State) -> str:
    return _key(state, "settle")


def _start_node(state: State, name: str) -> Command:
    """Start a lost node again; a node that is only silent is killed first."""
    return kill_node(state, name) if state.nodes[name].alive else apply_node(state, name)


def condemn(state: State) -> Result:
    """Order silent nodes without a slot to exit, at most once."""
    names = [
        name for name, node in state.nodes.items() if node.silent and not node.condemned and name not in state.slots
    ]
    ends = tuple(replace(kill_node(state, name), deadline_s=DRAIN_S) for name in names)
    condemned = {name: replace(state.nodes[name], condemned=True) for name in names}
    return replace(state, nodes={**state.nodes, **condemned}), ends


def _after_apply(trial: Trial, state: State, name: str) -> Result:
    """The store requires the leader; the fence requires any usable node."""
    follow: Commands = ()
    if name == state.slots[0]:
        follow += (_store(trial, state),)
    if state.fence_ordered < state.epoch:
        state = replace(state, fence_ordered=state.epoch)
        follow += _checkpoints(state, name)
    return state, follow


def _scanned(state: State, event: Event[events.CheckpointScanDone]) -> tuple[State, Commands]:
    notes = tuple(
        note(events.CheckpointSkipped(name=skipped.name, reason=skipped.reason), _key(state, f"skipped/{skipped.name}"), epoch=state.epoch)
        for skipped in event.data.skipped or ()
    )  # fmt: skip
    return replace(state, resume=event.data.newest), notes


def _checkpoints(state: State, name: str) -> Commands:
    """Fence off the earlier attempts and, unless this one is the first, find the newest checkpoint.

    The agent searches only behind the fence, so that no earlier attempt commits one later.
    """
    plan = state.plan
    fence = events.FenceWrite(epoch=state.epoch, dir=plan.checkpoints, keep=plan.keep, fresh=not state.lineage)
    orders: Commands = (_command(state, fence, _key(state, "fence"), name),)
    if state.epoch == 0:
        return orders
    scan = events.CheckpointScan(dir=plan.checkpoints, lineage=state.lineage)
    return (*orders, _command(state, scan, _key(state, "scan"), name))


def _store(trial: Trial, state: State) -> Command:
    leader = state.slots[0]
    address = state.plan.nodes[leader].address
    reserve = True if state.plan.has_launcher else None
    payload = events.StoreOpen(epoch=state.epoch, address=address, port=trial.world.master_port, reserve=reserve)
    return _command(state, payload, _key(state, "store"), leader)


def apply_node(state: State, name: str) -> Command:
    deadline_s = SILENT_START_S if state.host(name) in state.unresponsive else RESPONSE_S
    return command(events.NodeApply(node=name), _key(state, f"apply/{name}"), node=name, deadline_s=deadline_s)


def kill_node(state: State, name: str) -> Command:
    incarnation = state.nodes[name].incarnation
    host = state.host(name)
    deadline_s = SILENT_HOST_S if host in state.unresponsive or state.silent_host(host) else RESPONSE_S
    return command(events.NodeKill(), kill_key(state, name), node=name, incarnation=incarnation, deadline_s=deadline_s)


def start_on(trial: Trial, state: State, name: str) -> Command:
    return Command(
        f=events.GangStart.NAME, key=_key(state, f"start/{name}"), node=name, incarnation=state.nodes[name].incarnation,
        epoch=state.epoch, deadline_s=RESPONSE_S, value=codec.plain(_gang_spec(trial, state, name)),
    )  # fmt: skip


def _gang_spec(trial: Trial, state: State, name: str) -> GangSpec:
    plan, node, slot = state.plan, state.plan.nodes[name], state.slots.index(name)
    ranks_per_node = trial.world.ranks_per_node
    address, port = state.store or ("", 0)
    return GangSpec(
        run=plan.run, epoch=state.epoch, world_size=state.world_size(trial), nodes=len(state.slots), group_rank=slot,
        ranks=tuple(range(slot * ranks_per_node, (slot + 1) * ranks_per_node)), master_addr=address, master_port=port,
        backend=plan.backend, timeout_s=trial.world.timeout_s, max_restarts=trial.recovery.max_restarts,
        workload=trial.workload, params=own_paths.applied(trial.params, plan.paths), seed=trial.seed, payload=plan.payload,
        out=f"{node.directory}/runs/{plan.run}/i{state.nodes[name].ordinal}-e{state.epoch}",
        checkpoints=plan.checkpoints, interface=node.interface, data=plan.data, resume=_resume(state),
        holds=faults.holds(trial, state), env=node.env, threads=plan.threads, deadline_s=trial.liveness.wall_s + 5.0,
        link=plan.link, leaves=tuple(plan.nodes[member].leaf for member in state.slots for _ in range(ranks_per_node)) if plan.link else (),
        secret_names=plan.secret_names, umask=plan.umask, begin=state.begin, work_dir=plan.work_dir,
        isolation=plan.isolation,
        is_elastic=trial.world.can_shrink or None, steps_awaited=faults.awaits_steps(trial, state) or None,
    )  # fmt: skip


def _resume(state: State) -> Resume | None:
    chosen = state.resume
    if not chosen:
        return None
    path = f"{state.plan.checkpoints}/{chosen.file or f'{chosen.name}.pt'}"
    return Resume(name=str(chosen.name), path=path, step=chosen.step or 0, sha256=str(chosen.sha256))


def _command(state: State, payload: Payload, key: str, name: str) -> Command:
    incarnation = state.nodes[name].incarnation
    return command(payload, key, node=name, incarnation=incarnation, epoch=state.epoch, deadline_s=RESPONSE_S)


def _key(state: State, what: str) -> str:
    return f"e{state.epoch}/{what}"
