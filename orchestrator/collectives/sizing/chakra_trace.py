"""Chakra execution traces: what chakra_jsonizer writes (or its protobuf form holds), a feeder's workload graph, and what
PyTorch's observer writes.

The first two hold nodes whose attributes name a collective (``comm_type``, ``comm_size`` in bytes of a rank's input,
``pg_name``); the third holds ``record_param_comms`` nodes with ``collective_name``, ``in_msg_nelems`` and ``dtype``.
"""

from __future__ import annotations

import ast
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import trace_recording
from .model_description import DTYPES
from .trace_recording import Event, Recording, TraceError

#: CollectiveCommType of Chakra's schema, by number.
_COLLECTIVES = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip
_NODE_TYPES = {5: "COMM_SEND_NODE", 6: "COMM_RECV_NODE", 7: "COMM_COLL_NODE"}
_GROUPS = "process_group:init"
Groups = dict[str, tuple[int, ...]]


def is_chakra_trace(document: Any) -> bool:
    """Whether a JSON document, or the list of a file's documents, is in one of these forms."""
    if isinstance(document, dict):
        return "workload_graph" in document or ("nodes" in document and "schema" in document)
    return isinstance(document, list) and any(
        isinstance(entry, dict) and ("attr" in entry or "type" in entry) for entry in document
    )


def read(document: Any, file: str, rank: int | None) -> Recording:
    """Raises TraceError with a line per wrong node."""
    if isinstance(document, dict) and "nodes" in document:
        nodes, convert = document["nodes"], _observed
        _known_schema(nodes, str(document["schema"]), file)
    else:
        nodes = document["workload_graph"] if isinstance(document, dict) else document
        convert = _node
    nodes = [node for node in nodes if isinstance(node, dict)]
    groups = _groups(nodes)
    events: list[Event] = []
    by_node: dict[int, Event] = {}
    problems: list[str] = []
    for position, node in enumerate(nodes):
        where = f"{file}: node {_get(node, 'id', 'Id')}"
        try:
            events += convert(node, where, groups, rank)
            if events and len(events) > len(by_node):
                by_node[position] = events[-1]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            problems.append(f"{where}: {error}")
    if problems:
        raise TraceError("\n".join(problems))
    ranks = [rank_ + 1 for group in groups.values() for rank_ in group]
    ranks += [rank_ + 1 for event in events for rank_ in event.peer or ()]
    ordered = trace_recording.schedule(_tasks(nodes), by_node, file) if convert is _node else None
    ordered = ordered or tuple(sorted(events, key=lambda event: event.start or 0.0))
    return Recording(file=file, rank=rank, events=ordered, world=max(ranks, default=None))


def _tasks(nodes: Sequence[Mapping[str, Any]]) -> list[trace_recording.Task]:
    return [
        trace_recording.Task(
            id=str(_get(node, "id", "Id")),
            needs=tuple(str(id) for keys in _NEEDS for id in _get(node, *keys) or ()),
            seconds=int(_get(node, *_LENGTH) or 0) / 1e6,
        )
        for node in nodes
    ]


def _node(node: Mapping[str, Any], where: str, groups: Groups, rank: int | None) -> Iterable[Event]:
    """A node of Chakra's own schema, in the names of protobuf's JSON, of its fields, or of a workload graph."""
    kind = _get(node, "type", "NodeType")
    kind = _NODE_TYPES.get(kind, "") if isinstance(kind, int) else str(kind)
    if kind not in _NODE_TYPES.values():
        return ()
    attributes = {**node, **_attributes(node)}
    name = str(_get(node, "name", "Name"))
    operation = {"COMM_SEND_NODE": "send", "COMM_RECV_NODE": "recv"}.get(kind) or _collective(attributes, name)
    if operation != "barrier" and attributes.get("comm_size") is None:
        raise TraceError(f"{name} lacks comm_size")
    group = groups.get(str(attributes.get("pg_name", "")), ())
    start, length = (int(_get(node, *keys) or 0) / 1e6 for keys in (_START, _LENGTH))
    given = int(attributes.get("comm_size") or 0)
    if given < 0:
        raise TraceError(f"{name} has a comm_size below 0")
    return (
        Event(
            operation=operation,
            size=_scaled(operation, given, group, groups),
            dtype="uint8",
            where=f"{where} ({name})",
            group=() if operation in ("send", "recv") else group,
            peer=_peer(attributes, operation, name, rank) if operation in ("send", "recv") else None,
            start=start or None,
            end=start + length if start and length else None,
        ),
    )


