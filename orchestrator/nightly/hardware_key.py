"""The comparability key of a bundle's figures, and the versions that are suspects when a figure changes.

Only figures with equal keys are compared. The key holds the hardware, the workload, its parameters and the world. Versions
of software and firmware are no part of it: nights exist to find the changes that come with them.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .. import plugins
from ..model import codec
from ..model.errors import UsageError
from ..model.trial import Trial
from .records import HOST, Key

#: Facts of a node's system.json that are compared across, and named when a figure changes with them.
SUSPECTS = ("driver", "vbios", "bios", "microcode", "kernel", "cuda", "nccl", "torch", "python", "image", "agent")
#: The workload whose figures belong to one node: they do not depend on how many other nodes take part.
NODE_PROBE = "node-probe"
#: Parameters that say how often a figure is taken, or what its name says: no part of a key.
SAMPLING = {NODE_PROBE: ("repeats",), "collective": ("iterations", "sizes")}
_EMPTY: tuple[Any, ...] = (None, "", 0, False, [], {})
#: Text that needs no quotes in a list of ``name=value``.
_WORD = re.compile(r"[^\s=\"]+")


def describe_node(facts: Mapping[str, Any], nodes_on_host: int = 1) -> str:
    """The hardware of a node, such as ``8x NVIDIA H100 80GB HBM3, 64x AMD EPYC 9554, 512 GiB``; empty if it is not known.

    ``facts``: its system.json. Nodes on one host share it, so that their number is part of the hardware.
    """
    if not facts.get("cpu"):
        return ""
    counts = Counter(str(model) for model in facts.get("gpus") or ())
    parts = [f"{count}x {model}" for model, count in sorted(counts.items())]
    parts.append(f"{_cores(facts):g}x {facts['cpu']}")
    if memory := memory_class(facts):
        parts.append(f"{memory:g} GiB")
    if nodes_on_host > 1:
        parts.append(f"{nodes_on_host} nodes on a host")
    return ", ".join(parts)


def describe_gang(nodes: Iterable[str], link: Mapping[str, Any] | None = None) -> str:
    """The hardware of a gang: its nodes by their descriptions, and the shaped link of an emulated fabric. Empty if not known."""
    counts = Counter(nodes)
    if not counts or "" in counts:
        return ""
    parts = [f"{count} nodes of {hardware}" for hardware, count in sorted(counts.items())]
    return "; ".join((*parts, *([f"link {_words(link)}"] if link else [])))


def node_key(hardware: str, trial: Trial, backend: str, threads: int) -> Key:
    """The key of a node's own figure. Of a node probe it is the same however many nodes take part."""
    return Key(
        hardware=hardware, workload=trial.workload,
        parameters=_parameters(trial, backend, threads, has_nodes=trial.workload != NODE_PROBE),
    )  # fmt: skip


def gang_key(hardware: str, trial: Trial, backend: str, threads: int) -> Key:
    return Key(hardware=hardware, workload=trial.workload, parameters=_parameters(trial, backend, threads))


def suspects(facts: Mapping[str, Any], code: str = "", host: str = "") -> dict[str, str]:
    """The versions that a node ran with, and its host. ``code``: the hash of what its ranks executed."""
    versions = {name: _version(facts[name]) for name in SUSPECTS if facts.get(name)}
    return {**versions, **({"code": code[:12]} if code else {}), **({HOST: host} if host else {})}


def memory_class(facts: Mapping[str, Any]) -> float:
    """The memory in GiB, rounded up to five, six, seven or eight eighths of a power of two; 0 if it is not known.

    A kernel keeps a few percent for itself, another share with each version: the exact size would end the history.
    """
    known = [_number(facts.get("memory_mib")) / 1024, _number(facts.get("memory_limit")) / 1024**3]
    sizes = [size for size in known if size > 0]
    if not sizes:
        return 0.0
    power: float = 2.0 ** math.ceil(math.log2(min(sizes)))
    return next(power * eighths / 8 for eighths in (5, 6, 7, 8) if power * eighths / 8 >= min(sizes))


def _cores(facts: Mapping[str, Any]) -> float:
    """The CPUs that a node may use; a container's limit is ``quota period`` in microseconds."""
    cores = _number(facts.get("cores"))
    quota, _, period = str(facts.get("cpu_limit", "")).partition(" ")
    limit = _number(quota) / (_number(period) or 100_000)
    return min(cores, limit) if cores and limit else cores or limit


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _parameters(trial: Trial, backend: str, threads: int, *, has_nodes: bool = True) -> str:
    """All that a figure depends on beside the hardware, in one line.

    A parameter with the default of its workload is left out: one that a later version adds does not end the history. A version
    that changes a default needs another version of the index (``database.VERSION``), which reads the runs again.
    """
    values: dict[str, Any] = {"ranks_per_node": trial.world.ranks_per_node, "backend": backend, "threads": threads}
    if has_nodes:
        values["nodes"] = trial.world.nodes
    if trial.faults:
        values |= {"faults": trial.faults, "recovery": trial.recovery, "liveness": trial.liveness}
    return _words(values, chosen=_chosen(trial))


def _chosen(trial: Trial) -> dict[str, Any]:
    """The parameters that differ from the defaults; of a workload that is not built in those that are not empty."""
    defaults, left_out = _defaults(trial.workload), SAMPLING.get(trial.workload, ())
    plain = {name: value for name, value in codec.plain(dict(trial.params)).items() if name not in left_out}
    known = {name: value for name, value in plain.items() if name in defaults and value != defaults[name]}
    return {**known, **_without_empty({name: value for name, value in plain.items() if name not in defaults})}


@functools.cache
def _defaults(workload: str) -> Mapping[str, Any]:
    """The parameters of a built-in workload, empty for another one."""
    workloads = plugins.discover().workloads
    try:
        defaults: dict[str, Any] = codec.plain(workloads[workload].module.Params()) if workload in workloads else {}
    except (TypeError, UsageError):  # a parameter without a default, or a plugin that cannot be loaded
        return {}
    return defaults


def _words(values: Mapping[str, Any], chosen: Mapping[str, Any] | None = None) -> str:
    words = {**_without_empty(codec.plain(dict(values))), **(chosen or {})}
    return " ".join(f"{name}={_text(value)}" for name, value in sorted(words.items()))


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        items = {name: _without_empty(item) for name, item in sorted(value.items())}
        return {name: item for name, item in items.items() if item not in _EMPTY}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    is_word = isinstance(value, str) and _WORD.fullmatch(value)
    return str(value) if is_word else msgspec.json.encode(value, order="sorted").decode()


def _version(value: Any) -> str:
    """Equal GPUs of a node have one VBIOS; different ones are listed."""
    return ", ".join(dict.fromkeys(map(str, value))) if isinstance(value, list) else str(value)
