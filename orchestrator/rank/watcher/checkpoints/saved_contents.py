"""Recognises by structure what a saved or loaded object contains: digests of weights, optimizer, scheduler, scaler, random states."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from .. import digest, tensor_names
from . import fused_names, generator_states
from .tensor_parts import Digests, Part, total

_DIGITS = re.compile(r"\d+")
#: Deeper objects and longer lists are not searched.
MAX_DEPTH = 8
MAX_ITEMS = 200_000
#: Larger numbers are recorded as hashes.
MAX_NUMBER = 1e18
#: Names that are sought behind a prefix.
PATTERNS = 16
#: Tensors of a mapping of which the norm is recorded: where all else rounds, it compares and a digest does not.
NORMS = 16


class Owner(NamedTuple):
    """Parameters of the step owner in the optimizer's order, and the buffers of their model, by normalised name."""

    parameters: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    pointers: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    #: The names by optimizer.
    optimizers: tuple[tuple[str, ...], ...] = ()
    #: Where ranks hold shards: names whose elements, and whose values without a shape, this rank adds to the sum of its group.
    counted: frozenset[str] = frozenset()
    scalars: frozenset[str] = frozenset()
    #: The digest of the gradients as they are now.
    gradients: Callable[[], str | None] = lambda: None
    #: Name -> parameter, of those that are no part of a flat one.
    live: Callable[[], fused_names.Tensors] = dict

    def adds(self, name: str, item: Part) -> bool:
        """Does this rank add this tensor of a sharded object to the sum of its group?"""
        return name in (self.counted if item.shape or item.is_shard else self.scalars)


class OwnerState:
    """The owner of this process, once it is known. ``observers`` are called with every new one."""

    def __init__(self) -> None:
        self.current: Owner | None = None
        self.observers: list[Callable[[Owner], None]] = []

    def set(self, current: Owner) -> None:
        self.current = current
        for callback in self.observers:
            callback(current)


owner = OwnerState()


class OptimizerState(NamedTuple):
    """A state dict of an optimizer: keys of parameters by group, state name -> key -> part, rates, the smallest step counter."""

    keys: tuple[Any, ...]
    states: dict[str, dict[Any, Part]]
    lr: list[str]
    counter: int | None = None


