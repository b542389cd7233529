"""The values of a pickle, read from its opcodes: nothing is imported, and nothing is called."""

from __future__ import annotations

import io
import pickletools
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from ...model.frozen import dataclass, field

#: Opcodes that push their own argument.
_LITERALS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
}  # fmt: skip
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, type] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
#: Opcodes that change nothing on the stack.
_NOTHING = {"PROTO", "FRAME", "STOP", "READONLY_BUFFER", "NEXT_BUFFER"}
#: Classes whose instances are read as plain values, by the constructor's arguments.
_PLAIN: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": lambda *items: _dict(items[0]) if items else {},
    "collections.defaultdict": lambda *_: {},
    "torch.Size": lambda *items: tuple(items[0]) if items else (),
    "builtins.list": lambda *items: list(items[0]) if items else [],
    "builtins.set": lambda *items: list(items[0]) if items else [],
    "builtins.getattr": lambda owner, name: Object(".".join((owner.name[:200], name[:200]))),
}
#: Opcodes of a pickle, and values that its calls copy: a small pickle can demand any amount of memory.
_MOST_OPCODES, _MOST_COPIED = 50_000_000, 50_000_000
#: The largest pickle that is read; the bytes of tensors are not part of it.
MOST_BYTES = 512 << 20
#: Values in one key of a dict: the hash of a deeper tuple ends the process, or never ends.
_MOST_KEY = 1000


class DamagedError(ValueError):
    """The file ends too early, or is not what it begins as."""


class UnreadError(Exception):
    """Nothing tells whether the file is whole: the system does not let it be read, or it is of another form, or too large."""


