"""The commands around one gang: prepare its epoch, start it on every node, stop it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...model import codec
from ...model.event import Command, Event
from ...model.gang import GangSpec, Resume
from ...model.trial import Trial
from . import planned_faults
from .state import Commands, Node, Result, State, note, timer

#: A silent node that was replaced is ended before the next epoch acts, if its keeper answers within this time.
DRAIN_S = 0.5


def prepare(trial: Trial, state: State) -> Result:
    """Fence and store of the epoch, a checkpoint to resume from (after the fence), and the nodes that must be started.

    Nodes that fell silent and were replaced are ended as well; a host that is gone is not waited for.
    """
    state, ends, awaited_ends = _condemn(state)
    fixer = next((name for name in state.slots if state.usable(name)), None)
    missing = tuple(dict.fromkeys(name for name in state.slots if not state.usable(name)))
    starts = tuple(_start_node(state, name) for name in missing)
    awaited = {command.key for command in starts} | awaited_ends | {_key(state, "store")}
    commands: Commands = (*ends, *starts)
    if fixer:
        state = replace(state, fence_ordered=state.epoch)
        commands += (_fence(state, fixer),)
        awaited |= {_key(state, "fence")}
    if state.usable(state.slots[0]):
        commands += (_store(trial, state),)
    return replace(state, stage="prepare", awaited=frozenset(awaited)), commands


def prepared(trial: Trial, state: State, event: Event) -> Result:
    """One answer of the preparation; the last one starts the gang."""
    follow: Commands = ()
    name = str(event.node)
    if event.f == "node.kill" and event.type == "ok":
        state = replace(state, nodes={**state.nodes, name: replace(state.nodes[name], alive=False, reachable=False)})
        follow = (_apply(state, name),) if name in state.slots else ()
    elif event.f == "node.apply":
        state = applied(state, event)
        state, follow = _after_apply(trial, state, name)
    elif event.f == "fence.write" and _may_resume(state):
        follow = (_scan(state, name),)
    elif event.f == "checkpoint.scan":
        state, follow = _scanned(state, event)
    elif event.f == "store.open":
        state = replace(state, store=(str(event.value["address"]), int(event.value["port"])))
        follow = _retried(state, event)
    pending = {command.key for command in follow if command.f != "note"}
    state = replace(state, awaited=(state.awaited - {str(event.key)}) | pending)
    if state.awaited:
        return state, follow
    state, commands = start(trial, state)
    return state, follow + commands


def _retried(state: State, event: Event) -> Commands:
    taken = event.value.get("retries")
    value = {"taken": taken, "port": event.value["port"]}
    return (note("store.retried", _key(state, "retried"), value, of=event.node, epoch=state.epoch),) if taken else ()


def applied(state: State, event: Event) -> State:
    """A node was started: its new incarnation is the one that counts."""
    node = Node(incarnation=str(event.value["incarnation"]), ordinal=int(event.value["ordinal"]))
    return replace(state, nodes={**state.nodes, str(event.node): node})


def start(trial: Trial, state: State) -> Result:
    """Everything is ready: one gang.start per node."""
    step = int(state.resume["step"]) if state.resume else 0
    state = replace(state, stage="start", lineage=(*state.lineage, (state.epoch, step)))
    chosen = note("resume.chosen", _key(state, "resume"), state.resume or {"step": 0}, epoch=state.epoch)
    slots = tuple(dict.fromkeys(state.slots))
    return state, (chosen, *(_gang(trial, state, name) for name in slots))


def stop(trial: Trial, state: State, *, dump: bool = False) -> Result:
    """Kill the ranks of the epoch on every node that can hear it."""
    commands = tuple(
        stop_command(state, name, stop_key(state, name), dump=dump) for name in state.slots if state.usable(name)
    )
    state = replace(state, awaited=frozenset(command.key for command in commands))
    return state, (*commands, timer(settle_key(state), trial.liveness.settle_s)) if commands else ()


def stop_command(state: State, name: str, key: str, *, dump: bool = False) -> Command:
    return Command(
        f="gang.stop", key=key, node=name, incarnation=state.nodes[name].incarnation, epoch=state.epoch, deadline_s=5.0,
        value={"epoch": state.epoch, "dump": dump},
    )  # fmt: skip


def next_epoch(state: State) -> State:
    """The state of the next epoch, with nothing left of the gang before."""
    return replace(
        state, epoch=state.epoch + 1, store=None, resume=None, awaited=frozenset(), detector="",
        started=frozenset(), joined=frozenset(), finished=frozenset(), exited=frozenset(), failed=frozenset(),
    )  # fmt: skip


def stop_key(state: State, name: str) -> str:
    return _key(state, f"stop/{name}")


def kill_key(state: State, name: str) -> str:
    return _key(state, f"kill/{name}")


def settle_key(state: State) -> str:
    return _key(state, "settle")


def _start_node(state: State, name: str) -> Command:
    """A lost node is started again; one that is only silent is killed first."""
    return _kill(state, name) if state.nodes[name].alive else _apply(state, name)


def _condemn(state: State) -> tuple[State, Commands, set[str]]:
    """Order the end of the silent nodes that hold no slot any more, once each; the keys that are worth waiting for."""
    names = [
        name for name, node in state.nodes.items() if node.silent and not node.condemned and name not in state.slots
    ]
    ends = tuple(replace(_kill(state, name), deadline_s=DRAIN_S) for name in names)
    awaited = {end.key for end in ends if not state.silent_host(state.host(str(end.node)))}
    marked = {name: replace(state.nodes[name], condemned=True) for name in names}
    return replace(state, nodes={**state.nodes, **marked}), ends, awaited


def _after_apply(trial: Trial, state: State, name: str) -> Result:
    """The leader's store waits for the leader; the fence waits for any node when none was left."""
    follow: Commands = ()
    if name == state.slots[0]:
        follow += (_store(trial, state),)
    if state.fence_ordered < state.epoch:
        state = replace(state, fence_ordered=state.epoch)
        follow += (_fence(state, name),)
    return state, follow