class Contents:
    """The parts that ``read`` recognised in an object; its tensors have digests after ``digests.finish``, and names with ``describe``."""

    def __init__(self) -> None:
        self.mappings: dict[str, dict[str, Part]] = {}
        self.optimizers: dict[str, OptimizerState] = {}
        self.other: dict[str, Any] = {}
        self.rng: dict[str, str] = {}
        self.scheduler: list[list[Any]] = []
        self.scaler: dict[str, Any] | None = None
        self.digests = Digests()
        self._items = 0
        #: The owner, if this object is sharded.
        self._group: Owner | None = None

    def is_empty(self) -> bool:
        """Return whether nothing of a training job was recognised."""
        return not (self.mappings or self.optimizers)

    def read(self, value: Any, path: str = "", depth: int = 0) -> None:
        """Add ``value``, which lies at ``path`` of the object."""
        self._items += 1
        if depth > MAX_DEPTH or self._items > MAX_ITEMS:
            return
        value = plain(value)
        if isinstance(value, Mapping):
            self._read_mapping(value, path, depth)
        elif isinstance(value, (list, tuple)):
            if not self._read_generator(value, path):
                for index, item in enumerate(value):
                    self.read(item, _join(path, index), depth + 1)
        elif is_tensor(value):
            self._read_tensor(value, path)
        elif isinstance(value, (int, float)) and abs(value) < MAX_NUMBER:
            self.other[path] = f"={+value!r}"  # of rounding a reader can tell a number, and not its hash
        elif isinstance(value, (int, float, str)):
            self.other[path] = hashlib.sha256(repr(value).encode()).hexdigest()[:16]

    def _read_mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> None:
        if is_optimizer_state(value):
            self.optimizers[path] = read_optimizer(value, self.digests)
        elif {"scale", "growth_factor", "_growth_tracker"} <= value.keys():
            self.scaler = {str(key): _scalar(item) for key, item in value.items()}
        elif {"last_epoch", "_step_count"} <= value.keys():
            self.scheduler.append([value["last_epoch"], value["_step_count"]])
        elif "bit_generator" in value:
            self.rng["numpy"] = generator_states.fingerprint("numpy", value)
        else:
            self._read_items(value, path, depth)

    def _read_items(self, value: Mapping[Any, Any], path: str, depth: int) -> None:
        tensors = {key: item for key, item in value.items() if isinstance(key, str) and is_tensor(item)}
        generators = [key for key, item in tensors.items() if generator_states.is_generator(key, item)]
        for key in generators:
            self._read_tensor(tensors.pop(key), _join(path, key))
        flat, tensors = split_flat_optimizer(tensors)
        if flat:
            self.optimizers[path] = read_flat_optimizer(flat, value, self.digests)
        if tensors:
            parts: dict[str, Part] = {}
            self.mappings[path] = parts
            for key, item in tensors.items():
                self.digests.add(parts, tensor_names.normalise(key), item, has_norm=True)
            for name, item in _split_parameters({tensor_names.normalise(key): item for key, item in tensors.items()}):
                self.digests.add(parts, name, item)
        for key, item in value.items():
            if key not in tensors and key not in generators and key not in flat:
                self.read(item, _join(path, key), depth + 1)

    def _read_generator(self, value: Sequence[Any], path: str) -> bool:
        """Read the state of Python's or numpy's generator; whether it was one."""
        if len(value) == 3 and isinstance(value[1], tuple) and len(value[1]) == 625:
            self.rng["python"] = generator_states.fingerprint("python", value)
        elif len(value) == 5 and value[0] == "MT19937":
            self.rng["numpy"] = generator_states.fingerprint("numpy", value)
        else:
            return False
        return True

    def _read_tensor(self, value: Any, path: str) -> None:
        key = path.rsplit(".", 1)[-1]
        if generator_states.is_generator(path, value):
            self.rng["torch" if value.numel() == generator_states.TORCH_BYTES else "cuda"] = (
                generator_states.fingerprint("torch", value)
            )
        else:
            parts = self.mappings.setdefault(path[: -len(key) - 1], {})
            self.digests.add(parts, tensor_names.normalise(key), value, has_norm=True)

    def describe(self, owner: Owner | None, *, is_accumulating: bool = False, beside: bool = False) -> dict[str, Any]:
        """``weights``, ``numel``, ``matched`` (fraction of the owner's parameters) and ``contents`` by category, as one JSON object.

        Without an owner, ``weights`` is the digest of the whole mapping with the most elements, and ``matched`` is None.
        ``sharded``: the digests are this rank's share of a sum over its shard group. ``is_accumulating``: no step has used the gradients.
        ``beside``: the weights lie elsewhere. ``part``, in the contents, is the digest of a part of the weights.
        """
        gradients = [] if owner is None else self._gradients(owner)
        mappings = {path: parts for path, parts in self.mappings.items() if path not in gradients}
        paths, chosen, matched = _choose({} if beside else mappings, owner)
        self._group = owner if self.is_sharded() else None
        contents: dict[str, Any] = {f"other.{key}": value for key, value in self.other.items()}
        others = {key: parts for key, parts in self.mappings.items() if key not in paths}
        contents.update({f"tensors.{key}": total(parts)[0] for key, parts in others.items()})
        summed = gradients if is_accumulating else ()
        measured = {"weights": chosen, **{f"tensors.{path}": x for path, x in others.items() if path not in summed}}
        norms = {f"{key}.{name}": x.norm for key, parts in measured.items() for name, x in [*parts.items()][:NORMS]}
        contents.update({f"norms.{name}": f"={norm!r}" for name, norm in norms.items() if 0 < norm < MAX_NUMBER})
        contents.update(self._describe_optimizers(owner))
        if owner is not None and len(paths) == 1:
            contents.update(self._describe_buffers(paths[0], owner))
        copies = [] if owner is None else self._copies(owner, [*paths, *gradients])
        states = {"scheduler": self.scheduler, "scaler": self.scaler, "rng": self.rng, "copies": copies}
        states |= {"gradients": gradients}
        contents.update({category: value for category, value in states.items() if value})
        weights, numel = self._sum(chosen) if chosen and matched in (None, 1.0) else (None, 0)
        if owner is not None and chosen and weights is None and not self._group:
            contents["part"] = total(_live(mappings, owner) or chosen)[0]
        counter = min((s.counter for s in self.optimizers.values() if s.counter is not None), default=None)
        fields = {"weights": weights, "numel": numel, "matched": matched, "sharded": self.is_sharded()}
        return {**fields, "counter": counter, "contents": contents}

    def is_sharded(self) -> bool:
        """Does this process hold only a part of some tensor?"""
        states = [parts for state in self.optimizers.values() for parts in state.states.values()]
        return any(item.is_shard for parts in [*self.mappings.values(), *states] for item in parts.values())

    def _sum(self, parts: Mapping[str, Part]) -> tuple[str | None, int]:
        group = self._group
        return total({name: item for name, item in parts.items() if group is None or group.adds(name, item)})

    def _describe_buffers(self, path: str, owner: Owner) -> dict[str, Any]:
        parts = align(self.mappings[path], Owner(owner.buffers))
        return {"buffers": total(parts)[0]} if len(parts) == len(owner.buffers) and parts else {}

    def _gradients(self, owner: Owner) -> list[str]:
        """Paths of mappings that hold the gradients of this rank, with those of others in the same list."""
        copied = {path: align(parts, owner) for path, parts in self.mappings.items() if not _shared(parts, owner)}
        sums = [(_DIGITS.sub("#", p), total(x)[0]) for p, x in copied.items() if len(x) == len(owner.parameters)]
        own, zero = owner.gradients() if sums else None, total({})[0]
        lists = {name for name, x in sums if x and (x == own or (x == zero and "grad" in name.lower()))}
        return [path for path in copied if _DIGITS.sub("#", path) in lists]

    def _copies(self, owner: Owner, others: Sequence[str]) -> list[str]:
        """Paths of mappings that hold all parameters, such as averages of the weights."""
        copies = ((path, parts) for path, parts in self.mappings.items() if path not in others)
        return [path for path, parts in copies if len(align(parts, owner)) == len(owner.parameters)]

    def _describe_optimizers(self, owner: Owner | None) -> dict[str, Any]:
        """Sums by state name over all optimizers of the owner; None for each if one of these was not recognised."""
        if not self.optimizers:
            return {}
        states, is_complete = assign(list(self.optimizers.values()), owner)
        sums: dict[str, dict[str, Part]] = {}
        for state, new_names in states:
            for name, parts in state.states.items():
                sums.setdefault(name, {}).update(
                    {new_names[key]: item for key, item in parts.items() if key in new_names}
                )
        digests = {f"optimizer.{name}": self._sum(parts)[0] if is_complete else None for name, parts in sums.items()}
        return {"lr": [value for state, _ in states for value in state.lr], **digests}


