"""The step owner: the parameters of all optimizers, with the names of the modules that hold them.

Parameters that are shards know their place in the full tensor, so that their digests add up over the ranks of a shard group.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from . import digest, record, sharding, small_tensors, tensor_names
from .engines import master_weights

#: Owners with more parameters record no shapes.
LISTED = 20000
#: Gradients of which the norm is recorded.
NORMS = 64
#: Parameters of which signed sums are recorded.
SUMMED = 8
#: Types of an optimizer's states that hold no tensor, or whose tensors are compared as they are saved.
PLAIN = (str, list, tuple, dict, type(None))
#: Keys of parameter groups that are recorded elsewhere, that schedulers add, or that choose an implementation.
NO_SETTINGS = frozenset(
    ("params", "param_names", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")
)


class Owner:
    """The live optimizers, largest first, their parameters and what is saved beside them."""

    def __init__(self, stepping: Any) -> None:
        """``stepping``: an optimizer whose step begins. Raises what reading foreign objects may raise."""
        self.rank = _rank()
        live = _scan()
        tops = tensor_names.roots(live["Module"])
        engines = master_weights.known()
        own = [
            item
            for item in live["Optimizer"]
            if all(item is not engine.inner for engine in engines)
            and not tensor_names.is_left(item, stepping, live["Module"])
        ]
        self.optimizers = _sorted([stepping, *engines, *own])
        self._counts = {id(optimizer): _count(optimizer) for optimizer in self.optimizers}
        self.schedulers, self.scalers = live["LRScheduler"], live["GradScaler"]
        self.naming = "module"
        self._parameters: list[tuple[Any, list[sharding.Part]]] = []
        #: Those that own parameters: a wrapper such as Accelerate's shares all of its optimizer's.
        self.owning: list[Any] = []
        by_id = sharding.by_parameter(tops)
        for engine in engines:
            engine.add_parts(by_id)
        self._collect(by_id)
        self._parts_by_id = {id(parameter): parts for parameter, parts in self._parameters}
        updated = {*self._parts_by_id, *(id(item) for engine in engines for item in engine.parameters())}
        self.modules = [top for top in tops if any(id(p) in updated for p in top.parameters())]
        held = {name for _, parts in self._parameters for name in (part.name for part in parts)}
        #: Other models with parameters of the same names: averages, target networks, earlier versions.
        self.copies = [top for top in tops if top not in self.modules and _parameter_names(top) & held == held]
        trained = tensor_names.below_common(held)
        if any("." in name for name in trained):  # else any layer with a weight and a bias
            self.copies += (inner for top in self.modules for inner in _inner_copies(top, trained, updated))
        self.parts = {part.name: part for _, parts in self._parameters for part in parts}
        #: Ranks whose shards together are the full tensors; empty if this rank holds all of them.
        self.shards = sharding.group_of(self.parts.values())
        self.devices = {parameter.device for parameter, _ in self._parameters}
        self.numel = sum(part.numel for part in self.parts.values())
        self._large, self._small = self._split()
        #: Some of the matrices, else of all: a bias may have no gradient but noise, which Adam makes as large as any other.
        matrices = [p for p, _ in self._parameters if p.dim() > 1] or [p for p, _ in self._parameters]
        self._summed = matrices[:: -(-len(matrices) // SUMMED)] if matrices else []

    def is_outdated(self, optimizer: Any) -> bool:
        """Return whether the optimizer, which is about to step, is unknown or has other parameters than before."""
        count = 0
        for group in optimizer.param_groups:
            count += len(group["params"])
        return self._counts.get(id(optimizer)) != count or optimizer not in self.optimizers

    def parameters(self) -> Iterator[tuple[Any, list[sharding.Part]]]:
        """Every parameter of the optimizers with the parts of full tensors that it holds."""
        return iter(self._parameters)

    def weights(self) -> tuple[str, int]:
        """(digest, elements summed) of this rank's part of the parameters. Raises Undigestible."""
        value = count = 0
        with digest.undisturbed():
            sums = [group.digest() for group in self._small]
            is_changed = None in sums
            if not is_changed:
                value, count = sum(item or 0 for item in sums), sum(group.numel for group in self._small)
            further = []
            for parameter, parts in self._parameters if is_changed else self._large:
                if self._is_small(parameter, parts):
                    further.append((parts[0].name, parameter))
                    count += parameter.numel()
                    continue
                part_sum, part_count = sharding.digest_of(parameter, parts, self.shards, self.rank)
                value, count = value + part_sum, count + part_count
            value += sum(small_tensors.named_sums(further))
        return digest.render(value), count

    def sums(self) -> list[int]:
        """Signed sums of this rank's part of some parameters."""
        with digest.undisturbed():
            return digest.signed_sums(digest.local(parameter) for parameter in self._summed)

    def _split(self) -> tuple[list[tuple[Any, list[sharding.Part]]], list[small_tensors.SmallTensors]]:
        """The parameters but for the first small ones, and those, whose multipliers are kept and whose sum is computed at once."""
        large, small, count = [], [], 0
        for parameter, parts in self._parameters:
            if self._is_small(parameter, parts) and count + parameter.numel() <= small_tensors.TOGETHER:
                small.append((parts[0].name, parameter))
                count += parameter.numel()
            else:
                large.append((parameter, parts))
        with digest.undisturbed():
            return large, small_tensors.group(small)

    def _is_small(self, item: Any, parts: Sequence[sharding.Part]) -> bool:
        """Is this a small tensor that this rank holds as a whole?"""
        return len(parts) == 1 and sharding.is_whole(parts[0], self.shards, self.rank) and small_tensors.is_small(item)

    def optimizer_states(self) -> dict[str, str | None]:
        """State name, such as ``exp_avg`` -> digest over all parameters, or None where it has none."""
        sums: dict[str, int] = {}
        undigestible: set[str] = set()
        small: list[tuple[str, str, Any]] = []
        with digest.undisturbed():
            for parameter, states in self._states():
                parts = self._parts_by_id[id(parameter)]
                for name, item in states.items():
                    if not hasattr(item, "dtype") and not isinstance(item, (int, float)):
                        if not isinstance(item, PLAIN):
                            record.unknown(
                                "optimizer", f"its {name}: a {type(item).__name__} is not read", is_sure=False
                            )
                        continue
                    sums.setdefault(str(name), 0)
                    if self._is_small(item, parts):
                        small.append((str(name), parts[0].name, item))
                        continue
                    try:
                        sums[str(name)] += sharding.digest_of_state(parameter, item, parts, self.shards, self.rank)
                    except digest.Undigestible as error:
                        undigestible.add(str(name))
                        record.unknown("optimizer", f"its {name}: {error}", is_sure=False)
            for (name, _, _), value in zip(small, small_tensors.named_sums([item[1:] for item in small])):
                sums[name] += value
        digests: dict[str, str | None] = {name: digest.render(value) for name, value in sums.items()}
        return {**digests, **dict.fromkeys(undigestible)}

    def counter(self) -> int | None:
        """The smallest step counter in the optimizers' states; None if they have none."""
        return min((int(states["step"]) for _, states in self._states() if "step" in states), default=None)

    def rates(self) -> list[str]:
        """The learning rate of each parameter group."""
        return [float(group["lr"]).hex() for group in self._groups() if "lr" in group]

    def settings(self) -> list[dict[str, str]]:
        """Return what else each parameter group states, such as its weight decay: name -> value as text."""
        groups = self._groups()
        return [{k: str(plain_setting(v)) for k, v in group.items() if _is_setting(k, v)} for group in groups]

    def shapes(self) -> dict[str, list[Any]] | None:
        """Name -> [type, shape of the full tensor]; None if there are too many."""
        if len(self.parts) > LISTED:
            return None
        return {name: [part.dtype, list(part.shape)] for name, part in self.parts.items()}

    def _states(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The states of each parameter. Those of ZeroRedundancyOptimizer are in its inner optimizer; its own are as it loaded them."""
        for owning in self.owning:
            read: set[int] = set()
            for optimizer in (*self._inside(owning), owning):
                for parameter, states in optimizer.state.items():
                    if id(parameter) in self._parts_by_id and id(parameter) not in read and isinstance(states, dict):
                        read.add(id(parameter))
                        yield parameter, states

    def _inside(self, owning: Any) -> list[Any]:
        """The optimizers that an optimizer holds, by itself or in a list."""
        held = [x for value in vars(owning).values() for x in (value if isinstance(value, (list, tuple)) else (value,))]
        return [item for item in held if any(item is known for known in self.optimizers)]

    def _groups(self) -> Iterator[dict[str, Any]]:
        """The parameter groups, of a container those of the optimizers that step: its own have no state and no schedule."""
        for owning in self.owning:
            inside, has_rates = self._inside(owning), any("lr" in group for group in owning.param_groups)
            for optimizer in inside if len(inside) > 1 or (inside and not has_rates) else (owning,):
                yield from optimizer.param_groups

    def _collect(self, by_id: dict[int, list[sharding.Part]]) -> None:
        """The parameters of all optimizers, once each; one that no module holds is named by its position."""
        identities: set[int] = set()
        taken: set[str] = set()
        for index, optimizer in enumerate(self.optimizers):
            if any(id(parameter) not in identities for parameter in parameters_of(optimizer)):
                self.owning.append(optimizer)
            for position, parameter in enumerate(parameters_of(optimizer)):
                if id(parameter) in identities:
                    continue
                identities.add(id(parameter))
                parts = by_id.get(id(parameter))
                if parts is None or any(part.name in taken for part in parts):
                    parts = [sharding.of_tensor(f"optimizer{index}.{position}", parameter)]
                    self.naming = "position"
                taken.update(part.name for part in parts)
                self._parameters.append((parameter, parts))


def _count(optimizer: Any) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def parameters_of(optimizer: Any) -> Iterator[Any]:
    """The tensors that an optimizer updates."""
    return (
        parameter for group in optimizer.param_groups for parameter in group["params"] if hasattr(parameter, "dtype")
    )


def gradients(optimizer: Any) -> list[float] | None:
    """The norms of the gradients that the coming step uses, of this rank's part, but for those of 0; None where one is not finite."""
    held = (parameter.grad for parameter in parameters_of(optimizer))
    with digest.undisturbed():
        every = (digest.norm(digest.local(x)) for x in held if x is not None)
        norms = [*itertools.islice(filter(None, every), NORMS)]
    return norms if norms and all(map(math.isfinite, norms)) else None


def _is_setting(name: str, item: Any) -> bool:
    elements = item if isinstance(item, (tuple, list)) else (item,)
    is_small = all(x is None or isinstance(x, (bool, int, float, str)) or _is_number(x) for x in elements)
    return name not in NO_SETTINGS and is_small


def _is_number(item: Any) -> bool:
    return hasattr(item, "dtype") and item.numel() == 1


def _parameter_names(top: Any) -> set[str]:
    return {tensor_names.normalise(name) for name, _ in top.named_parameters()}


def _inner_copies(module: Any, trained: set[str], updated: set[int]) -> Iterator[Any]:
    """Parts of a trained module with parameters of the names that are trained in another part, as a teacher beside its student."""
    for child in filter(None, module._modules.values()):
        if not any(id(parameter) in updated for parameter in child.parameters()) and _parameter_names(child) == trained:
            yield child
        else:
            yield from _inner_copies(child, trained, updated)


def _sorted(optimizers: Sequence[Any]) -> list[Any]:
    """Every optimizer once, those with most elements first. An optimizer whose ``__init__`` has not run has no groups."""
    distinct = {id(optimizer): optimizer for optimizer in optimizers if getattr(optimizer, "param_groups", None)}
    return sorted(distinct.values(), key=lambda optimizer: -sum(int(p.numel()) for p in parameters_of(optimizer)))


def _scan() -> dict[str, list[Any]]:
    """Live modules, optimizers, schedulers and scalers by the name of their base class."""
    origins = (
        ("torch.nn", "Module"),
        ("torch.optim.optimizer", "Optimizer"),
        ("torch.optim.lr_scheduler", "LRScheduler"),
        ("torch.amp.grad_scaler", "GradScaler"),
    )
    types = {name: getattr(importlib.import_module(module), name) for module, name in origins}
    live = tensor_names.live_objects(*types.values())
    return {name: live[kind] for name, kind in types.items()}


def _rank() -> int:
    import torch

    distributed = torch.distributed
    return int(distributed.get_rank()) if distributed.is_available() and distributed.is_initialized() else 0


def plain_setting(item: Any) -> Any:
    """Numbers as they compare, sequences as lists, tensors and arrays of one element as numbers; other things as their text.

    ``(0.9, 0.999)``, ``[0.9, 0.999]`` and two tensors on any device are one value, and so are ``1``, ``1.0`` and ``tensor(1.)``.
    """
    if item is None or isinstance(item, (bool, str)):
        return item
    if isinstance(item, (int, float)):
        return int(item) if float(item).is_integer() else float(item)
    if isinstance(item, (tuple, list)):
        return [plain_setting(value) for value in item]
    if hasattr(item, "full_tensor"):  # a DTensor: its shard would do, and this is a number
        item = item.to_local()
    if hasattr(item, "tolist") and hasattr(item, "dtype"):
        return plain_setting(item.tolist())
    return repr(item)
