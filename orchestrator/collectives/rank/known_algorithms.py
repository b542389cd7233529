"""Finds algorithms by name and by operation, and imports their files. Without torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...model import algorithm as model
from .open_mpi import names as mpi

_PACKAGE = f"{__name__.split('.')[0]}.algorithms"
#: Names without a file.
_NO_FILES = (model.LIBRARY, model.AUTO, mpi.MPI)


def names() -> tuple[str, ...]:
    """Every file of algorithms/, and those loaded from the user's folders."""
    folder = Path(__file__).parents[2] / "algorithms"
    stems = {path.stem for path in folder.glob("*.py") if not path.stem.startswith(("_", "."))}
    stems |= {name.rpartition(".")[2] for name in sys.modules if name.startswith(f"{_PACKAGE}.")}
    return tuple(sorted(stem.replace("_", "-") for stem in stems if not stem.startswith("_")))


def find(text: str) -> model.Chosen | None:
    """``chain:segments=16`` -> the algorithm; None for those without a file: library, mpi and auto. Raises ValueError."""
    if mpi.is_open_mpi(text):
        return None
    name, params = model.parse(text)
    if name in (model.LIBRARY, model.AUTO):
        if params:
            raise ValueError(f"{name} has no parameters (got {text!r})")
        return None
    if name not in names():
        raise ValueError(f"unknown algorithm {name}; known: {', '.join((*names(), *_NO_FILES))}")
    return model.choose(text, _module(name))


def doing(operation: str) -> tuple[str, ...]:
    return tuple(name for name in names() if operation in getattr(_module(name), "OPERATIONS", ()))


def problem(text: str, operation: str) -> str:
    """Why ``text`` is not an algorithm for ``operation``, with those that are; empty if it is."""
    if mpi.is_open_mpi(text):
        return mpi.problem(text, operation)
    good = (*doing(operation), *_NO_FILES)
    try:
        algorithm = find(text)
    except ValueError as error:
        known = text.partition(":")[0].strip() in (*names(), model.LIBRARY, model.AUTO)
        return str(error) if known else f"unknown algorithm; {operation} has {_listed(good)}"
    if algorithm is not None and operation not in algorithm.operations:
        return f"{algorithm.name} does not do {operation}; {operation} has {_listed(good)}"
    return ""


def able(operation: str, world: int) -> Iterable[model.Chosen]:
    """Every algorithm that does ``operation`` among ``world`` ranks, with default parameters."""
    for name in doing(operation):
        algorithm = model.choose(name, _module(name))
        if not algorithm.refuses(operation, world):
            yield algorithm


def _module(name: str) -> Any:
    return importlib.import_module(f"{_PACKAGE}.{name.replace('-', '_')}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