def _choose(
    mappings: Mapping[str, dict[str, Part]], owner: Owner | None
) -> tuple[list[str], dict[str, Part], float | None]:
    """Paths and parts of the mapping that holds the weights, or of several, and the fraction of the owner's parameters in it."""
    if not mappings:
        return [], {}, None if owner is None else 0.0
    if owner is None:
        path = max(mappings, key=lambda key: sum(item.numel for item in mappings[key].values()))
        return [path], mappings[path], None
    aligned = {path: align(parts, owner) for path, parts in mappings.items()}
    path = max(aligned, key=lambda key: (len(aligned[key]), _shared(mappings[key], owner), "ema" not in key.lower()))
    if len(aligned[path]) < len(owner.parameters):
        paths, parts = combine(mappings, owner)
        if paths:
            return paths, parts, 1.0
    return [path], aligned[path], round(len(aligned[path]) / max(len(owner.parameters), 1), 4)


def _live(mappings: Mapping[str, dict[str, Part]], owner: Owner) -> dict[str, Part]:
    """The parameters of the owner whose own tensors the mappings hold, and no copies, by the owner's names."""
    names = dict(zip(owner.pointers, owner.parameters))
    parts = (item for own in mappings.values() for item in own.values())
    return {names[item.pointer]: item for item in parts if item.pointer and item.pointer in names}


