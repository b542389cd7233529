"""Names of parameters: those of the modules that hold them, without the prefixes of wrappers."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_PREFIXES = re.compile(r"(?:(?<=^)|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def normalise(name: str) -> str:
    """``module._orig_mod.fc.weight`` -> ``fc.weight``."""
    return _PREFIXES.sub("", name)


def live_objects(*types: type) -> dict[type, list[Any]]:
    """The objects of these classes that the garbage collector tracks. Looks at classes only, and so runs no code of objects."""
    result: dict[type, list[Any]] = {kind: [] for kind in types}
    kinds: dict[type, list[list[Any]]] = {}
    for item in gc.get_objects():
        cls = type(item)
        if cls not in kinds:
            kinds[cls] = [result[kind] for kind in types if issubclass(cls, kind)]
        for members in kinds[cls]:
            members.append(item)
    return result


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
