"""Traces of PARAM and Chakra become items to replay; what is missing in them is named."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.collectives.sizing import traces
from orchestrator.collectives.sizing.trace_recording import TraceError


def ring(operation: str, ranks: int) -> str:
    del operation, ranks
    return "ring"


def replay(gpus: int | None = None, **files: Any) -> traces.Replay:
    """``files``: rank0=… is rank0.json."""
    return traces.replay(
        {f"{name}.json": json.dumps(replayed).encode() for name, replayed in files.items()}, ring, gpus
    )


def refused(gpus: int | None = None, **files: Any) -> str:
    with pytest.raises(TraceError) as caught:
        replay(gpus, **files)
    return str(caught.value)


def param(comms: str, elements: int, start: int | None = None, **more: Any) -> dict[str, Any]:
    entry = {
        "comms": comms,
        "in_msg_size": elements,
        "out_msg_size": elements,
        "dtype": "Float",
        "world_size": 4,
        **more,
    }
    return entry if start is None else {**entry, "startTime_ns": start}


def chakra(number: int, kind: str, start: int = 0, length: int = 0, **attributes: Any) -> dict[str, Any]:
    """A node as protobuf's JSON has it: 64-bit numbers are texts, what is 0 is left out."""
    node = {"id": str(number), "name": f"node{number}", "type": kind}
    node |= {"startTimeMicros": str(start), "durationMicros": str(length)} if start else {}
    values = [
        {"name": name, "stringVal" if isinstance(value, str) else "int64Val": str(value)}
        for name, value in attributes.items()
    ]
    return {**node, "attr": values}


def observed(name: str, elements: int, dtype: str = "Float", **more: Any) -> dict[str, Any]:
    attributes = {
        "collective_name": name, "dtype": dtype, "in_msg_nelems": elements, "out_msg_nelems": elements, "pg_name": "0", **more,
    }  # fmt: skip
    return {
        "id": 5, "name": "record_param_comms", "inputs": {"values": [[], 7, ["0", "default_pg"], 1]},
        "attrs": [{"name": key, "value": value} for key, value in attributes.items()],
    }  # fmt: skip


KEYS = st.sampled_from(
    ["comms", "in_msg_size", "out_msg_size", "dtype", "world_size", "pg_id", "global_ranks", "src_rank", "dst_rank", "startTime_ns",
     "type", "attr", "attrs", "name", "inputs", "values", "value", "NodeType", "comm_type", "comm_size", "id"]
)  # fmt: skip


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    words = st.sampled_from(["all_reduce", "send", "float", "COMM_COLL_NODE", "record_param_comms", "comm_size"])
    return st.lists(inner | words, max_size=4) | st.dictionaries(KEYS, inner | words, max_size=6)


GROUPS = {
    "id": 4,
    "name": "## process_group:init ##",
    "inputs": {"values": [json.dumps([{"pg_name": "0", "ranks": [], "group_size": 2, "group_count": 1}])]},
}
JSONIZED = "COMM_COLL_NODE"


def test_a_param_trace_counts_elements_and_keeps_starts_as_gaps() -> None:
    trace = [
        param("all_reduce", 1000, 0),
        {"comms": "wait", "req": 0},
        param("allreduce", 1000, 5_000_000),
        param("broadcast", 7, 6_000_000),
    ]
    replayed = replay(trace=trace)
    assert replayed.ranks == 4 and replayed.collectives == 3
    assert [item.document for item in replayed.items] == [
        {"operation": "all-reduce", "bytes": 4000, "trials": 2, "gap_ms": [0.0, 5.0], "gap_from": "start", "algorithm": "ring",
         "dtype": "float32"},
        {"operation": "broadcast", "bytes": 28, "trials": 1, "gap_ms": 1.0, "gap_from": "start", "algorithm": "ring",
         "dtype": "float32"},
    ]  # fmt: skip
    assert any("from one start to the next" in note for note in replayed.notes)


def test_sizes_follow_nccl_tests() -> None:
    gathered = param("all_gather_base", 10, out_msg_size=40)
    scattered = param("reduce_scatter_base", 40, out_msg_size=10, dtype="half")
    replayed = replay(
        trace=[gathered, scattered, param("all_to_allv", 12, dtype="long"), {"comms": "barrier", "world_size": 4}]
    )
    assert [(item.operation, item.bytes) for item in replayed.items] == [
        ("all-gather", 160), ("reduce-scatter", 80), ("all-to-all", 96), ("barrier", 0),
    ]  # fmt: skip


def test_groups_of_param_are_named_by_its_init_entries() -> None:
    init = {"comms": "init", "pg_id": 1, "global_ranks": [0, 2]}
    replayed = replay(trace=[init, param("all_reduce", 1, pg_id=1), param("all_reduce", 1, pg_id=0)])
    assert [item.groups for item in replayed.items] == [((0, 2),), ()]


