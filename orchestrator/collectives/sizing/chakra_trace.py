"""Chakra execution traces: what chakra_jsonizer writes (or its protobuf form holds), a feeder's workload graph, and what
PyTorch's observer writes.

The first two hold nodes whose attributes name a collective (``comm_type``, ``comm_size`` in bytes of a rank's input,
``pg_name``); the third holds ``record_param_comms`` nodes with ``collective_name``, ``in_msg_nelems`` and ``dtype``.
"""

from __future__ import annotations

import ast
import functools
import io
import json
from collections.abc import Iterable, Mapping, Sequence
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
    """Return whether a JSON document, or the list of a file's documents, is in one of these forms."""
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
        attributes[attribute.get("name", "")] = next(
            (value for key, value in attribute.items() if key not in _ABOUT), None
        )
    return attributes


_ABOUT = ("name", "docString", "doc_string")


def _get(node: Mapping[str, Any], *names: str) -> Any:
    return next((node[name] for name in names if name in node), None)


#: Message -> number of a field -> (name, type) of schema/protobuf/et_def.proto of mlcommons/chakra; without lists of values and bytes,
#: which are no facts about a collective. A type in brackets is repeated.
_SCHEMA: Mapping[str, Mapping[int, tuple[str, str]]] = {
    "GlobalMetadata": {1: ("version", "string")},
    "AttributeProto": {
        1: ("name", "string"), 3: ("double_val", "double"), 5: ("float_val", "float"), 7: ("int32_val", "int32"), 9: ("int64_val", "int64"),
        11: ("uint32_val", "uint32"), 13: ("uint64_val", "uint64"), 15: ("sint32_val", "sint32"), 17: ("sint64_val", "sint64"),
        19: ("fixed32_val", "fixed32"), 21: ("fixed64_val", "fixed64"), 23: ("sfixed32_val", "sfixed32"), 25: ("sfixed64_val", "sfixed64"),
        27: ("bool_val", "bool"), 29: ("string_val", "string"),
    },
    "IOInfo": {1: ("values", "string")},
    "Node": {
        1: ("id", "uint64"), 2: ("name", "string"), 3: ("type", "int32"), 4: ("ctrl_deps", "[uint64]"), 5: ("data_deps", "[uint64]"),
        6: ("start_time_micros", "uint64"), 7: ("duration_micros", "uint64"), 8: ("inputs", "IOInfo"), 10: ("attr", "[AttributeProto]"),
    },
}  # fmt: skip


def read_protobuf(content: bytes) -> list[dict[str, Any]]:
    """The nodes of a trace in protobuf form (``*.et``), as its JSON form would hold them.

    A file is a row of messages, each behind its length: one GlobalMetadata, then every Node. Raises TraceError for any other file,
    with the position of the message that is wrong.
    """
    from google.protobuf import proto

    messages, stream = _messages(), io.BytesIO(content)
    nodes: list[dict[str, Any]] = []
    at, kind = 0, "GlobalMetadata"
    while at < len(content):
        try:
            message = proto.parse_length_prefixed(messages[kind], stream)
        except Exception as error:  # noqa: BLE001 the library's errors have no common class, and differ between its releases
            raise TraceError(f"byte {at}: no message {kind}: {error}") from None
        if kind == "Node":
            nodes.append(_plain(message))
        at, kind = stream.tell(), "Node"
    return nodes


@functools.cache
def _messages() -> dict[str, Any]:
    """The classes of ``_SCHEMA``. Fields that are not in it are skipped."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="chakra_trace.proto", package="chakra_trace", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in fields.items():
            made = message.field.add(name=field, number=number, label=3 if kind.startswith("[") else 1)
            single = kind.strip("[]")
            if single in _SCHEMA:
                made.type, made.type_name = made.TYPE_MESSAGE, f".chakra_trace.{single}"
            else:
                made.type = made.Type.Value(f"TYPE_{single.upper()}")
        if name == "AttributeProto":  # so that a value of 0 is told from none
            message.oneof_decl.add(name="value")
            for made in message.field[1:]:
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra_trace.{name}")) for name in _SCHEMA
    }


def _plain(value: Any) -> Any:
    """A message as a mapping of the fields that it has, and a repeated field as a list."""
    if hasattr(value, "ListFields"):
        return {field.name: _plain(part) for field, part in value.ListFields()}
    return value if isinstance(value, int | float | str) else [_plain(part) for part in value]
