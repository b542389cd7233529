"""The ``@dataclass`` of the product: that of the standard library, which compiles the methods of a class when one is first called.

A process uses a few of the classes that it imports, and compiling the methods of all took a quarter of the CPU time of a start.
``__init__`` is compiled when it has been called ``COMPILED_AFTER`` times: until then that takes longer than what it saves.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, asdict, field, fields, replace
from typing import TYPE_CHECKING, Any

#: Constructions of a class by one process: compiling takes 50 µs, and saves 3 µs each time.
COMPILED_AFTER = 15
#: Of all threads that import, one makes a child of another dataclass at a time.
_MAKING_CHILD = threading.Lock()
__all__ = ["MISSING", "asdict", "dataclass", "field", "fields", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, **layout):
        """Make a dataclass. ``layout``: ``slots`` and ``kw_only``."""

        def make(plain):
            names = ["__init__", "__repr__", *(["__eq__"] if eq else []), *(["__hash__"] if eq and frozen else [])]
            missing = [name for name in names if name not in vars(plain)]
            plain.__doc__ = (
                plain.__doc__ or f"{plain.__name__}()"
            )  # as the standard library, which reads the signature for it
            with _unfrozen([base.__dataclass_params__ for base in plain.__bases__ if dataclasses.is_dataclass(base)]):
                made = dataclasses.dataclass(init=False, repr=False, eq=False, **layout)(plain)
            if frozen:
                made.__dataclass_params__.frozen = True
                made.__setattr__, made.__delattr__ = _refuse, _refuse
                made.__getstate__, made.__setstate__ = _state, _restore
            elif eq and "__hash__" not in vars(plain):
                made.__hash__ = None
            for name in missing:
                setattr(made, name, _compiled_later(made, name))
            return made

        return make if cls is None else make(cls)


@contextmanager
def _unfrozen(bases: list[Any]) -> Iterator[None]:
    """Keep the standard library from compiling what refuses assignments for the child of a frozen class: the child inherits it."""
    with _MAKING_CHILD if bases else nullcontext():
        before = [params.frozen for params in bases]
        for params in bases:
            params.frozen = False
        try:
            yield
        finally:
            for params, is_frozen in zip(bases, before, strict=True):
                params.frozen = is_frozen


def _compiled_later(cls: Any, name: str) -> Any:
    """A method that replaces itself by the compiled one."""
    calls = 0

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if name == "__init__" and calls < COMPILED_AFTER and _construct(cls, self, args, kwargs):
            return None
        setattr(cls, name, _init(cls) if name == "__init__" else _standard(cls, name))
        return getattr(cls, name)(self, *args, **kwargs)

    return method


def _construct(cls: Any, instance: Any, args: Any, kwargs: Any) -> bool:
    """Do what ``__init__`` does. False: a value is missing or is one too many, which the compiled ``__init__`` reports."""
    positional = [item.name for item in fields(cls) if item.init and not item.kw_only]
    given = {**dict(zip(positional, args, strict=False)), **kwargs}
    if len(given) < len(args) + len(kwargs):
        return False
    for item in fields(cls):
        if item.init and item.name in given:
            value = given.pop(item.name)
        elif item.default_factory is not dataclasses.MISSING:
            value = item.default_factory()
        else:
            value = item.default
        if value is dataclasses.MISSING and item.init:
            return False
        if value is not dataclasses.MISSING:
            object.__setattr__(instance, item.name, value)
    if given:
        return False
    if hasattr(cls, "__post_init__"):
        instance.__post_init__()
    return True


def _standard(cls: Any, name: str) -> Any:
    """The method that the standard library makes for a class of the same fields."""
    body = {"__annotations__": {item.name: item.type for item in fields(cls)}, "__module__": cls.__module__}
    body["__doc__"] = cls.__doc__
    plain = type(cls.__name__, (), body | {item.name: item for item in fields(cls)})
    made: Any = dataclasses.dataclass(init=False, repr=name == "__repr__", unsafe_hash=name == "__hash__")(plain)
    return vars(made)[name]


def _init(cls: Any) -> Any:
    """Make an ``__init__`` like that of the standard library, which would also compile what refuses assignments."""
    known: Any = {"_unset": object(), "_assign": object.__setattr__}
    positional: list[str] = ["self"]
    named: list[str] = []
    lines = []
    for item in fields(cls):
        known |= {f"_{item.name}": item.default, f"_make_{item.name}": item.default_factory}
        is_made = item.default_factory is not dataclasses.MISSING
        default = "_unset" if is_made else f"_{item.name}" if item.default is not dataclasses.MISSING else ""
        if item.init:
            (named if item.kw_only else positional).append(f"{item.name}={default}" if default else item.name)
        value = item.name if item.init else default
        if is_made:
            value = f"_make_{item.name}()" + (f" if {item.name} is _unset else {item.name}" if item.init else "")
        if value:
            lines.append(f"_assign(self, {item.name!r}, {value})")
    lines.append("self.__post_init__()" if hasattr(cls, "__post_init__") else "pass")
    head = ", ".join([*positional, *(["*", *named] if named else [])])
    exec(f"def __init__({head}):\n " + "\n ".join(lines), known)  # noqa: S102
    known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return known["__init__"]


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to or delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, item.name) for item in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for item, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, item.name, value)