def test_groups_that_work_at_the_same_time_are_one_item() -> None:
    def rank(*group: int) -> list[dict[str, Any]]:
        return [param("all_reduce", 8, pg_id=9, global_ranks=list(group)), param("all_reduce", 2)]

    replayed = replay(rank0=rank(0, 1), rank1=rank(0, 1), rank2=rank(2, 3), rank3=rank(2, 3))
    assert [(item.bytes, item.trials, item.groups) for item in replayed.items] == [
        (32, 1, ((0, 1), (2, 3))),
        (8, 1, ()),
    ]


def test_a_send_and_its_receive_are_one_exchange() -> None:
    sends = [param("isend", 5, src_rank=0, dst_rank=1, world_size=2)]
    receives = [param("irecv", 5, src_rank=0, dst_rank=1, world_size=2)]
    replayed = replay(rank0=sends, rank1=receives)
    assert [(item.operation, item.bytes, item.groups) for item in replayed.items] == [("send-recv", 20, ())]
    assert replayed.ranks == 2
    assert replay(both=[*sends, *receives], gpus=3).items[0].groups == ((0, 1),)


def test_two_ranks_that_send_to_each_other_first_are_no_deadlock() -> None:
    def rank(me: int) -> list[dict[str, Any]]:
        return [
            param("irecv", 5, src_rank=1 - me, dst_rank=me, world_size=2),
            param("isend", 5, src_rank=me, dst_rank=1 - me, world_size=2),
        ]

    replayed = replay(rank0=rank(0), rank1=rank(1))
    assert [(item.operation, item.trials, item.groups) for item in replayed.items] == [("send-recv", 1, ())]


def test_pairs_that_share_a_rank_are_replayed_one_after_the_other() -> None:
    def rank(me: int) -> list[dict[str, Any]]:
        forward = [param("send", 5, src_rank=me, dst_rank=me + 1, world_size=4)] if me < 3 else []
        return forward + ([param("recv", 5, src_rank=me - 1, dst_rank=me, world_size=4)] if me else [])

    replayed = replay(rank0=rank(0), rank1=rank(1), rank2=rank(2), rank3=rank(3))
    assert [item.groups for item in replayed.items] == [((0, 1), (2, 3)), ((1, 2),)]


def test_chakra_by_its_converter_has_gaps_between_end_and_start() -> None:
    nodes = [
        {"version": "0.0.4"},
        chakra(1, "COMP_NODE", 10, 80),
        chakra(2, JSONIZED, 100, 50, comm_type=0, comm_size=4096),
        chakra(3, JSONIZED, 400, 50, comm_type=2, comm_size=1024),
        chakra(4, JSONIZED, 451, 1, comm_type=7, comm_size=64),
    ]
    text = "\n".join(json.dumps(node) for node in nodes)
    replayed = traces.replay({"chakra.0.json": text.encode()}, ring, 4)
    assert [(item.operation, item.bytes) for item in replayed.items] == [
        ("all-reduce", 4096),
        ("all-gather", 4096),
        ("reduce-scatter", 64),
    ]
    assert [sum(item.gaps_ms) for item in replayed.items] == pytest.approx([0.0, 0.25, 0.001])
    assert {item.gap_from for item in replayed.items} == {"end"}


def test_a_collective_without_a_duration_has_no_end() -> None:
    """Its gap counts from its start: an end at its start would make the replay slower than the training."""
    nodes = [
        chakra(1, JSONIZED, 100, 50, comm_type=0, comm_size=4096),
        chakra(2, JSONIZED, 400, 0, comm_type=0, comm_size=4096),
        chakra(3, JSONIZED, 1400, 50, comm_type=0, comm_size=4096),
    ]
    replayed = replay(gpus=2, trace=nodes)
    assert [(item.trials, item.gaps_ms, item.gap_from) for item in replayed.items] == [
        (2, (0.0, pytest.approx(0.25)), "end"), (1, (pytest.approx(1.0),), "start")
    ]  # fmt: skip
    assert any("some collectives of the trace have no end" in note for note in replayed.notes)


def depending(number: int, kind: str, length: int, *needs: int, **attributes: Any) -> dict[str, Any]:
    node = chakra(number, kind, 0, 0, **attributes)
    return {**node, "durationMicros": str(length), "dataDeps": [str(need) for need in needs]}


