"""Decode JSON of a bundle into the model's dataclasses; this is the only place that checks types, ranges and depth.

Other modules rely on the types; ``bundle.schema.json`` beside this file lists them. Unknown keys are ignored, because a later
version may add keys without a new format number; `ccbed run X/trial.json` rejects them, because users edit that file. Numbers
are finite and at most ``LARGEST``, values nest at most ``DEPTH`` levels, and a key appears once in an object. Numbers that
JSON does not have (NaN, Infinity) are rejected; ccbed writes them as text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec

from ...model.event import Event
from ...model.events import CollectivePlan, field_types
from ...model.events.field_types import RANKS, STEPS, TABLE
from ...model.payload import REGISTRY, hints
from ...model.plan import Plan
from ...model.trial import Trial

T = TypeVar("T")

DEPTH = 32
LARGEST = 10**18
#: The largest number of seconds of a clock or a limit.
SECONDS = 10**11
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_PLACE = re.compile(r"(.*) - at `(?:key in )?\$\.?(.*)`", re.DOTALL)


class About(TypedDict, total=False):
    """``bundle.json``."""

    format: int
    run: str
    ccbed: str
    bed: str
    command: str
    reason: str
    twin: bool
    chunks: dict[str, Any]


class Fingerprint(TypedDict, total=False):
    """``fingerprint.json``: facts by name, and those that differ between nodes."""

    mixed: dict[str, dict[str, Any]]
    untold: list[str]
    code: str
    data: str
    backend: str


class DocumentError(ValueError):
    """``place: reason`` within the document."""


def parse(data: bytes) -> Any:
    """The value of a JSON text, within the limits. Raises DocumentError."""
    try:
        value = _decode(data)
    except RecursionError:
        raise DocumentError(f"nested more than {DEPTH} levels deep") from None
    except ValueError as error:  # msgspec's errors and UnicodeDecodeError
        raise DocumentError(f"not valid JSON: {error}") from None
    excess = _excess(value, "", 0)
    if excess:
        raise DocumentError(excess)
    return value


def _decode(data: bytes) -> Any:
    """The value, with ``?`` for the surrogates by which Python writes what is not UTF-8 in the name of a file."""
    try:
        return msgspec.json.decode(data)
    except ValueError:
        if b"\\ud" not in data:
            raise
    return msgspec.json.decode(json.dumps(json.loads(data), ensure_ascii=False).encode(errors="replace"))


def parse_document(data: bytes) -> Any:
    """Parse a whole file as ``parse`` does, and reject a key that appears twice in an object as well."""
    value = parse(data)
    repeated: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated.extend(key for key in dict.fromkeys(keys) if keys.count(key) > 1)

    json.loads(data, object_pairs_hook=once)
    if repeated:
        raise DocumentError(f"{repeated[0]}: appears twice in an object")
    return value


def convert(cls: type[T] | Any, value: Any) -> T:
    """``value`` of ``parse`` as ``cls``, a type that msgspec knows. Raises DocumentError with the place of the first wrong part."""
    try:
        result = msgspec.convert(value, type=cls)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DocumentError(_reason(str(error))) from None
    for check in _RANGES.get(cls, ()):
        problem = check(result)
        if problem:
            raise DocumentError(problem)
    return result


def event(line: bytes) -> Event:
    """A line of a history, or of the event file of a node. Raises DocumentError."""
    return as_event(parse(line))


def as_event(value: Any) -> Event:
    """Raises DocumentError."""
    result: Event = convert(Event, value)
    schema = value_type(result.f, result.type)
    if schema is not None:
        try:
            msgspec.convert(result.value, type=schema)
        except msgspec.ValidationError as error:
            raise DocumentError(f"{result.f}: value.{_reason(str(error))}") from None
    if result.f == CollectivePlan.NAME and schema is not None:
        _check_cases(result.data)
    return result


def _reason(message: str) -> str:
    """msgspec's ``Expected `int`, got `str` - at `$.world.nodes``` -> ``world.nodes: expected int, got str``."""
    match = _PLACE.fullmatch(message)
    reason, place = (match[1], match[2]) if match else (message, "")
    reason = reason[:1].lower() + reason[1:].replace("`", "")
    return f"{place}: {reason}" if place else reason