_NEEDS = (("dataDeps", "data_deps"), ("ctrlDeps", "ctrl_deps"))
_START = ("startTimeMicros", "start_time_micros")
_LENGTH = ("durationMicros", "duration_micros", "runtime")


def _collective(attributes: Mapping[str, Any], name: str) -> str:
    kind = attributes.get("comm_type")
    if kind is None:
        raise TraceError(f"{name} lacks comm_type")
    if str(kind).isdecimal():
        kind = _COLLECTIVES[int(kind)] if int(kind) < len(_COLLECTIVES) else kind
    operation = trace_recording.operation(str(kind))
    if not operation:
        raise TraceError(f"unknown operation: comm_type {kind} of {name}; known: {trace_recording.known_operations()}")
    return operation


def _scaled(operation: str, given: int, group: Sequence[int], groups: Groups) -> int:
    """S from a rank's input: the total where every rank gives a part of it. The size of an unnamed group: the largest known."""
    if operation not in ("all-gather", "gather"):
        return given
    ranks = len(group) or max((len(group) for group in groups.values()), default=0)
    # Without a group the total follows from the number of ranks, which the caller knows: a negative size marks this case.
    return given * ranks if ranks else -given


def _peer(attributes: Mapping[str, Any], operation: str, name: str, rank: int | None) -> tuple[int, int]:
    source, target = attributes.get("comm_src"), attributes.get("comm_dst")
    source = rank if source is None and operation == "send" else source
    target = rank if target is None and operation == "recv" else target
    if source is None or target is None:
        lacking = "comm_src" if source is None else "comm_dst"
        raise TraceError(f"{name} lacks its peer: {lacking}; the observer's trace, before chakra_converter, has it")
    return int(source), int(target)


def _observed(node: Mapping[str, Any], where: str, groups: Groups, rank: int | None) -> Iterable[Event]:
    """A node of PyTorch's ExecutionTraceObserver; times are there in traces that chakra_trace_link has linked."""
    if node.get("name") != "record_param_comms":
        return ()
    attributes = _attributes(node)
    name = attributes.get("collective_name")
    if name is None:
        raise TraceError(
            "record_param_comms lacks collective_name: a schema before 1.0.4; record it with a newer PyTorch"
        )
    operation = trace_recording.operation(str(name))
    if operation is None:
        raise TraceError(f"unknown operation {name}; known: {trace_recording.known_operations()}")
    if not operation:
        return ()
    dtype = trace_recording.dtype(str(attributes.get("dtype", "byte")))
    if dtype is None:
        raise TraceError(f"unknown dtype {attributes.get('dtype')}")
    group = groups.get(str(attributes.get("pg_name", "")), ()) or trace_recording.all_ranks(
        int(attributes.get("pg_size") or 0)
    )
    start = node.get("ts")
    given, taken = (int(attributes.get(key) or 0) for key in ("in_msg_nelems", "out_msg_nelems"))
    sizes = 0 if operation == "barrier" else trace_recording.total_size(operation, given, taken, len(group) or 1)
    return (
        Event(
            operation=operation,
            size=sizes * DTYPES[dtype],
            dtype=dtype,
            where=f"{where} ({name})",
            group=() if operation in ("send", "recv") else group,
            peer=_observed_peer(node, operation, group, rank) if operation in ("send", "recv") else None,
            start=None if start is None else float(start) / 1e6,
            end=None if start is None else (float(start) + float(node.get("inclusive_dur") or 0)) / 1e6,
        ),
    )