def assign(
    states: list[OptimizerState], owner: Owner | None
) -> tuple[list[tuple[OptimizerState, dict[Any, str]]], bool]:
    """Optimizer states in the order of the owner's optimizers with the names of their parameters, and whether none is missing."""
    if owner is None or not owner.optimizers:
        largest = max(states, key=lambda state: len(state.keys))
        return [(largest, parameter_names(largest.keys, None))], True
    result = []
    pending = list(states)
    for group in owner.optimizers:
        fitting = [state for state in pending if fits(state, group, owner)]
        if fitting:
            pending.remove(fitting[0])
            result.append((fitting[0], parameter_names(fitting[0].keys, group)))
    return result, len(result) == len(owner.optimizers)


def fits(state: OptimizerState, group: Sequence[str], owner: Owner) -> bool:
    """Can this be the state of the optimizer with these parameters, by names or by number and shapes?"""
    new_names = parameter_names(state.keys, group)
    if len(new_names) != len(group):
        return False
    shapes = dict(zip(owner.parameters, owner.shapes))
    items = (
        (new_names[key], item) for parts in state.states.values() for key, item in parts.items() if key in new_names
    )
    return all(
        not item.shape or len(item.shape) != len(shapes[name]) or item.shape == shapes[name] for name, item in items
    )


def recognise(value: Any) -> Contents:
    """Recognise what ``value`` contains; its tensors have no digests yet."""
    contents = Contents()
    with digest.undisturbed():
        contents.read(_attributes(value))
    return contents


def _attributes(value: Any) -> Any:
    """Return what is pickled of an object of a job's own class that is saved as a whole; any other value itself."""
    is_known = isinstance(value, (Mapping, list, tuple, type)) or is_tensor(value) or plain(value) is not value
    pickling = (getattr(type(value), name, None) for name in ("__getstate__", "__reduce__", "__reduce_ex__"))
    has_own_state = any(isinstance(method, FunctionType) for method in pickling)
    return value if is_known or has_own_state else getattr(value, "__dict__", value)


def read(value: Any) -> Contents:
    """Recognise what ``value`` contains and hash its tensors."""
    contents = recognise(value)
    contents.digests.finish()
    return contents


def plain(value: Any) -> Any:
    """The state of a module or optimizer that was pickled whole; any other value itself. Runs no hooks: FSDP's are collective."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        return {**dict(value.named_parameters()), **dict(value.named_buffers())}
    if torch is not None and isinstance(value, torch.optim.Optimizer):
        parameters = [parameter for group in value.param_groups for parameter in group["params"]]
        state = {
            index: value.state[parameter] for index, parameter in enumerate(parameters) if parameter in value.state
        }
        rates = [group.get("lr") for group in value.param_groups]
        return {
            "state": state,
            "param_groups": [
                {"params": list(range(len(parameters))), "lr": rates[0]},
                *({"lr": lr} for lr in rates[1:]),
            ],
        }
    return value


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and (isinstance(value, torch.Tensor) or hasattr(value, "local_shards"))


def is_optimizer_state(value: Mapping[Any, Any]) -> bool:
    """Return whether this is an optimizer's ``state_dict()``, by index or by name."""
    return isinstance(value.get("state"), Mapping) and isinstance(value.get("param_groups"), (list, tuple))