def _excess(value: Any, place: str, depth: int) -> str:
    """Return what exceeds a limit, with its place; empty if nothing does."""
    kind = type(value)
    if kind is dict or kind is list:
        if depth >= DEPTH:
            return f"{place}: nested more than {DEPTH} levels deep"
        for key, item in value.items() if kind is dict else enumerate(value):
            inner = type(item)
            if (inner is int or inner is float) and not -LARGEST <= item <= LARGEST:
                return f"{place}.{key}: a number beyond ±10^18".lstrip(".")
            if (inner is dict or inner is list) and item and (problem := _excess(item, f"{place}.{key}", depth + 1)):
                return problem.lstrip(".")
    return "a number beyond ±10^18" if kind in (int, float) and not -LARGEST <= value <= LARGEST else ""


def _event_range(event: Event) -> str:
    """The figures of an event that are not in its value."""
    if not (abs(event.t) <= SECONDS and abs(event.at.mono) <= SECONDS and abs(event.at.wall) <= SECONDS):
        return f"t, at: no time of a clock (more than {SECONDS:,} s)"
    if event.epoch is not None and not 0 <= event.epoch <= STEPS:
        return f"epoch: must be 0 to {STEPS:,} (got {event.epoch})"
    return "" if event.seq >= 0 and event.source.n >= 0 else "seq, source.n: must be >= 0"


def _check_cases(plan: CollectivePlan) -> None:
    """Raises DocumentError for more steps x ranks than readers hold a table of."""
    cases = plan.cases or ()
    iterations = [case.iterations or 0 for case in cases]
    first_steps = [1 if case.first_step is None else case.first_step for case in cases]
    strides = [1 if case.stride is None else case.stride for case in cases]
    last = max(
        (first + count * stride for first, count, stride in zip(first_steps, iterations, strides, strict=True)),
        default=0,
    )
    ranks = max([plan.world or 0, *(rank + 1 for case in cases for group in case.groups or () for rank in group)])
    if last * max(ranks, 1) > TABLE or sum(iterations) > TABLE:
        raise DocumentError(f"collective.plan: more than {TABLE:,} iterations x ranks")


def _trial_range(trial: Trial) -> str:
    world = trial.world
    if not (world.nodes >= 1 and world.ranks_per_node >= 1 and world.size <= RANKS):
        return f"world: must have 1 to {RANKS:,} ranks (got {world.nodes} x {world.ranks_per_node})"
    return ""


def _plan_range(plan: Plan) -> str:
    if plan.last_step is not None and not 0 <= plan.last_step <= STEPS:
        return f"last_step: must be 0 to {STEPS:,} (got {plan.last_step})"
    for field, name in (("run", plan.run), ("bed", plan.bed)):
        if not _NAME.fullmatch(name):
            return f"{field}: must be a name of letters, digits, . _ and -"
    return "" if len(plan.slots) <= RANKS else f"slots: must be at most {RANKS:,}"


_RANGES: Mapping[type, tuple[Callable[[Any], str], ...]] = {
    Event: (_event_range,),
    Trial: (_trial_range,),
    Plan: (_plan_range,),
}


def value_type(name: str, kind: str) -> Any:
    """The type of the value of an event, made when the first event of that type is read; None: any value is right.

    A key that has a default may be absent or null. Keys that a class does not have are allowed: a later version may add some.
    """
    known = REGISTRY.get((name, kind))
    checked: Any = _checked
    return checked(known) if known and (name, kind) != ("note", "invoke") else None


@functools.cache
def _checked(cls: Any) -> Any:
    """A structure with the fields of a dataclass; msgspec converts to structures faster than to anything else."""
    annotations = hints(cls)
    fields: Any = [(field.name, _hint(annotations[field.name]), *_default(field)) for field in dataclasses.fields(cls)]
    return msgspec.defstruct(cls.__name__, fields, kw_only=True, gc=False)


def _default(field: dataclasses.Field[Any]) -> tuple[()] | tuple[None]:
    missing = dataclasses.MISSING
    return () if field.default is missing and field.default_factory is missing else (None,)


def _hint(hint: Any) -> Any:
    """The same type with msgspec's ranges, and with structures for dataclasses."""
    origin: Any = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Literal:
        return type(arguments[0])  # another version of ccbed may know further values
    if origin is Annotated:
        return Annotated[_hint(arguments[0]), *map(_meta, hint.__metadata__)]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _checked(hint)
    if origin in (types.UnionType, typing.Union):
        return functools.reduce(operator.or_, map(_hint, arguments))
    if origin is None:
        return hint
    inner = tuple(argument if argument is Ellipsis else _hint(argument) for argument in arguments)
    return origin[inner]


def _meta(limit: Any) -> Any:
    if not isinstance(limit, field_types.Range):
        return limit
    limits: dict[str, Any] = {name: value for name, value in dataclasses.asdict(limit).items() if value is not None}
    return msgspec.Meta(**limits)
