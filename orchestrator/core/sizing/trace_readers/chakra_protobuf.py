"""Chakra execution traces in protobuf form (``*.et``) -> the read_nodes that their JSON form would hold.

A file is a row of messages, each behind its length: one GlobalMetadata, then every Node (schema/protobuf/et_def.proto of
mlcommons/chakra). Only what a replay needs is kept; fields that are not known are skipped, as protobuf wants it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .recording import TraceError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
#: A varint has at most so many bytes.
_LONGEST = 10

Value = int | bytes
Read = Callable[[Any], Any]


def read_nodes(content: bytes) -> list[dict[str, Any]]:
    """Raises TraceError for any other file, with the position of the first wrong byte."""
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