def split_flat_optimizer(tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split off the entries of an optimizer that DCP flattened: ``state.<parameter>.<state name>``."""
    flat = {key: value for key, value in tensors.items() if key.startswith("state.") and key.count(".") >= 2}
    return flat, {key: value for key, value in tensors.items() if key not in flat}


def read_optimizer(value: Mapping[str, Any], digests: Digests) -> OptimizerState:
    """Read ``{"state": {key: {name: value}}, "param_groups": [...]}``."""
    torch: Any = sys.modules["torch"]
    keys = [key for group in value["param_groups"] for key in group.get("params", ())]
    states: dict[str, dict[Any, Part]] = {}
    for key, entries in value["state"].items():
        for name, item in entries.items() if isinstance(entries, Mapping) else ():
            tensor = torch.tensor(float(item), dtype=torch.float64) if isinstance(item, (int, float)) else item
            if is_tensor(tensor):
                digests.add(states.setdefault(str(name), {}), key, tensor)
    counters = [item["step"] for item in value["state"].values() if isinstance(item, Mapping) and "step" in item]
    rates = [rate(group.get("lr")) for group in value["param_groups"]]
    return OptimizerState(tuple(keys), states, rates, smallest(counters))


def read_flat_optimizer(flat: Mapping[str, Any], value: Mapping[str, Any], digests: Digests) -> OptimizerState:
    """Read ``state.<parameter>.<state name>`` and ``param_groups.<parameter>.lr``; the rates of all parameters count as one group each."""
    states: dict[str, dict[Any, Part]] = {}
    for key, item in flat.items():
        parameter, name = key[len("state.") :].rsplit(".", 1)
        digests.add(states.setdefault(name, {}), parameter, item)
    rates = {
        rate(item) for key, item in value.items() if str(key).startswith("param_groups.") and str(key).endswith(".lr")
    }
    keys = {key: None for parts in states.values() for key in parts}
    counters = [item for key, item in flat.items() if key.endswith(".step")]
    return OptimizerState(tuple(keys), states, sorted(rates), smallest(counters))


def smallest(counters: Sequence[Any]) -> int | None:
    """The smallest step counter; None if there is none. To read one on a device would wait for its work."""
    plain = (x for x in counters if type(x).__name__ == "Tensor" and x.is_cpu and x.numel() == 1)
    known = [*(item for item in counters if isinstance(item, (int, float))), *plain]
    return min(map(int, known), default=None)


def rate(value: Any) -> str:
    """A learning rate as ``float.hex``; empty if there is none."""
    return float(value).hex() if value is not None else ""


def parameter_names(keys: Sequence[Any], group: Sequence[str] | None) -> dict[Any, str]:
    """Key of an optimizer's state -> normalised name of the parameter, in the order of ``group``; ``#<position>`` if that is None."""
    if not all(isinstance(key, str) for key in keys):
        if group is None:
            return {key: f"#{position}" for position, key in enumerate(keys)}
        return dict(zip(keys, group)) if len(keys) == len(group) else {}
    by_name = {tensor_names.normalise(key): key for key in keys}
    if group is None:
        return {key: name for name, key in by_name.items()}
    return {by_name[saved]: name for name, saved in align_names(tuple(by_name), tuple(group)).items()}


def align(parts: Mapping[str, Part], owner: Owner) -> dict[str, Part]:
    """The owner's name -> part, for the parameters that this mapping holds: by name, else by address, else by order and shape."""
    matches = {name: parts[saved] for name, saved in align_names(tuple(parts), owner.parameters).items()}
    if len(matches) == len(owner.parameters) or not owner.parameters:
        return matches
    by_address = {item.pointer: item for item in parts.values() if item.pointer}
    if owner.pointers and all(pointer in by_address for pointer in owner.pointers):
        return {name: by_address[pointer] for name, pointer in zip(owner.parameters, owner.pointers)}
    if not matches and owner.shapes and tuple(item.shape for item in parts.values()) == owner.shapes:
        return dict(zip(owner.parameters, parts.values()))
    return matches


def combine(mappings: Mapping[str, Mapping[str, Part]], owner: Owner) -> tuple[list[str], dict[str, Part]]:
    """The mappings of several modules that hold the owner's parameters together, by address, by name, else by order and shape.

    Nothing where they do not.
    """
    by_address = {
        item.pointer: (path, item) for path, parts in mappings.items() for item in parts.values() if item.pointer
    }
    names_of: dict[str, list[tuple[str, Part]]] = {}
    for path, parts in mappings.items():
        for name, item in parts.items():
            names_of.setdefault(name, []).append((path, item))
    if owner.pointers and all(pointer in by_address for pointer in owner.pointers):
        pairs = [by_address[pointer] for pointer in owner.pointers]
    elif all(len(names_of.get(name, ())) == 1 for name in owner.parameters):
        pairs = [names_of[name][0] for name in owner.parameters]
    else:
        pairs = _by_shapes(mappings, owner)
    return sorted({path for path, _ in pairs}), dict(zip(owner.parameters, (item for _, item in pairs)))


def _by_shapes(mappings: Mapping[str, Mapping[str, Part]], owner: Owner) -> list[tuple[str, Part]]:
    """Whole mappings, one after the other, whose shapes are those of the owner's parameters; empty if more than one fits."""
    pairs: list[tuple[str, Part]] = []
    while len(pairs) < len(owner.shapes):
        used = {path for path, _ in pairs}
        fitting = [
            [(path, item) for item in parts.values()]
            for path, parts in mappings.items()
            if path not in used
            and tuple(item.shape for item in parts.values()) == owner.shapes[len(pairs) : len(pairs) + len(parts)]
        ]
        if len(fitting) != 1:
            return []
        pairs += fitting[0]
    return pairs


@functools.lru_cache(maxsize=16)
def align_names(saved: tuple[str, ...], owner: tuple[str, ...]) -> Mapping[str, str]:
    """The owner's name -> name in the mapping. One prefix may stand before all names of either side."""
    if not saved or not owner:
        return {}
    known = set(saved)
    pattern = max(owner, key=len)
    ends = {
        tuple(name.split(".")[-2:]): name for name in sorted(owner, key=len)
    }  # the longest may be saved in several tensors
    longest = sorted(ends.values(), key=len, reverse=True)[:PATTERNS]
    before = ({key[: -len(name)] for key in saved if key.endswith("." + name)} for name in longest)
    prefixes = {""} | next(filter(None, before), set())
    cuts = {""} | {pattern[: -len(name)] for name in saved if pattern.endswith("." + name)}
    added = [{name: prefix + name for name in owner if prefix + name in known} for prefix in sorted(prefixes, key=len)]
    removed = [
        {name: name[len(cut) :] for name in owner if name.startswith(cut) and name[len(cut) :] in known}
        for cut in sorted(cuts, key=len)
    ]
    return max(added + removed, key=len)


def _split_parameters(saved: fused_names.Tensors) -> Iterator[tuple[str, Any]]:
    """The parameters that a mapping with others of the owner's parameters holds as several tensors."""
    known = owner.current
    matches = align_names(tuple(saved), known.parameters) if known is not None and len(saved) > 1 else {}
    if known is not None and 0 < len(matches) < min(len(known.parameters), len(saved)):
        yield from fused_names.split(saved, matches, known.live())


def _shared(parts: Mapping[str, Part], owner: Owner) -> int:
    """Return how many parts lie at addresses of the owner's parameters: a live model, not a copy of it."""
    return len({item.pointer for item in parts.values()} & set(owner.pointers))


def _scalar(value: Any) -> Any:
    if is_tensor(value):
        value = value.item()
    return value.hex() if isinstance(value, float) else value


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