def backward_pass() -> list[dict[str, Any]]:
    """A step of DDP: two buckets, of which the first is reduced while the backward pass goes on; then the next step's."""
    reduced = {"comm_type": 0, "comm_size": 4096}
    return [
        depending(1, "COMP_NODE", 30_000),
        depending(2, JSONIZED, 0, 1, **reduced),
        depending(3, "COMP_NODE", 10_000, 1),
        depending(4, JSONIZED, 0, 3, **reduced),
        depending(5, "COMP_NODE", 5_000, 2, 4),
        depending(6, JSONIZED, 0, 5, **{**reduced, "comm_size": 64}),
    ]


def test_collectives_start_when_what_they_depend_on_has_ended() -> None:
    replayed = replay(gpus=2, trace=backward_pass())
    assert replayed.timed
    assert [item.document for item in replayed.items] == [
        {
            "operation": "all-reduce",
            "bytes": 4096,
            "trials": 1,
            "after": [[0, 30.0]],
            "algorithm": "ring",
            "dtype": "uint8",
        },
        {
            "operation": "all-reduce",
            "bytes": 4096,
            "trials": 1,
            "after": [[0, 40.0]],
            "algorithm": "ring",
            "dtype": "uint8",
        },
        {
            "operation": "all-reduce",
            "bytes": 64,
            "trials": 1,
            "after": [[1, 5.0]],
            "algorithm": "ring",
            "dtype": "uint8",
        },
    ]


def test_many_steps_depend_on_the_step_before_alone() -> None:
    """Older steps are reached by way of the step before, so that the dependencies do not grow with the trace."""
    nodes: list[dict[str, Any]] = []
    chain: list[int] = []
    for step in range(30):
        first = len(nodes) + 1
        nodes += [
            depending(first, "COMP_NODE", 3_000 + step, *chain),
            depending(first + 1, JSONIZED, 0, first, comm_type=0, comm_size=4096),
            depending(first + 2, "COMP_NODE", 1_000 + step, first),
            depending(first + 3, JSONIZED, 0, first + 2, comm_type=0, comm_size=4096),
        ]
        chain = [first + 2, first + 1, first + 3]
    replayed = replay(gpus=2, trace=nodes)
    last = [(back, round(ms, 3)) for item in replayed.items[-2:] for back, ms in item.after]
    assert last == [(1, 3.029), (2, 4.058)]


def test_the_longest_path_of_all_ranks_counts() -> None:
    slower = [{**node, "durationMicros": "50000"} if node["id"] == "3" else node for node in backward_pass()]
    replayed = replay(rank0=backward_pass(), rank1=slower)
    assert [item.after for item in replayed.items] == [((0, 30.0),), ((0, 80.0),), ((1, 5.0),)]


def test_dependencies_in_a_circle_and_on_absent_nodes_are_named() -> None:
    circle = [depending(1, "COMP_NODE", 5, 2), depending(2, JSONIZED, 0, 1, comm_type=0, comm_size=8)]
    assert "trace.json: nodes depend on each other in a circle: " in refused(gpus=2, trace=circle)
    absent = [depending(1, "COMP_NODE", 5), depending(2, JSONIZED, 0, 9, comm_type=0, comm_size=8)]
    assert refused(gpus=2, trace=absent) == "trace.json: node 2: depends on node 9, which the trace lacks"


def test_a_workload_graph_is_read_as_well() -> None:
    graph = {
        "workload_graph": [
            {"Id": 1, "Name": "a", "NodeType": 4},
            {"Id": 2, "Name": "b", "NodeType": 7, "comm_type": 6, "comm_size": 32},
        ]
    }
    assert [(item.operation, item.bytes) for item in replay(gpus=4, trace=graph).items] == [("all-to-all", 32)]


def test_the_observers_trace_names_collective_type_and_group() -> None:
    trace = {
        "schema": "1.1.0-chakra.0.0.4",
        "nodes": [GROUPS, observed("allreduce", 10, "BFloat16"), observed("wait", 0)],
    }
    replayed = replay(trace=trace)
    assert (replayed.ranks, replayed.form) == (2, "Chakra execution trace")
    assert [(item.operation, item.bytes, item.dtype) for item in replayed.items] == [("all-reduce", 20, "bfloat16")]


def test_peers_of_the_observers_trace_are_places_in_the_group() -> None:
    def rank(name: str, peer: int) -> dict[str, Any]:
        node = observed(name, 3)
        node["inputs"] = {"values": [[], 7, ["0", "default_pg"], peer]}
        return {"schema": "1.1.0-chakra.0.0.4", "nodes": [GROUPS, node]}

    replayed = replay(rank0=rank("send", 1), rank1=rank("recv", 0))
    assert [(item.operation, item.bytes) for item in replayed.items] == [("send-recv", 12)]