def _may_resume(state: State) -> bool:
    return state.epoch > 0


def _scanned(state: State, event: Event) -> tuple[State, Commands]:
    skipped: list[dict[str, Any]] = list(event.value.get("skipped", []))
    notes = tuple(
        note("checkpoint.skipped", _key(state, f"skipped/{one['name']}"), one, epoch=state.epoch) for one in skipped
    )
    return replace(state, resume=event.value.get("newest")), notes


def _fence(state: State, name: str) -> Command:
    value = {
        "epoch": state.epoch, "dir": state.plan.checkpoints, "keep": state.plan.keep, "fresh": not state.lineage,
    }  # fmt: skip
    return _command(state, "fence.write", _key(state, "fence"), name, value)


def _scan(state: State, name: str) -> Command:
    value = {"dir": state.plan.checkpoints, "lineage": [list(pair) for pair in state.lineage]}
    return _command(state, "checkpoint.scan", _key(state, "scan"), name, value)


def _store(trial: Trial, state: State) -> Command:
    leader = state.slots[0]
    value = {"epoch": state.epoch, "address": state.plan.nodes[leader].address, "port": trial.world.master_port}
    return _command(state, "store.open", _key(state, "store"), leader, value)


def _apply(state: State, name: str) -> Command:
    return Command(f="node.apply", key=_key(state, f"apply/{name}"), node=name, deadline_s=20.0, value={"node": name})


def _kill(state: State, name: str) -> Command:
    incarnation = state.nodes[name].incarnation
    return Command(f="node.kill", key=kill_key(state, name), node=name, incarnation=incarnation, deadline_s=10.0)


def _gang(trial: Trial, state: State, name: str) -> Command:
    return _command(
        state, "gang.start", _key(state, f"start/{name}"), name, codec.plain(_gang_spec(trial, state, name))
    )


def _gang_spec(trial: Trial, state: State, name: str) -> GangSpec:
    plan, here, slot = state.plan, state.plan.nodes[name], state.slots.index(name)
    each = trial.world.ranks_per_node
    address, port = state.store or ("", 0)
    return GangSpec(
        run=plan.run, epoch=state.epoch, world_size=trial.world.size, nodes=trial.world.nodes, group_rank=slot,
        ranks=tuple(range(slot * each, (slot + 1) * each)), master_addr=address, master_port=port,
        backend=plan.backend, timeout_s=trial.world.timeout_s, max_restarts=trial.recovery.max_restarts,
        workload=trial.workload, params=trial.params, seed=trial.seed, payload=plan.payload,
        out=f"{here.directory}/runs/{plan.run}/i{state.nodes[name].ordinal}-e{state.epoch}",
        checkpoints=plan.checkpoints, interface=here.interface, data=plan.data, resume=_resume(state),
        holds=planned_faults.holds(trial, state), env=here.env, threads=plan.threads, deadline_s=trial.liveness.wall_s + 5.0,
        link=plan.link, leaves=tuple(plan.nodes[one].leaf for one in state.slots for _ in range(each)) if plan.link else (),
        secret_names=plan.secret_names, umask=plan.umask, begin=state.begin,
    )  # fmt: skip


def _resume(state: State) -> Resume | None:
    if not state.resume:
        return None
    name = str(state.resume["name"])
    path = f"{state.plan.checkpoints}/{state.resume.get('file', f'{name}.pt')}"
    return Resume(name=name, path=path, step=int(state.resume["step"]), sha256=str(state.resume["sha256"]))


def _command(state: State, f: str, key: str, name: str, value: Any) -> Command:
    return Command(f=f, key=key, node=name, incarnation=state.nodes[name].incarnation, epoch=state.epoch, value=value)


def _key(state: State, what: str) -> str:
    return f"e{state.epoch}/{what}"
