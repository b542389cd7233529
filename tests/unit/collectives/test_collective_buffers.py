"""What ranks put in and what must come out: against every operation done by hand over plain lists."""

from __future__ import annotations

import functools
import itertools
import operator
from typing import Any

import pytest
import torch

from orchestrator.rank.exchange import case_layout, cases, operations
from orchestrator.rank.exchange.cases import Case, Item

WORLD = 4
RANKS = (1, 3, 4, 6)


def case(operation: str, **more: Any) -> Case:
    item = Item(**{"operation": operation, "bytes": 4 * 1003, "algorithm": "library", **more})
    return Case(number=0, item=item, groups=(RANKS,), first_step=1)


def content(case_: Case, segments: tuple[case_layout.Segment, ...]) -> list[float]:
    patterns = operations.Patterns(RANKS, case_.item.operator, case_.item.dtype)
    return [value for segment in segments for value in patterns.tile(segment).tolist()]


def given(case_: Case, me: int, chunks: int = 4) -> list[float]:
    return content(case_, case_layout.layout(case_, RANKS, me, chunks).inputs)


def wanted(case_: Case, me: int, chunks: int = 4) -> list[float]:
    return content(case_, case_layout.layout(case_, RANKS, me, chunks).outputs)


@pytest.mark.parametrize("operation", ["all-reduce", "reduce", "reduce-scatter"])
@pytest.mark.parametrize(
    ("name", "function", "dtype"),
    [
        ("sum", operator.add, "float32"), ("sum", operator.add, "bfloat16"), ("prod", operator.mul, "float16"),
        ("min", min, "int8"), ("max", max, "float64"), ("band", operator.and_, "int32"), ("bor", operator.or_, "uint8"),
        ("bxor", operator.xor, "int64"),
    ],
)  # fmt: skip
def test_reductions_are_exact_in_every_dtype(operation: str, name: str, function: Any, dtype: str) -> None:
    case_ = case(operation, operator=name, dtype=dtype, bytes=1003 * cases.DTYPES[dtype])
    inputs = [given(case_, me) for me in range(WORLD)]
    total = [
        functools.reduce(function, map(int, column) if dtype[0] in "iu" else column)
        for column in zip(*inputs, strict=True)
    ]
    edges = list(itertools.accumulate(case_.blocks, initial=0))
    for me in range(WORLD):
        expected = {
            "all-reduce": total,
            "reduce": total if me == 0 else [],
            "reduce-scatter": total[edges[me] : edges[me + 1]],
        }
        assert wanted(case_, me) == expected[operation]


def test_an_average_is_the_sum_divided() -> None:
    case_ = case("all-reduce", operator="avg")
    total = [sum(column) / 4 for column in zip(*(given(case_, me) for me in range(WORLD)), strict=True)]
    assert wanted(case_, 2) == total


def test_blocks_are_gathered_and_scattered_in_the_order_of_the_ranks() -> None:
    for operation in ("all-gather", "gather"):
        case_ = case(operation, root=1)
        everything = [value for me in range(WORLD) for value in given(case_, me)]
        assert len(everything) == 1003
        assert wanted(case_, 1) == everything
        assert wanted(case_, 2) == (everything if operation == "all-gather" else [])
    case_ = case("scatter", root=1)
    assert [value for me in range(WORLD) for value in wanted(case_, me)] == given(case_, 1) and given(case_, 0) == []


@pytest.mark.parametrize("shares", [(), (0.25, 0.25, 0.1, 0.4)])
def test_all_to_all_transposes(shares: tuple[float, ...]) -> None:
    case_ = case("all-to-all", shares=shares)
    edges = list(itertools.accumulate(case_.blocks, initial=0))
    for me in range(WORLD):
        expected = [value for source in range(WORLD) for value in given(case_, source)[edges[me] : edges[me + 1]]]
        assert wanted(case_, me) == expected


def test_broadcast_and_send_recv() -> None:
    case_ = case("broadcast", root=3)
    assert wanted(case_, 0) == given(case_, 3) == wanted(case_, 3) and given(case_, 0) == []
    pair = case("send-recv")
    assert [wanted(pair, me) for me in range(WORLD)] == [given(pair, me - 1) for me in range(WORLD)]


def test_ranks_and_places_have_different_contents() -> None:
    """A chunk of the wrong rank, or from the wrong place, is no right result."""
    for name in ("sum", "prod", "band", "bor"):
        rows = [operations.source(rank, WORLD, name) for rank in range(WORLD)]
        for left, right in itertools.combinations(rows, 2):
            assert not torch.equal(left, right)
        assert all(not torch.equal(row, row.roll(1)) for row in rows)


@pytest.mark.parametrize("world", [2, 4, 16, 63, 126])
def test_sums_stay_exact_in_the_narrowest_dtypes(world: int) -> None:
    total = sum(operations.source(rank, world, "sum") for rank in range(world))
    assert isinstance(total, torch.Tensor) and int(total.max()) <= 127


def test_the_library_has_its_own_block_apart_and_algorithms_have_it_in_its_place() -> None:
    apart = case_layout.layout(case("all-gather"), RANKS, 1, 0)
    inside = case_layout.layout(case("all-gather"), RANKS, 1, 4)
    assert apart.own == (1003, 1003 + 251) and inside.own == (251, 502) == inside.parts[1]
    assert apart.size == 1254 and inside.size == 1003 and apart.checked == inside.checked == (0, 1003)


def test_scratch_of_an_all_to_all_has_the_sizes_of_the_input() -> None:
    case_ = case("all-to-all", shares=(0.25, 0.25, 0.1, 0.4))
    result = case_layout.layout(case_, RANKS, 2, 12)
    lengths = [stop - start for start, stop in result.parts]
    assert lengths == [*case_.blocks, *[case_.blocks[2]] * 4, *case_.blocks] and result.size == sum(lengths)