def _known_schema(nodes: Sequence[Any], schema: str, file: str) -> None:
    """Older observers did not say which collective it was."""
    communication = [node for node in nodes if isinstance(node, dict) and node.get("name") == "record_param_comms"]
    if any("collective_name" not in _attributes(node) for node in communication):
        raise TraceError(
            f"{file}: schema {schema}: its record_param_comms nodes have no collective_name, as those of 1.1.0 have; "
            "record it with a newer PyTorch"
        )


def _observed_peer(node: Mapping[str, Any], operation: str, group: Sequence[int], rank: int | None) -> tuple[int, int]:
    """The inputs hold the peer's place in the group behind the number of the request and the group."""
    values = node["inputs"]["values"]
    first = values[0]
    at = 2 if isinstance(first, int) or (len(first) == 2 and isinstance(first[1], bool)) else 3
    if rank is None:
        raise TraceError(f"{operation}: whose trace is it? name the file rank-N.json, and give the folder of all ranks")
    peer = group[int(values[at])]
    return (rank, peer) if operation == "send" else (peer, rank)


def _groups(nodes: Iterable[Mapping[str, Any]]) -> Groups:
    """Ranks of the process groups by name; a group without a list has all ranks."""
    groups: Groups = {}
    for node in nodes:
        if _GROUPS not in str(_get(node, "name", "Name")):
            continue
        values = (node.get("inputs") or {}).get("values", [])
        try:
            listed = json.loads((ast.literal_eval(values) if isinstance(values, str) else values)[0])
        except (ValueError, SyntaxError, LookupError):
            continue  # the observer cuts off long texts
        for listed_group in listed:
            groups[str(listed_group["pg_name"])] = tuple(
                listed_group.get("ranks") or trace_recording.all_ranks(int(listed_group["group_size"]))
            )
    return groups


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    """``attr`` (protobuf: one of many value fields) or ``attrs`` (the observer: value) as a mapping."""
    attributes: dict[str, Any] = {attribute["name"]: attribute.get("value") for attribute in node.get("attrs") or ()}
    for attribute in node.get("attr") or ():
        attributes[attribute["name"]] = next((value for key, value in attribute.items() if key not in _ABOUT), None)
    return attributes


_ABOUT = ("name", "docString", "doc_string")


def _get(node: Mapping[str, Any], *names: str) -> Any:
    return next((node[name] for name in names if name in node), None)


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
#: A varint has at most so many bytes.
_LONGEST = 10

Value = int | bytes
Read = Callable[[Any], Any]


def read_protobuf(content: bytes) -> list[dict[str, Any]]:
    """The nodes of a trace in protobuf form (``*.et``), as its JSON form would hold them.

    A file is a row of messages, each behind its length: one GlobalMetadata, then every Node (schema/protobuf/et_def.proto of
    mlcommons/chakra). Fields that are not known are skipped. Raises TraceError for any other file, with the position of the
    first wrong byte.
    """
    nodes_: list[dict[str, Any]] = []
    at, first = 0, True
    while at < len(content):
        size, begin = _varint(content, at)
        if begin + size > len(content):
            raise TraceError(f"byte {at}: a message of {size} bytes where {len(content) - begin} are left: cut off?")
        if not first:
            nodes_.append(_message(content[begin : begin + size], _NODE, begin))
        first, at = False, begin + size
    return nodes_


