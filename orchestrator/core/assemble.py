"""Inventory -> BedSpec: which nodes shall exist, where, and the hash that says when one must be replaced."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Literal

from ..model import codec
from ..model.bed import BedSpec, Host, Inventory, NodeSpec
from ..model.errors import UsageError
from . import values, variables


def assemble(inventory: Inventory, *, agent: str, state: str, home: str) -> BedSpec:
    """``agent``: hash of the agent archive; ``state``: the state directory; ``home`` stands for ``~``.

    Raises UsageError with every problem of hosts that do not fit together.
    """
    problems = [*_disagreements(inventory), *_misfits(inventory)]
    shared = _bed_wide(inventory)
    name, named = _name(inventory, shared)
    problems += named
    nodes = _nodes(inventory, agent)
    if not any(node.role == "node" for node in nodes):
        place = next((one for host in inventory.hosts if (one := host.places.get("ccbed_nodes"))), inventory.path)
        problems.append(f"{place}: no node; set ccbed_nodes to 1 or more (got {_counts(inventory)})")
    if problems:
        raise UsageError(*problems)
    workdir = _absolute(shared.get("workdir"), home) or f"{state}/beds/{name}"
    return _hashed(
        BedSpec(
            name=name,
            provider=shared.get("provider", "process"),
            nodes=nodes,
            inventory=inventory.path,
            workdir=workdir,
            shared_dir=_absolute(shared.get("shared_dir"), home) or f"{workdir}/shared",
            agent=agent,
            data_dir=_absolute(shared.get("data_dir"), home),
            allow_faults=shared.get("allow_faults", "container"),
        )
    )


def placed(spec: BedSpec, inventory: str) -> BedSpec:
    """The same bed with another path of its inventory: errors show it as it was given, the bed file has it absolute."""
    return replace(spec, inventory=inventory)


def _hashed(spec: BedSpec) -> BedSpec:
    content = {key: value for key, value in codec.plain(spec).items() if key != "inventory"}
    return replace(spec, hash=_digest(content))


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _name(inventory: Inventory, shared: Mapping[str, Any]) -> tuple[str, list[str]]:
    if "bed" in shared:
        return str(shared["bed"]), []
    stem = PurePath(inventory.path).name.partition(".")[0]
    try:
        return variables.bed_name(stem), []
    except ValueError as error:
        return stem, [f"{inventory.path}: the bed's name is the file's, which {error}; or set ccbed_bed"]


def _value(host: Host, name: str, default: Any = None) -> Any:
    return host.variables.get(variables.PREFIX + name, default)


def _bed_wide(inventory: Inventory) -> dict[str, Any]:
    names = [name for name, variable in variables.KNOWN.items() if variable.bed_wide]
    found = {}
    for name in names:
        given = [_value(host, name) for host in inventory.hosts if _value(host, name) is not None]
        if given:
            found[name] = given[0]
    return found


def _disagreements(inventory: Inventory) -> Iterable[str]:
    for name, variable in variables.KNOWN.items():
        key = variables.PREFIX + name
        given = {host.name: host.variables.get(key) for host in inventory.hosts}
        if variable.bed_wide and len({json.dumps(value) for value in given.values()}) > 1:
            place = next(host.places[key] for host in inventory.hosts if key in host.places)
            listed = ", ".join(f"{host}: {values.show(value)}" for host, value in given.items())
            yield f"{place}: must be the same for all hosts (got {listed}); set it under all.vars"


def _misfits(inventory: Inventory) -> Iterable[str]:
    seen: set[str] = set()
    for host in inventory.hosts:
        provider = _value(host, "provider", "process")
        if host.variables.get("ansible_connection") != "local" and provider == "process":
            got = host.variables.get("ansible_connection", "ssh, ansible's default")
            place = host.places.get("ansible_connection", f"{host.place or inventory.path}.ansible_connection")
            yield f"{place}: provider process runs on this machine only: must be local (got {got})"
        for key, place in host.places.items():
            variable = (
                variables.KNOWN.get(key.removeprefix(variables.PREFIX)) if key.startswith(variables.PREFIX) else None
            )
            if variable and provider not in variable.honoured_by and place not in seen:
                seen.add(place)
                yield f"{place}: provider {provider} does not honour it in this version; remove it"


def _nodes(inventory: Inventory, agent: str) -> tuple[NodeSpec, ...]:
    wanted = [(host, "node") for host in inventory.hosts for _ in range(_value(host, "nodes", 1))]
    wanted += [(host, "spare") for host in inventory.hosts for _ in range(_value(host, "spares", 0))]
    used: dict[str, int] = {}
    nodes = []
    for number, (host, role) in enumerate(wanted):
        first = used.get(host.name, 0)
        used[host.name] = first + _value(host, "gpus", 0)
        nodes.append(_node(f"n{number}", host, "spare" if role == "spare" else "node", first, agent))
    return tuple(nodes)


def _node(name: str, host: Host, role: Literal["node", "spare"], first_gpu: int, agent: str) -> NodeSpec:
    gpus = _value(host, "gpus", 0)
    env = dict(_value(host, "env", {}))
    if gpus:
        env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(str(first_gpu + index) for index in range(gpus)))
    spec = NodeSpec(
        name=name,
        host=host.name,
        role=role,
        address=_value(host, "address", "127.0.0.1"),
        hash="",
        interface=_value(host, "interface", "lo"),
        gpus=gpus,
        env=env,
    )
    return replace(spec, hash=_digest([codec.plain(spec), agent]))


def _counts(inventory: Inventory) -> str:
    return ", ".join(f"{host.name}: {_value(host, 'nodes', 1)}" for host in inventory.hosts)


def _absolute(path: Any, home: str) -> str | None:
    if path is None:
        return None
    text = str(path)
    return home + text[1:] if text.startswith("~/") else text