@contextmanager
def reading() -> Iterator[None]:
    """Give every error that the content of a file can cause as one of the two above."""
    try:
        yield
    except DamagedError:
        raise
    except OSError as error:
        raise UnreadError(f"it cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise UnreadError("it needs more memory than there is") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, struct.error) as error:
        raise DamagedError(f"its content is damaged: {str(error)[:120] or type(error).__name__}") from None


@dataclass(slots=True, eq=False)
class Object:
    """A class or function of the pickle, or an instance: never made, only described. ``name``: module.qualname."""

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    called: bool = False
    items: dict[Any, Any] = field(default_factory=dict)

    def attribute(self, name: str) -> Any:
        """Return an attribute of an instance, None where its state has none of this name."""
        states = self.state if isinstance(self.state, tuple) else (self.state,)  # of slots: (dict or None, slots)
        return next((state[name] for state in states if isinstance(state, dict) and name in state), None)


@dataclass(slots=True, eq=False)
class Reference:
    """A persistent id: in torch's files ("storage", class, key, place, elements)."""

    value: Any


def read(stream: IO[bytes]) -> Any:
    """Return the value of the pickle that begins here, and leave the stream behind it.

    Raises:
        DamagedError: the pickle ends too early, or its opcodes do not fit together.
        UnreadError: it demands more than is read.
    """
    with reading():
        return _Machine().run(stream)


def read_bytes(content: bytes) -> Any:
    return read(io.BytesIO(content))


def walk(value: Any) -> Iterator[Any]:
    """Give every container, object and leaf below a value once, the value itself first."""
    waiting, known = [value], set()
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict | list | tuple | Object):
            if id(current) in known:
                continue
            known.add(id(current))
        yield current
        match current:
            case dict():
                waiting.extend(current.values())
            case list() | tuple():
                waiting.extend(current)
            case Object():
                waiting.extend((current.args, current.state, current.items))


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0

    def run(self, stream: IO[bytes]) -> Any:
        for count, (opcode, arg, _place) in enumerate(pickletools.genops(stream)):
            if count > _MOST_OPCODES:
                raise UnreadError(f"its pickle has more than {_MOST_OPCODES:,} opcodes")
            self.step(opcode.name, arg)
        return self.stack[-1]

    def step(self, name: str, arg: Any) -> None:
        stack = self.stack
        if name in _LITERALS:
            stack.append(arg)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _GETS:
            stack.append(self.memo[arg])
        elif name in _PUTS:
            self.memo[arg] = stack[-1]
        elif name in _TUPLES:
            stack.append(tuple(self.take(_TUPLES[name])))
        elif name in _MARKED:
            stack.append(_MARKED[name](self.take_marked()))
        elif name not in _NOTHING:
            action = getattr(self, f"on_{name.lower()}", None)
            if action is None:
                raise DamagedError(f"its pickle has the opcode {name}, which no file of a checkpoint has")
            action(arg)

    def take(self, count: int) -> list[Any]:
        taken = self.stack[len(self.stack) - count :]
        if len(taken) < count:
            raise DamagedError("its pickle takes more from the stack than there is")
        del self.stack[len(self.stack) - count :]
        return taken

    def take_marked(self) -> list[Any]:
        return self.take(len(self.stack) - self.marks.pop())

    def on_mark(self, _arg: Any) -> None:
        self.marks.append(len(self.stack))

    def on_memoize(self, _arg: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def on_pop(self, _arg: Any) -> None:
        self.stack.pop()

    def on_pop_mark(self, _arg: Any) -> None:
        self.take_marked()

    def on_dup(self, _arg: Any) -> None:
        self.stack.append(self.stack[-1])

    def on_append(self, _arg: Any) -> None:
        self.extend(self.take(1))

    def on_appends(self, _arg: Any) -> None:
        self.extend(self.take_marked())

    on_additems = on_appends

    def on_setitem(self, _arg: Any) -> None:
        self.update(self.take(2))

    def on_setitems(self, _arg: Any) -> None:
        self.update(self.take_marked())

    def on_global(self, arg: str) -> None:
        self.stack.append(Object(arg.replace(" ", ".", 1)))

    def on_stack_global(self, _arg: Any) -> None:
        module, name = self.take(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise DamagedError("its pickle names a class that has no name")
        self.stack.append(Object(f"{module}.{name}"))

    def on_ext1(self, arg: int) -> None:
        self.stack.append(Object(f"extension.{arg}"))

    on_ext2 = on_ext4 = on_ext1

    def on_persid(self, arg: str) -> None:
        self.stack.append(Reference(arg))

    def on_binpersid(self, _arg: Any) -> None:
        self.stack.append(Reference(self.stack.pop()))

    def on_reduce(self, _arg: Any) -> None:
        function, args = self.take(2)
        self.call(function, args)

    on_newobj = on_reduce

    def on_newobj_ex(self, _arg: Any) -> None:
        function, args, _named = self.take(3)
        self.call(function, args)

    def on_obj(self, _arg: Any) -> None:
        function, *args = self.take_marked()
        self.call(function, tuple(args))

    def on_inst(self, arg: str) -> None:
        self.call(Object(arg.replace(" ", ".", 1)), tuple(self.take_marked()))

    def on_build(self, _arg: Any) -> None:
        (state,) = self.take(1)
        if isinstance(self.stack[-1], Object):
            self.stack[-1].state = state

    def call(self, function: Any, args: Any) -> None:
        name = getattr(function, "name", "?")
        args = tuple(args) if isinstance(args, list | tuple) else (args,)
        self.copied += sum(len(value) for value in (args, *args[:1]) if isinstance(value, list | tuple | dict | str))
        if self.copied > _MOST_COPIED:
            raise UnreadError(f"its pickle copies more than {_MOST_COPIED:,} values")
        try:
            self.stack.append(_PLAIN[name](*args) if name in _PLAIN else Object(name, args, called=True))
        except (TypeError, ValueError, AttributeError):  # of arguments that are only described
            self.stack.append(Object(name, args, called=True))

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        else:
            self.of_object(target).update((len(target.items) + place, value) for place, value in enumerate(values))

    def update(self, flat: list[Any]) -> None:
        target = self.stack[-1]
        (target if isinstance(target, dict) else self.of_object(target)).update(_pairs(flat))

    @staticmethod
    def of_object(target: Any) -> dict[Any, Any]:
        if not isinstance(target, Object):
            raise DamagedError("its pickle adds items to a value that has none")
        return target.items


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    for key in flat[::2]:
        waiting: list[Any] = [key] if isinstance(key, tuple) else []
        for count, part in enumerate(waiting):
            if count > _MOST_KEY:
                raise UnreadError(f"a key in its pickle has more than {_MOST_KEY:,} parts")
            waiting.extend(part[: _MOST_KEY + 1] if isinstance(part, tuple) else ())
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _dict(value: Any) -> dict[Any, Any]:
    return dict(value) if isinstance(value, dict) else _pairs([part for pair in value for part in pair])


#: Opcodes that make a container of what lies above the last mark. A frozenset can be a key.
_MARKED: Mapping[str, Callable[[list[Any]], Any]] = {"TUPLE": tuple, "FROZENSET": tuple, "LIST": list, "DICT": _pairs}
