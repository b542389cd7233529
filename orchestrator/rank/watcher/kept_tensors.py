"""Tensors that a script keeps beside its model in a list, a tuple or a dict: an average of the weights, or the best state until now.

They are sought among all objects at the start, and at the first backward pass after a save. They have the shapes of a model's
parameters, in their order, and are none that a module, an optimizer or a gradient holds. What the backward passes of a step
change, such as a momentum, is left out: a sum in another order changes that, too.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import Any

from . import digest, owner, small_tensors, tensor_names

#: How the keys of these begin among the copies of the model; then follow the name in the script, and two numbers, the first of which
#: is the same for equal ones.
KEPT = "kept"
#: The key, in the first state after a search that found some, of the digests of those that a former search had found as they are.
AGAIN = "again"
KINDS = frozenset((list, tuple, dict, OrderedDict, defaultdict))
#: So many times they are sought whatever it costs, then while that takes no more than this part of the time between.
ALWAYS, SHARE = 3, 0.02
#: Digests that are remembered of earlier moments.
REMEMBERED = 64


class Group:
    """Tensors that were found together. ``keys``: of a dict."""

    def __init__(self, name: str, keys: Sequence[str], tensors: Sequence[Any]) -> None:
        self.name, self.keys = name, keys
        self._tensors = [weakref.ref(tensor) for tensor in tensors]
        self._versions = _versions(tensors)

    def tensors(self) -> list[Any] | None:
        """The tensors; None once the script has given one of them up."""
        live = [reference() for reference in self._tensors]
        return None if any(tensor is None for tensor in live) else live

    def is_untouched(self) -> bool:
        """Are they as they were when they were found?"""
        live = self.tensors()
        return live is not None and _versions(live) == self._versions

    def digests(self) -> dict[str, str]:
        """Digest the tensors by their order, and of a dict by its keys, as a save has it: kind of the names -> digest. Raises Undigestible.

        Behind the first one stand signed sums of some of them, as ``owner.sums`` has them of the weights.
        """
        live = self.tensors() or []
        some = [x for x in live if x.dim() > 1][: owner.SUMMED]
        sums = " ".join(map(str, (_total(live), *digest.signed_sums(some)))) if live else ""
        named = {" named": digest.total(zip(self.keys, live))[0]} if self.keys and live else {}
        return {"": sums, **named} if live else {}


class KeptTensors:
    """The groups of this process that were found last."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._again: list[Group] | None = None
        self._found_after = -1
        self._earlier: list[str] = []
        self._snapshots: set[str] = set()
        self._former: list[Group] = []
        self._times = 0
        self._ended, self._cost_s = 0.0, 0.0

    def find(self, n: int, known: owner.Owner) -> None:
        """Seek them after ``n`` steps, if they were not sought yet. What is as the model is left out once: it may be for a save."""
        begin, since_s = time.thread_time(), time.monotonic() - self._ended
        is_due = self._times < ALWAYS or self._cost_s <= SHARE * since_s
        if n == self._found_after or not is_due or known.shards:
            return
        self._found_after, self._times, self._groups = n, self._times + 1, {}
        self._again = []
        with digest.undisturbed():
            by_digest: dict[str, list[Group]] = {}
            for group in _groups(known):
                by_digest.setdefault(_total(group.tensors() or ()), []).append(group)
            models = _sequences(known, [*known.modules, *known.copies])
            left_out = {_total(tensors) for tensors in models} if n and by_digest else set[str]()
        former = by_digest.keys() & self._snapshots - left_out
        older = by_digest.keys() & {*self._earlier} - left_out - former
        again = [group._tensors[0] for value in left_out for group in by_digest.get(value, ())]
        if not older and any(x is y._tensors[0] for x in again for y in self._former):  # saves use two buffers in turn
            left_out |= {value for value in former if len(by_digest[value]) == 1}
        self._former = [group for value in former for group in by_digest[value]]
        for number, (value, same) in enumerate(item for item in by_digest.items() if item[0] not in left_out):
            is_again = value in self._earlier and value not in self._snapshots
            self._again += same[:1] if is_again else []
            if not is_again:
                self._groups.update({f"{KEPT} {g.name} {number} {index}": g for index, g in enumerate(same)})
        self._snapshots = left_out & by_digest.keys()
        self._earlier = [*self._earlier, *by_digest][-REMEMBERED:]
        self._ended, self._cost_s = time.monotonic(), time.thread_time() - begin

    def keep_untouched(self, n: int) -> None:
        """Leave out what has changed since they were found, and all if that was not after ``n`` steps."""
        is_new = n == self._found_after
        self._again = self._again if is_new else None
        self._groups = {key: group for key, group in self._groups.items() if is_new and group.is_untouched()}

    def digests(self) -> dict[str, str]:
        """Key -> digest of those that the script still has."""
        with digest.undisturbed():
            known = {f"{key}{way}": v for key, group in self._groups.items() for way, v in group.digests().items()}
            if known and self._again is not None:
                known[AGAIN] = "; ".join(sorted(way[""] for group in self._again if (way := group.digests())))
        self._again = None
        return known