def test_the_longest_computing_before_a_collective_counts() -> None:
    def rank(start: int) -> list[dict[str, Any]]:
        return [
            chakra(1, JSONIZED, 100, 10, comm_type=0, comm_size=8),
            chakra(2, JSONIZED, 110 + start, 10, comm_type=0, comm_size=8),
        ]

    replayed = replay(rank0=rank(1000), rank1=rank(3000))
    (item,) = replayed.items
    assert item.trials == 2 and item.gaps_ms == pytest.approx((0.0, 3.0))


@pytest.mark.parametrize(
    ("trace", "problem"),
    [
        ([], "trace.json: is empty"),
        ({}, "trace.json: is empty"),
        ([{"comms": "wait", "world_size": 4}], "trace.json: has no collective"),
        ({"traceEvents": []}, "is a Kineto (Chrome) trace"),
        ({"schema": "1.1.0", "nodes": []}, "is empty"),
        (["all_reduce"], "neither a PARAM comms trace nor a Chakra execution trace"),
        ([param("all_shuffle", 3)], "entry 1: unknown operation all_shuffle; known: all-gather, all-reduce"),
        ([{"comms": "all_reduce", "dtype": "float"}], "entry 1: all_reduce lacks in_msg_size, out_msg_size"),
        ([param("all_reduce", 3, dtype="quad")], "entry 1: unknown dtype quad"),
        ([param("all_reduce", 3, world_size=None)], "the number of ranks is not in the trace; give --gpus N"),
        ([param("all_reduce", 3, world_size=10**12)], "1,000,000,000,000 ranks: must be 0 to 100,000"),
        ([param("all_reduce", 3, global_ranks=[0, 10**12])], "1,000,000,000,001 ranks: must be <= 100,000"),
        ([param("send", 3, src_rank=0)], "entry 1: send lacks its peer: dst_rank"),
        ([param("send", 3, src_rank=0, dst_rank=1)], "rank 0 sends to rank 1, which has no recv for it"),
        ([param("recv", 3, src_rank=0, dst_rank=1)], "rank 1 receives from rank 0, which has no send for it"),
        ([chakra(7, JSONIZED, comm_type=42, comm_size=3)], "node 7: unknown operation: comm_type 42"),
        ([chakra(7, JSONIZED, comm_type=0)], "node 7: node7 lacks comm_size"),
        ([chakra(7, "COMM_SEND_NODE", comm_size=3)], "node 7: node7 lacks its peer"),
        ({"schema": "1.0.3", "nodes": [{"name": "record_param_comms"}]}, "schema 1.0.3: its record_param_comms nodes have no"),
    ],
)  # fmt: skip
def test_traces_that_cannot_be_replayed(trace: Any, problem: str) -> None:
    assert problem in refused(trace=trace)


def test_fewer_gpus_than_the_trace_has_ranks() -> None:
    assert refused(gpus=2, trace=[param("all_reduce", 3)]) == "--gpus 2: the trace has 4 ranks"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), _nested, max_leaves=12))
def test_no_json_breaks_the_reader(document: Any) -> None:
    """Whatever stands in a file, it is read or refused."""
    for text in (document, [document], {"nodes": document, "schema": "1.1.0"}, {"workload_graph": document}):
        with contextlib.suppress(TraceError):
            traces.replay({"a.json": json.dumps(text).encode()}, ring, 4)


def test_text_that_is_no_json_is_named() -> None:
    with pytest.raises(TraceError, match=r"a.json: not valid JSON: .* line 1"):
        traces.replay({"a.json": b"[{"}, ring)


def test_a_rank_without_a_trace_is_a_missing_peer() -> None:
    trace = [param("all_reduce", 4)]
    assert refused(rank0=trace, rank1=trace, rank3=trace) == "the trace of rank 2 of 4 is missing: a missing peer"
    assert "no number of a rank" in refused(rank0=trace, last=trace)


def test_a_collective_that_one_rank_lacks_is_named() -> None:
    two = [param("all_reduce", 4, world_size=2), param("broadcast", 4, world_size=2)]
    assert "rank 0 is in broadcast, which rank 1 lacks: its trace has ended" in refused(rank0=two, rank1=two[:1])
    other = [two[0], param("reduce", 4, world_size=2)]
    assert "which rank 1 lacks: it is at rank1.json: entry 2 (reduce)" in refused(rank0=two, rank1=other)


def test_ranks_that_disagree_about_the_size_are_named() -> None:
    result = refused(rank0=[param("all_reduce", 4, world_size=2)], rank1=[param("all_reduce", 5, world_size=2)])
    assert result == "rank1.json: entry 1 (all_reduce): 20 bytes, but 16 in rank0.json: entry 1 (all_reduce)"
    sent = [param("send", 4, src_rank=0, dst_rank=1, world_size=2)]
    assert "16 bytes to rank 1, which receives 8" in refused(
        rank0=sent, rank1=[param("recv", 2, src_rank=0, dst_rank=1, world_size=2)]
    )
