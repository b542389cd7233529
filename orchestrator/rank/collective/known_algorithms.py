"""The algorithms that there are, by name and by what they do. Loads their files; without torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...model import algorithm as model
from ..open_mpi import names as mpi

_PACKAGE = f"{__name__.split('.')[0]}.algorithms"
#: Names that stand for no file.
_NO_FILES = (model.LIBRARY, model.AUTO, mpi.MPI)


def names() -> tuple[str, ...]:
    """Every file of algorithms/, and those of the user's own folders that were loaded."""
    folder = Path(__file__).parents[2] / "algorithms"
    stems = {path.stem for path in folder.glob("*.py") if not path.stem.startswith(("_", "."))}
    stems |= {name.rpartition(".")[2] for name in sys.modules if name.startswith(f"{_PACKAGE}.")}
    return tuple(sorted(stem.replace("_", "-") for stem in stems if not stem.startswith("_")))


def find(text: str) -> model.Chosen | None:
    """``chain:segments=16`` -> the algorithm; None for what is no file: the library's own, Open MPI's, or auto. Raises ValueError."""
    if mpi.meant(text):
        return None
    name, params = model.parse(text)
    if name in (model.LIBRARY, model.AUTO):
        if params:
            raise ValueError(f"{name} has no parameters (got {text!r})")
        return None
    if name not in names():
        raise ValueError(f"there is no algorithm {name}; known: {', '.join((*names(), *_NO_FILES))}")
    return model.choose(text, _module(name))


def doing(operation: str) -> tuple[str, ...]:
    """The names of those that do ``operation``."""
    return tuple(name for name in names() if operation in getattr(_module(name), "OPERATIONS", ()))


def problem(text: str, operation: str) -> str:
    """Why ``text`` is no algorithm for ``operation``; empty: it is one. Says which are."""
    if mpi.meant(text):
        return mpi.problem(text, operation)
    good = (*doing(operation), *_NO_FILES)
    try:
        found = find(text)
    except ValueError as error:
        known = text.partition(":")[0].strip() in (*names(), model.LIBRARY, model.AUTO)
        return str(error) if known else f"unknown algorithm; {operation} has {_listed(good)}"
    if found is not None and operation not in found.operations:
        return f"{found.name} does no {operation}; {operation} has {_listed(good)}"
    return ""


def able(operation: str, world: int) -> Iterable[model.Chosen]:
    """Every algorithm that does ``operation`` among ``world`` ranks, with the defaults of its parameters."""
    for name in doing(operation):
        found = model.choose(name, _module(name))
        if not found.refuses(operation, world):
            yield found


def _module(name: str) -> Any:
    return importlib.import_module(f"{_PACKAGE}.{name.replace('-', '_')}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
