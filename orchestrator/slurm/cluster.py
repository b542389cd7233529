"""The Slurm job of a bed: from the one entry of its inventory to the job's options, its hosts, and its command lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..core.inventory import variables
from ..model.bed import NODE_FIELD, Host, Inventory, SlurmSpec
from . import inventory_variables as options


def problems(inventory: Inventory) -> Iterable[str]:
    """Return what the inventory of a cluster must not have."""
    yield from host_problems(inventory)
    yield from container_problems(inventory)
    yield from power_problems(inventory)


def host_problems(inventory: Inventory) -> Iterable[str]:
    """A bed of provider slurm has one entry, the cluster: Slurm chooses the hosts."""
    if len(inventory.hosts) > 1 and _value(inventory.hosts[0], "provider") == "slurm":
        second = inventory.hosts[1]
        yield (
            f"{second.position}: a bed of provider slurm has one entry under hosts, the cluster; Slurm chooses the nodes: "
            "set ccbed_nodes and ccbed_spares, and ccbed_nodelist for certain ones"
        )


def container_problems(inventory: Inventory) -> Iterable[str]:
    """Settings of a container without the other ones, and an image that is a name instead of a file."""
    for host in inventory.hosts[:1] if _value(inventory.hosts[0], "provider") == "slurm" else ():
        image = _value(host, "image")
        if _value(host, "container") in (None, "none"):
            for name in ("image", "mounts"):
                if _value(host, name) is not None:
                    yield f"{_position(host, name)}: set ccbed_container too: pyxis or apptainer"
            continue
        if image is None:
            yield f"{_position(host, 'container')}: set ccbed_image too: the file of the image"
        elif not image.startswith(("/", "~/")):
            yield f"{_position(host, 'image')}: must be the path of a file that all nodes share (got {image})"
        if str(_value(host, "python")).startswith("~/"):
            yield f"{_position(host, 'python')}: must be an absolute path in the image (got {_value(host, 'python')})"


def power_problems(inventory: Inventory) -> Iterable[str]:
    """Programs that would do the same for every node: Slurm chooses the nodes, so that a program must be told which."""
    for host in inventory.hosts[:1] if _value(inventory.hosts[0], "provider") == "slurm" else ():
        for state, argv in (_value(host, "power") or {}).items():
            if not any(NODE_FIELD in part for part in argv):
                yield (
                    f"{_position(host, 'power')}: {state}: an argument must contain {NODE_FIELD}, which is replaced by "
                    f"the node's name in Slurm (got {' '.join(argv)})"
                )


def read(host: Host, home: str) -> SlurmSpec:
    """``host``: the cluster; ``home`` replaces ``~``."""
    image = _value(host, "image") or ""
    named = {name: _value(host, name) for name in options.NAMED}
    return SlurmSpec(
        nodes=_count(host, "nodes", 1) + _count(host, "spares", 0),
        options={name: value for name, value in named.items() if value} | dict(_value(host, "sbatch") or {}),
        time_s=_value(host, "time") or 0,
        container=_value(host, "container") or "none",
        image=home + image[1:] if image.startswith("~/") else image,
        mounts=tuple(_value(host, "mounts") or ()),
        ports=tuple(_value(host, "ports") or ()),
    )


def expand(cluster: Host) -> tuple[Host, ...]:
    """The hosts h0, h1, … of the bed: one for each node, then one for each spare."""
    nodes, spares = _count(cluster, "nodes", 1), _count(cluster, "spares", 0)
    return tuple(
        replace(
            cluster,
            name=f"h{number}",
            variables={**cluster.variables, "ccbed_nodes": int(number < nodes), "ccbed_spares": int(number >= nodes)},
        )
        for number in range(nodes + spares)
    )


def job_options(spec: SlurmSpec, bed: str, comment: str) -> list[str]:
    """The arguments of salloc for the job of a bed. The comment identifies the bed and its owner."""
    return [f"--job-name=ccbed-{bed}", f"--comment={comment}", *limits(spec)]


def limits(spec: SlurmSpec) -> list[str]:
    """The options that the inventory determines."""
    time_limit = [f"--time={options.format_time(spec.time_s)}"] if spec.time_s else []
    rest = (f"--{name}={value}" if value else f"--{name}" for name, value in spec.options.items())
    return [f"--nodes={spec.nodes}", *time_limit, *rest]


def _count(host: Host, name: str, default: int) -> int:
    return int(_value(host, name) if _value(host, name) is not None else default)


def _value(host: Host, name: str) -> Any:
    return host.variables.get(variables.PREFIX + name)


def _position(host: Host, name: str) -> str:
    return host.positions.get(variables.PREFIX + name, host.position)
