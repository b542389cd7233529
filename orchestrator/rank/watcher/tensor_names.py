"""Names of parameters: those of the modules that hold them, without the prefixes of wrappers."""

from __future__ import annotations

import gc
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_PREFIXES = re.compile(r"(?:(?<=^)|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def normalise(name: str) -> str:
    """``module._orig_mod.fc.weight`` -> ``fc.weight``."""
    return _PREFIXES.sub("", name)


def below_common(items: set[str]) -> set[str]:
    """The names without the modules that all of them begin with."""
    while len({name.partition(".")[:2] for name in items}) == 1 and all("." in name for name in items):
        items = {name.partition(".")[2] for name in items}
    return items


def live_objects(*types: type) -> dict[type, list[Any]]:
    """The objects of these classes that the garbage collector tracks. Looks at classes only, and so runs no code of objects."""
    families = {kind: _family(kind) for kind in types}
    every = gc.get_objects()  # hundreds of thousands: no code of Python runs for each of them
    live = list(itertools.compress(every, map(set().union(*families.values()).__contains__, map(type, every))))
    return {kind: [item for item in live if type(item) in family] for kind, family in families.items()}


def _family(kind: type) -> set[type]:
    """A class and all that derive from it."""
    return {kind}.union(*map(_family, type.__subclasses__(kind)))


def is_left(old: Any, new: Any, modules: Iterable[Any]) -> bool:
    """Return whether a script kept the optimizer ``old`` of a model that it gave up, as that of an earlier fold, and steps ``new``.

    Then no module holds its parameters, which have the shapes of those of ``new``, and some module holds these.
    """
    kept, stepped = ([p for group in item.param_groups for p in group["params"]] for item in (old, new))
    if old is new or [p.shape for p in kept] != [p.shape for p in stepped]:
        return False
    held = {id(parameter) for module in modules for parameter in module._parameters.values()}
    return any(id(p) in held for p in stepped) and not any(id(p) in held for p in kept)


def roots(modules: Sequence[Any]) -> list[Any]:
    """The modules that no other module contains, those with most parameters first."""
    children = {id(child) for module in modules for child in module._modules.values() if child is not None}
    tops = [module for module in modules if id(module) not in children]
    return sorted(tops, key=lambda module: -sum(1 for _ in module.parameters()))


def modules_by_name(tops: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """(normalised prefix, module) of every module below the roots."""
    for top in tops:
        for prefix, module in top.named_modules():
            yield normalise(f"{prefix}." if prefix else ""), module
