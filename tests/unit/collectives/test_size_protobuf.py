"""Chakra traces in protobuf form, on bytes that are encoded here by the rules of the wire format and the schema's numbers."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.collectives.sizing import chakra_trace, traces
from orchestrator.collectives.sizing.trace_recording import TraceError


def ring(operation: str, ranks: int) -> str:
    return "ring"


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def counted(field: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def attribute(name: str, value: Any) -> bytes:
    """AttributeProto: name 1; int64_val 9, bool_val 27, string_val 29, double_val 3."""
    if isinstance(value, bool):
        expected = number(27, value)
    elif isinstance(value, int):
        expected = number(9, value)
    elif isinstance(value, float):
        expected = varint(3 << 3 | 1) + struct.pack("<d", value)
    else:
        expected = counted(29, value)
    return counted(10, counted(1, name) + expected)


def node(id: int, type: int, start: int = 0, length: int = 0, name: str = "", inputs: str = "", **values: Any) -> bytes:
    """Node: id 1, name 2, type 3, data_deps 5, start 6, duration 7, inputs 8, attr 10; what is 0 is left out."""
    parts = [number(field, value) for field, value in ((1, id), (3, type), (6, start), (7, length)) if value]
    parts += [counted(2, name or f"node{id}"), counted(5, varint(3) + varint(300))]
    parts += [counted(8, counted(1, inputs) + counted(2, "[]"))] if inputs else []
    parts += [attribute(key, value) for key, value in values.items()]
    return b"".join(parts)


def file(*messages: bytes) -> bytes:
    """GlobalMetadata with its version, then the nodes, each behind its length."""
    return b"".join(varint(len(item)) + item for item in (counted(1, "0.0.4"), *messages))


WORLD = json.dumps([json.dumps([{"pg_name": "0", "ranks": [0, 1, 2, 3]}])])
TRACE = file(
    node(1, 1, name="## process_group:init ##", inputs=WORLD),
    node(2, 4, 10, 80),
    node(3, 7, 100, 50, comm_type=0, comm_size=1 << 20, pg_name="0", is_cpu_op=False, share=0.5),
    node(4, 7, 400, 50, comm_type=2, comm_size=1024, pg_name="0"),
)


def test_a_trace_in_protobuf_is_replayed_as_the_same_one_in_json() -> None:
    replayed = traces.replay({"chakra.0.et": TRACE}, ring)
    assert (replayed.form, replayed.ranks, replayed.collectives, replayed.timed) == (
        "Chakra execution trace",
        4,
        2,
        True,
    )
    expected = [(item.operation, item.bytes, *(round(gap, 3) for gap in item.gaps_ms)) for item in replayed.items]
    assert expected == [("all-reduce", 1 << 20), ("all-gather", 4096, 0.25)]
    nodes = [{**item, "attr": item.get("attr", [])} for item in chakra_trace.read_protobuf(TRACE)]
    text = "\n".join(map(json.dumps, nodes))
    assert traces.replay({"chakra.0.json": text.encode()}, ring).items == replayed.items


def test_files_of_several_ranks_are_matched_by_the_number_in_their_names() -> None:
    files = {
        f"chakra.{rank}.et": file(node(1, 5 if rank == 0 else 6, 10, 5, comm_size=64, comm_src=0, comm_dst=1))
        for rank in range(2)
    }
    (item,) = traces.replay(files, ring).items
    assert (item.operation, item.bytes) == ("send-recv", 64)


def test_every_kind_of_number_is_read() -> None:
    values = [
        number(7, -3), number(9, -(1 << 40)), number(11, 7), number(13, (1 << 64) - 1), number(15, 5), number(17, 4),
        varint(19 << 3 | 5) + struct.pack("<I", 9), varint(23 << 3 | 5) + struct.pack("<i", -9), number(27, 1),
        varint(25 << 3 | 1) + struct.pack("<q", -1), varint(3 << 3 | 1) + struct.pack("<d", 0.25),
    ]  # fmt: skip
    (result,) = chakra_trace.read_protobuf(file(b"".join(counted(10, counted(1, "x") + item) for item in values)))
    read = [next(value for key, value in item.items() if key != "name") for item in result["attr"]]
    assert read == [-3, -(1 << 40), 7, (1 << 64) - 1, -3, 2, 9, -9, True, -1, 0.25]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (TRACE[:-5], "byte 226: no message Node: "),
        (file(b"\x0a"), "byte 8: no message Node: "),
        (file(b"\x0b\x01"), "byte 8: no message Node: "),
        (file(counted(3, "x")), "neither a PARAM comms trace nor a Chakra execution trace"),
        (file(counted(2, b"\xff")), "byte 8: no message Node: "),
        (file(counted(10, b"\x0a\x09x")), "byte 8: no message Node: "),
        (b"\x07\n\x050.0.4" + b"\xff" * 11, "byte 8: no message Node: "),
        (b"\xff" * 5, "byte 0: no message GlobalMetadata: "),
        (file(node(9, 7, comm_type=0)), "chakra.0.et: node 9: node9 lacks comm_size"),
        (file(node(9, 7, comm_type=42, comm_size=3)), "node 9: unknown operation: comm_type 42"),
        (file(), "chakra.0.et: is empty"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(content: bytes, expected: str) -> None:
    with pytest.raises(TraceError) as caught:
        traces.replay({"chakra.0.et": content}, ring, 4)
    assert expected in str(caught.value) and str(caught.value).startswith("chakra.0.et: ")


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(content: bytes) -> None:
    with contextlib.suppress(TraceError):
        chakra_trace.read_protobuf(content)


@given(st.integers(0, len(TRACE) - 1), st.integers(0, 255))
def test_no_damage_breaks_the_replay(place: int, byte: int) -> None:
    with contextlib.suppress(TraceError):
        traces.replay({"chakra.0.et": TRACE[:place] + bytes([byte]) + TRACE[place + 1 :]}, ring)