def _message(content: bytes, known: Mapping[int, tuple[str, int, Read]], base: int) -> dict[str, Any]:
    """The fields of ``known`` by name; ``attr`` as a list."""
    node: dict[str, Any] = {}
    for number, wire, value, at in _fields(content, base):
        if number not in known:
            continue
        name, expected, read = known[number]
        if wire != expected:
            raise TraceError(f"byte {base + at}: field {number} ({name}) is of wire type {wire}, not {expected}")
        try:
            field_value = read(value)
        except (UnicodeDecodeError, struct.error) as error:
            raise TraceError(f"byte {base + at}: field {number} ({name}): {error}") from None
        except TraceError as error:
            within = str(error).partition(": ")[2]
            raise TraceError(f"byte {base + at}: within field {number} ({name}): {within}") from None
        if name == "attr":
            node.setdefault(name, []).append(field_value)
        else:
            node[name] = field_value
    return node


def _fields(content: bytes, base: int) -> Iterator[tuple[int, int, Value, int]]:
    """(number, wire type, value, where it begins)."""
    at = 0
    while at < len(content):
        begin = at
        key, at = _varint(content, at, base)
        number, wire = key >> 3, key & 7
        if number == 0 or wire not in (_VARINT, _BYTES, *_WIDTHS):
            raise TraceError(f"byte {base + begin}: no field of a message begins with {key}")
        if wire == _VARINT:
            value, at = _varint(content, at, base)
            yield number, wire, value, begin
            continue
        size = _WIDTHS.get(wire, 0)
        if wire == _BYTES:
            size, at = _varint(content, at, base)
        if at + size > len(content):
            raise TraceError(f"byte {base + begin}: a field of {size} bytes where {len(content) - at} are left")
        yield number, wire, content[at : at + size], begin
        at += size


def _varint(content: bytes, at: int, base: int = 0) -> tuple[int, int]:
    """(value, where it ends)."""
    value = 0
    for place, byte in enumerate(content[at : at + _LONGEST]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & (1 << 64) - 1, at + place + 1
    raise TraceError(f"byte {base + at}: no length or number ends here")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _unpacked(form: str) -> Read:
    return lambda content: struct.unpack(form, content)[0]


def _text(content: bytes) -> str:
    return content.decode()


def _numbers(content: bytes) -> list[int]:
    """A packed list of numbers."""
    numbers, at = [], 0
    while at < len(content):
        number, at = _varint(content, at)
        numbers.append(number)
    return numbers


#: number -> (name, wire type, how it is read); lists and bytes are no facts about a collective.
_ATTRIBUTE: dict[int, tuple[str, int, Read]] = {
    1: ("name", _BYTES, _text), 3: ("double_val", _FIXED64, _unpacked("<d")), 5: ("float_val", _FIXED32, _unpacked("<f")),
    7: ("int32_val", _VARINT, _signed), 9: ("int64_val", _VARINT, _signed), 11: ("uint32_val", _VARINT, int),
    13: ("uint64_val", _VARINT, int), 15: ("sint32_val", _VARINT, _zigzag), 17: ("sint64_val", _VARINT, _zigzag),
    19: ("fixed32_val", _FIXED32, _unpacked("<I")), 21: ("fixed64_val", _FIXED64, _unpacked("<Q")),
    23: ("sfixed32_val", _FIXED32, _unpacked("<i")), 25: ("sfixed64_val", _FIXED64, _unpacked("<q")),
    27: ("bool_val", _VARINT, bool), 29: ("string_val", _BYTES, _text),
}  # fmt: skip
_INPUTS: dict[int, tuple[str, int, Read]] = {1: ("values", _BYTES, _text)}
_NODE: dict[int, tuple[str, int, Read]] = {
    1: ("id", _VARINT, int), 2: ("name", _BYTES, _text), 3: ("type", _VARINT, int),
    4: ("ctrl_deps", _BYTES, _numbers), 5: ("data_deps", _BYTES, _numbers),
    6: ("start_time_micros", _VARINT, int), 7: ("duration_micros", _VARINT, int),
    8: ("inputs", _BYTES, lambda content: _message(content, _INPUTS, 0)),
    10: ("attr", _BYTES, lambda content: {"name": "", **_message(content, _ATTRIBUTE, 0)}),
}  # fmt: skip
