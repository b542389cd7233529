"""Typed payloads of events: each is read from the mapping of an event and written back as it was; wrong types are rejected."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

import pytest

from orchestrator.core.documents import decoder
from orchestrator.model import codec, events
from orchestrator.model.event import Clock, Command, Event, History, Source
from orchestrator.model.payload import REGISTRY, Payload

CLASSES = tuple(dict.fromkeys(REGISTRY.values()))
AT, SOURCE = Clock(boot="b", mono=1.5, wall=2.5), Source(writer="w", n=1)


def event(f: str, type: Any, value: Mapping[str, Any]) -> Event:
    return Event(type=type, f=f, at=AT, source=SOURCE, value=value)


def sample(hint: Any) -> Any:
    """A JSON value of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return full(hint)
    if origin in (typing.Union, UnionType):
        return sample(next(argument for argument in arguments if argument is not NoneType))
    if origin is tuple:
        return [sample(argument) for argument in arguments if argument is not Ellipsis]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"a": sample(arguments[1])}
    if origin is typing.Literal:
        return arguments[0]
    return {int: 3, float: 0.5, str: "x", bool: True}.get(hint, {"any": [1, None]})


def full(cls: Any) -> dict[str, Any]:
    """The JSON value of a payload with all of its fields."""
    hints = typing.get_type_hints(cls)
    return {field.name: sample(hints[field.name]) for field in dataclasses.fields(cls)}


def required(cls: Any) -> dict[str, Any]:
    fields = dataclasses.fields(cls)
    needed = [field.name for field in fields if field.default is dataclasses.MISSING]
    return {name: item for name, item in full(cls).items() if name in needed}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_payload_is_written_as_it_was_read(cls: type[Payload]) -> None:
    written_null = {field.name: None for field in dataclasses.fields(cls) if codec.NULL in field.metadata}  # type: ignore[arg-type]
    shortest = {**written_null, **required(cls)}
    ordered = {field.name: shortest[field.name] for field in dataclasses.fields(cls) if field.name in shortest}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    nulls = {name: None if NoneType in typing.get_args(hints[name]) else item for name, item in ordered.items()}
    for value in (full(cls), ordered, nulls):
        data = cls.read(value)
        assert json.dumps(codec.plain(data)) == json.dumps(value)
        assert data == cls.read(value)
        hash(type(data))


@pytest.mark.parametrize("key", REGISTRY, ids=lambda key: f"{key[0]} {key[1]}")
def test_an_event_keeps_unknown_keys_and_nulls(key: tuple[str, Any]) -> None:
    value = {**full(REGISTRY[key]), "later": {"x": None}}
    optional = next((name for name in value if name not in required(REGISTRY[key]) and name != "later"), "later")
    line = codec.plain(event(*key, value | {optional: None}))
    read = decoder.event(json.dumps(line).encode()) if key[0] != "note" else event(*key, line["value"])
    assert read.kind is REGISTRY[key]
    assert getattr(read.data, optional, None) is None
    assert json.dumps(codec.plain(read)) == json.dumps(line)


def test_an_event_of_a_workload_has_no_payload() -> None:
    own = event("mine.loss", "note", {"loss": 1})
    assert (own.kind, own.data) == (None, None)


def test_a_history_is_read_by_the_classes_of_its_events() -> None:
    lines = [("gang.stop", "invoke"), ("gang.stop", "ok"), ("gang.stop", "info"), ("rank.step", "note")]
    history = History(tuple(event(f, type, {"rank": 1, "step": 2}) for f, type in lines))
    assert [e.type for e in history.of(events.GangStop)] == ["invoke"]
    assert [e.type for e in history.of(events.GangStopDone, events.RankStep)] == ["ok", "info", "note"]
    last = history.last(events.RankStep)
    assert last is not None
    assert last.data == events.RankStep(rank=1, step=2)
    assert history.first(events.NodeExit) is None


def test_a_command_has_the_payload_of_its_invoke() -> None:
    command = Command(f="checkpoint.scan", key="k", value={"dir": "/c", "lineage": [[0, 3]]})
    assert command.data == events.CheckpointScan(dir="/c", lineage=((0, 3),))


@pytest.mark.parametrize(
    ("f", "type", "value", "message"),
    [
        ("rank.exit", "note", {"rank": "1", "code": 0}, "rank.exit: value.rank: expected int, got str"),
        ("rank.exit", "note", {"rank": 1}, "rank.exit: value.object missing required field code"),
        ("rank.step", "note", {"rank": 70_000, "step": 1}, "rank.step: value.rank: expected int <= 65535"),
        ("checkpoint.scan", "ok", {"newest": {"step": -1}}, "checkpoint.scan: value.newest.step: expected int >= 0"),
        ("gang.stop", "fail", {"reason": 7}, "gang.stop: value.reason: expected str | null, got int"),
        ("fault.act", "invoke", {"act": {"inject": []}}, "fault.act: value.act: object missing required field"),
    ],
)
def test_a_wrongly_typed_value_is_rejected_with_its_place(f: str, type: Any, value: Any, message: str) -> None:
    with pytest.raises(decoder.DocumentError, match=re.escape(message)):
        decoder.event(json.dumps(codec.plain(event(f, type, value))).encode())


def test_a_payload_is_a_value() -> None:
    exited = events.NodeExit(code=-9, pid=7)
    assert repr(exited) == "NodeExit(code=-9, pid=7, left=None)"
    assert exited == events.NodeExit(code=-9, pid=7)
    assert len({exited, events.NodeExit(code=-9, pid=7)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        exited.code = 0  # type: ignore[misc]
    with pytest.raises(TypeError, match="'code'"):
        events.NodeExit(pid=7)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="codes"):
        events.NodeExit(code=1, codes=2)  # type: ignore[call-arg]


def test_the_classes_need_the_standard_library_alone() -> None:
    folder = Path(events.__file__).parent
    imported = {
        name
        for file in (*folder.glob("*.py"), folder.parent / "payload.py")
        for name in re.findall(r"^(?:from|import) ([a-z_]\w*)", file.read_text(), re.MULTILINE)
    }
    assert imported <= {"__future__", "collections", "dataclasses", "functools", "types", "typing"}