def _groups(known: owner.Owner) -> Iterator[Group]:
    """The groups among all objects of this process."""
    import torch

    sizes = {tuple(x.shape for x in tensors): tensors[0].element_size() for tensors in _sequences(known, known.modules)}
    lengths = {*map(len, sizes)}
    every = gc.get_objects()
    sized = [*compress(every, map(KINDS.__contains__, map(type, every)))]
    candidates = [*compress(sized, map(lengths.__contains__, map(len, sized)))]
    del every, sized
    held: set[int] = set()
    for container in candidates:
        items = [*container.values()] if isinstance(container, dict) else [*container]
        if any(type(x) not in (torch.Tensor, torch.nn.Parameter) for x in items):
            continue
        size = sizes.get(tuple(x.shape for x in items))
        if size is None or items[0].element_size() < size or not all(x.layout is torch.strided for x in items):
            continue
        held = held or _held(known)
        pointers = {x.data_ptr() for x in items}
        if not pointers & (held | {0}) and len(pointers) == len(items):
            keys = [tensor_names.normalise(str(key)) for key in container] if isinstance(container, dict) else []
            yield Group(_name(container), keys, items)


def _sequences(known: owner.Owner, modules: Iterable[Any]) -> Iterator[list[Any]]:
    """The tensors of models as scripts list them: parameters, those that are trained, states, those of floats; of each optimizer."""
    lists: list[list[Any]] = []
    for module in modules:
        parameters = [*module.parameters()]
        states = [x for _, part in tensor_names.modules_by_name([module]) for x in _states(part)]
        lists += [parameters, [x for x in parameters if x.requires_grad], states, [*filter(digest.has_floats, states)]]
    lists += [[*owner.parameters_of(optimizer)] for optimizer in known.owning]
    return (x for x in lists if len(x) > 1 and any(item.dim() > 1 for item in x))


def _states(module: Any) -> list[Any]:
    buffers = [x for name, x in module._buffers.items() if name not in module._non_persistent_buffers_set]
    return [x for x in (*module._parameters.values(), *buffers) if x is not None]


def _held(known: owner.Owner) -> set[int]:
    """The addresses of what modules, optimizers and gradients hold."""
    module, own = sys.modules["torch"].nn.Module, small_tensors.SmallTensors
    live = tensor_names.live_objects(module, own)
    tensors = [x for item in live[module] for x in (*item._parameters.values(), *item._buffers.values())]
    tensors += [x for item in live[own] for x in item.targets]
    states = [held for optimizer in known.optimizers for held in optimizer.state.values() if isinstance(held, dict)]
    tensors += [x for held in states for x in held.values() if hasattr(x, "data_ptr")]
    tensors += [parameter for optimizer in known.optimizers for parameter in owner.parameters_of(optimizer)]
    every = chain(tensors, (getattr(x, "grad", None) for x in tensors))
    return {x.data_ptr() for x in every if x is not None and digest.has_floats(x)} - {0}


def _name(container: Any) -> str:
    """Return how the script calls it: ``ema``, ``ema.shadow``; ``tensors`` where no global name leads to it.

    The local names of a function are not read: that would keep what they stand for alive.
    """
    for name, value in [*vars(sys.modules["__main__"]).items()]:
        inside = (key for key, item in [*_attributes(value).items()] if item is container)
        path = name if value is container else next((f"{name}.{key}" for key in inside), "")
        if path:
            return "".join(path.split())
    return "tensors"


def _attributes(value: Any) -> Mapping[str, object]:
    """Return an object's attributes without any code of the object."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if type(held) is dict else {}


def _versions(tensors: Iterable[Any]) -> list[int]:
    return [-1 if tensor.is_inference() else int(tensor._version) for tensor in tensors]


def _total(tensors: Iterable[Any]) -> str:
    return digest.total((str(index), tensor) for index, tensor in enumerate(tensors))[0]
