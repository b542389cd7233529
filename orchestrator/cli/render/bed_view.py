"""Beds on the terminal: plan, nodes, the progress of `up`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from ...app.places import short_list
from ...core.bed import links
from ...core.bed.diff import AS_WANTED
from ...core.spec import written_values
from ...model.bed import BedSpec, BedStatus, Change, Diff, HostStatus
from ...model.frozen import dataclass
from .terminal import Terminal

_CONTAINERS, _SLURM = "docker", "slurm"
#: State of a node -> its word for people.
STATES = {"warm": "ready"}
_SIGNS = {"create": "+", "replace": "~", "remove": "-", "keep": "="}


@dataclass(frozen=True, kw_only=True)
class BedProgress:
    """Prints how `up` changes a bed."""

    terminal: Terminal

    def away(self, bed: BedSpec, diff: Diff) -> None:
        away(self.terminal, bed, diff)

    def hosts(self, batch: tuple[str, ...], done: int, count: int) -> None:
        self.terminal.line(f"hosts {short_list(batch)} ({done} of {count})")

    def planned(self, bed: BedSpec, status: BedStatus, diff: Diff, versions: tuple[str, str]) -> None:
        self._narrator.line(headline(bed, status, versions))
        plan(self._narrator, bed, diff)

    def keepers_start(self, bed: BedSpec) -> None:
        self._narrator.status(starting_keeper(bed))

    def keepers_started(self, bed: BedSpec, status: BedStatus | None, seconds: float) -> None:
        if status is None:
            count = len(bed.hosts)
            self._narrator.line(f"  host agents {count} of {count} hosts{'':<20} {seconds:.2f} s")
        else:
            self._narrator.lines(started_keepers(bed, status, seconds))

    def node_ready(self, ready: int, count: int) -> None:
        self._narrator.status(f"  nodes       {ready}/{count} ready")

    def nodes_ready(self, bed: BedSpec, status: BedStatus, diff: Diff, seconds: float) -> None:
        self._narrator.line(f"  nodes       {count(bed, status)}{'':<21} {seconds:.2f} s")
        if diff.keeper:
            self._narrator.lines(f"  reboot      {text}" for text in after_reboot(status))

    def changed(self, bed: BedSpec, status: BedStatus, took: str) -> None:
        self._narrator.line()
        table(self._narrator, bed, status)
        undo = f"undo: ccbed down {bed.name}"
        self.terminal.line(f"up in {took}     try: ccbed run dp-ring --fail-node 2     {undo}")

    def unchanged(self, bed: BedSpec, status: BedStatus, settings: str, run: str, took: str) -> None:
        busy = f", run {run} is open" if run else ""
        self.terminal.line(f"bed {bed.name}: {settings or 'nothing to change'}, {count(bed, status)}{busy} ({took})")

    @property
    def _narrator(self) -> Terminal:
        return self.terminal.narrator


def plan(terminal: Terminal, bed: BedSpec, diff: Diff) -> None:
    """Print the changes with their reasons; nodes with the same reason share a line."""
    departed = [change for change in diff.departed if change.action == "remove"]
    create, change, remove = (len(diff.of(action)) for action in ("create", "replace", "remove"))
    remove += len(departed)
    terminal.line(f"plan: {create} to create, {change} to change, {remove} to remove")
    for python, nodes in _grouped_names((node.python, node.name) for node in bed.nodes if node.python).items():
        terminal.line(f"  python {python} on {short_list(nodes)}")
    changes = [change for change in diff.changes if change.action != "keep" or change.reason != AS_WANTED] + departed
    width = max([len(names) for names, *_ in _groups(bed, changes)] + [len("host agent") if diff.keeper else 0])
    if diff.keeper:
        terminal.line(f"  {_SIGNS[diff.keeper.action]} {'host agent':<{width}}          {diff.keeper.reason}")
    for names, action, role, reason in _groups(bed, changes):
        first, *others = reason.split("\n")
        terminal.line(f"  {_SIGNS[action]} {names:<{width}}   {role:<5}  {first}")
        terminal.lines(f"{'':<{width + 14}}{text}" for text in others)


def away(terminal: Terminal, bed: BedSpec, diff: Diff) -> None:
    """Warn of nodes on hosts that left the inventory and cannot be reached; they stay on record."""
    reasons = {change.reason: change for change in diff.departed if change.action == "keep"}
    for reason in reasons:
        names = " ".join(change.node for change in diff.departed if change.reason == reason)
        terminal.warn(
            f"{names}: {reason}; once the host is back: ccbed up; to abandon it: ccbed down {bed.name} --abandon"
        )


def count(bed: BedSpec, status: BedStatus) -> str:
    """Return ``5 of 5 ready``, or how many nodes are in each state: ``4 busy, 1 ready``."""
    states = Counter(status.node(node.name).state for node in bed.nodes)
    if set(states) <= {"warm"}:
        return f"{len(bed.nodes)} of {len(bed.nodes)} ready"
    return ", ".join(f"{number} {STATES.get(state, state)}" for state, number in states.most_common())


def keeper(bed: BedSpec, status: BedStatus) -> str:
    """Describe the keeper: its pid on one host; on several hosts, whether every host has one."""
    loss = f" ({status.keeper_loss})" if status.keeper_loss else ""
    if len(bed.hosts) < 2:
        return f"host agent pid {status.keeper_pid}" if status.keeper_pid else f"no host agent{loss}"
    return f"host agents on {len(bed.hosts)} hosts" if status.keeper_pid else f"some hosts have no host agent{loss}"


def after_reboot(status: BedStatus) -> Iterator[str]:
    """Yield how the keepers of hosts behind SSH start again after a reboot, with their hosts."""
    texts = ((_after_reboot(host), host.name) for host in status.hosts if host.unit or host.unit_problem)
    for text, names in _grouped_names(texts).items():
        yield f"{short_list(names)}: {text}"


def _after_reboot(host: HostStatus) -> str:
    if host.unit:
        return f"systemd starts the host agent again ({host.unit} unit)"
    then = ", then ccbed down and ccbed up" if "; fix: " in host.unit_problem else ""
    return f"`ccbed up` starts the host agent again: {host.unit_problem}{then}"


def table(terminal: Terminal, bed: BedSpec, status: BedStatus, drained: Collection[str] = ()) -> None:
    """Print one line per node. ``drained``: hosts on which no node is placed."""
    known = {node.name for node in bed.nodes}
    replacements = {node.name for node in bed.replacements}
    names = [node.name for node in bed.nodes] + [node.name for node in status.nodes if node.name not in known]
    terminal.table(
        ("NODE", "ROLE", "STATE", "SETTINGS", "PID", "MEMORY"),
        [_row(name, bed, status, drained, wanted=name in known | replacements) for name in names],
    )
    for text in (*versions(status), *room(bed, drained)):
        terminal.line(f"  {text}")


def room(bed: BedSpec, drained: Collection[str]) -> Iterator[str]:
    """Yield how many more nodes the hosts may hold that are not ``drained``; nothing if none."""
    counts = Counter(node.host for node in bed.replacements if node.host not in drained)
    if counts:
        listed = short_list([f"{host} ({count})" for host, count in counts.items()])
        yield f"room for nodes in place of lost ones (--recovery replace): {listed}"


def versions(status: BedStatus) -> Iterator[str]:
    """Yield the versions in which ranks run, with the nodes that have them; one line if all nodes are equal."""
    known = [node for node in status.nodes if node.torch]
    groups = _grouped_names((f"torch {node.torch}, Python {node.python}", node.name) for node in known)
    for text, names in groups.items():
        yield f"{text} on {short_list(names)}"


def _grouped_names(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return groups


def headline(bed: BedSpec, status: BedStatus, versions: tuple[str, str]) -> str:
    """Return one line: provider, machine or hosts, versions. ``versions``: of torch and Python, for process nodes."""
    kinds = {_CONTAINERS: lambda: _containers(bed, status), _SLURM: lambda: _job(bed)}
    parts = kinds.get(bed.provider, lambda: _processes(bed, versions))()
    return " · ".join((f"bed {bed.name}", f"{bed.provider} provider", *parts))


def starting_keeper(bed: BedSpec) -> str:
    """Return the line that is shown until the keepers are ready."""
    if bed.provider == _SLURM:
        return "  host agents a job, its steps, and torch …"
    return "  host agent  " + ("starts …" if bed.provider == _CONTAINERS else "imports torch …")


def started_keepers(bed: BedSpec, status: BedStatus, seconds: float) -> Iterator[str]:
    """Yield a line for each keeper. Only the keeper of processes imports torch."""
    if bed.provider != _CONTAINERS:
        yield f"  host agent  torch imported once              {seconds:.2f} s   pid {status.keeper_pid}"
        return
    for index, host in enumerate(status.hosts):
        took = f"{seconds:.2f} s" if index == 0 else ""
        yield f"  host agent  {host.name:<28} {took:>9}   pid {host.keeper_pid}"


def _containers(bed: BedSpec, status: BedStatus) -> Iterator[str]:
    images = dict.fromkeys(node.container.image for node in bed.nodes if node.container)
    engines = dict.fromkeys(host.engine for host in status.hosts if host.engine)
    yield _hosts([host.name for host in bed.hosts]) + (f" (engine {', '.join(engines)})" if engines else "")
    yield f"image {', '.join(images)}"
    yield "a private network" if bed.network == "private" else "the network of the hosts"
    if gpus := sum(node.gpus for node in bed.nodes if node.gpus > 0):
        yield f"{gpus} GPUs"


def _job(bed: BedSpec) -> Iterator[str]:
    yield f"{written_values.count(len(bed.hosts), 'node')} of one Slurm job"
    options = bed.slurm.options if bed.slurm else {}
    if partition := options.get("partition"):
        yield f"partition {partition}"


def _processes(bed: BedSpec, versions: tuple[str, str]) -> Iterator[str]:
    gpus = sum(node.gpus for node in bed.nodes)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    cores = len(os.sched_getaffinity(0))
    yield f"this machine: {cores} cores, {memory:.0f} GiB, {f'{gpus} GPUs' if gpus else 'no GPU'}"
    torch, python = versions
    if torch:
        yield f"torch {torch.partition('+')[0]}, Python {python}"
    if bed.fabric:
        yield f"a fabric of namespaces, {links.bed_text(bed)}"


def _row(name: str, bed: BedSpec, status: BedStatus, drained: Collection[str], *, wanted: bool) -> tuple[str, ...]:
    node = status.node(name)
    role = bed.node(name).role if wanted else "-"
    has_reason = node.reason and node.state != "unreachable"  # the reason of an unreachable host is printed once
    state = STATES.get(node.state, node.state) + (f" ({node.reason})" if has_reason else "")
    state += ", drained" if wanted and bed.node(name).host in drained else ""
    memory = f"{node.own_mib:.0f} MiB + {node.shared_mib:.0f} shared" if node.pid else "-"
    return (name, role, state, node.spec_hash[:6] or "-", str(node.pid or "-"), memory)


def _groups(bed: BedSpec, changes: list[Change]) -> Iterator[tuple[str, str, str, str]]:
    roles = {node.name: node.role for node in bed.nodes}
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for change in changes:
        key = (change.action, roles.get(change.node, "node"), change.reason)
        grouped.setdefault(key, []).append(change.node)
    for (action, role, reason), names in grouped.items():
        yield short_list(names), action, role, reason


def _hosts(names: list[str]) -> str:
    return " ".join(names) if len(names) <= 4 else f"{names[0]} … {names[-1]} ({len(names)} hosts)"
