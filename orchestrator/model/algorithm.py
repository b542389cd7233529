"""Algorithms with parameters, as users choose them: ``ring``, ``chain:segments=16``."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from .frozen import dataclass
from .schedule import Cost, Schedule, rerooted

#: Names that are no file: the backend's own algorithm, and the cost model's choice.
LIBRARY, AUTO = "library", "auto"
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A file of ``algorithms/`` with values for its Params (None if it has none)."""

    name: str
    module: Any
    params: Any = None

    @property
    def label(self) -> str:
        """Write the choice: the name, and the parameters that are not the default."""
        changed = [
            f"{field.name}={_text(getattr(self.params, field.name))}"
            for field in (dataclasses.fields(self.params) if self.params is not None else ())
            if getattr(self.params, field.name) != field.default
        ]
        return ":".join([self.name, *([",".join(changed)] if changed else [])])

    @property
    def operations(self) -> tuple[str, ...]:
        operations: tuple[str, ...] = self.module.OPERATIONS
        return operations

    def even(self, operation: str) -> bool:
        """Return whether its chunks must all have one size."""
        return operation in getattr(self.module, "EVEN", ())

    def chunks(self, operation: str, world: int) -> int:
        count: int = self.module.chunks(operation, world, *self._params)
        return count

    def schedule(self, operation: str, rank: int, world: int, root: int = 0) -> Schedule:
        unrooted: Schedule = self.module.schedule(operation, (rank - root) % world, world, *self._params)
        return rerooted(unrooted, operation, root, world) if root else unrooted

    def cost(self, operation: str, world: int) -> Cost:
        cost: Cost = self.module.cost(operation, world, *self._params)
        return cost

    def refuses(self, operation: str, world: int) -> str:
        """Return why it does not support ``operation`` among ``world`` ranks; empty if it does."""
        if operation not in self.operations:
            return f"{self.name} does not do {operation}; it does {', '.join(self.operations)}"
        refuses = getattr(self.module, "refuses", None)
        return refuses(operation, world, *self._params) if refuses else ""

    @property
    def _params(self) -> tuple[Any, ...]:
        return () if self.params is None else (self.params,)


def parse(text: str) -> tuple[str, dict[str, str]]:
    """Name and parameters of ``name:key=value,key=value``. Raises ValueError."""
    name, colon, rest = text.partition(":")
    params: dict[str, str] = {}
    for pair in rest.split(",") if colon else ():
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not (key and equals and value) or key in params:
            raise ValueError(f"must be NAME or NAME:KEY=VALUE,… (got {text!r})")
        params[key] = value
    return name.strip(), params


def choose(text: str, module: Any) -> Chosen:
    """The algorithm ``text`` with its ``module``. Raises ValueError for unknown parameters."""
    name, params = parse(text)
    cls = getattr(module, "Params", None)
    hints = typing.get_type_hints(cls) if cls else {}
    unknown = [key for key in params if key not in hints]
    if unknown:
        known = f"; it has {', '.join(hints)}" if hints else ""
        raise ValueError(f"{name} has no parameter {', '.join(unknown)}{known}")
    values = _convert_values(name, params, hints)
    try:
        return Chosen(name, module, cls(**values) if cls else None)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _convert_values(name: str, texts: Mapping[str, str], hints: Mapping[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for key, text in texts.items():
        try:
            params[key] = _TRUTH[text.lower()] if hints[key] is bool else hints[key](text)
        except (KeyError, ValueError):
            kind = "true or false" if hints[key] is bool else "a whole number" if hints[key] is int else "a number"
            raise ValueError(f"{name}: {key}: must be {kind} (got {text!r})") from None
    return params


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
