"""What ranks put in and what must come out: against every operation done by hand over plain lists."""

from __future__ import annotations

import functools
import itertools
import operator
from typing import Any

import pytest
import torch

from orchestrator.rank.collective import cases
from orchestrator.rank.collective.cases import Case, Item
from orchestrator.rank.exchange import case_layout, test_pattern

WORLD = 4
RANKS = (1, 3, 4, 6)


def case(operation: str, **more: Any) -> Case:
    item = Item(**{"operation": operation, "bytes": 4 * 1003, "algorithm": "library", **more})
    return Case(number=0, item=item, groups=(RANKS,), first_step=1)


def content(one: Case, segments: tuple[case_layout.Segment, ...]) -> list[float]:
    patterns = test_pattern.Patterns(RANKS, one.item.operator, one.item.dtype)
    return [value for segment in segments for value in patterns.tile(segment).tolist()]


def given(one: Case, me: int, chunks: int = 4) -> list[float]:
    return content(one, case_layout.layout(one, RANKS, me, chunks).inputs)


def wanted(one: Case, me: int, chunks: int = 4) -> list[float]:
    return content(one, case_layout.layout(one, RANKS, me, chunks).outputs)


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
    one = case(operation, operator=name, dtype=dtype, bytes=1003 * cases.DTYPES[dtype])
    inputs = [given(one, me) for me in range(WORLD)]
    total = [
        functools.reduce(function, map(int, column) if dtype[0] in "iu" else column)
        for column in zip(*inputs, strict=True)
    ]
    edges = list(itertools.accumulate(one.blocks, initial=0))
    for me in range(WORLD):
        expected = {
            "all-reduce": total,
            "reduce": total if me == 0 else [],
            "reduce-scatter": total[edges[me] : edges[me + 1]],
        }
        assert wanted(one, me) == expected[operation]


def test_an_average_is_the_sum_divided() -> None:
    one = case("all-reduce", operator="avg")
    total = [sum(column) / 4 for column in zip(*(given(one, me) for me in range(WORLD)), strict=True)]
    assert wanted(one, 2) == total


def test_blocks_are_gathered_and_scattered_in_the_order_of_the_ranks() -> None:
    for operation in ("all-gather", "gather"):
        one = case(operation, root=1)
        everything = [value for me in range(WORLD) for value in given(one, me)]
        assert len(everything) == 1003
        assert wanted(one, 1) == everything
        assert wanted(one, 2) == (everything if operation == "all-gather" else [])
    one = case("scatter", root=1)
    assert [value for me in range(WORLD) for value in wanted(one, me)] == given(one, 1) and given(one, 0) == []


@pytest.mark.parametrize("shares", [(), (0.25, 0.25, 0.1, 0.4)])
def test_all_to_all_transposes(shares: tuple[float, ...]) -> None:
    one = case("all-to-all", shares=shares)
    edges = list(itertools.accumulate(one.blocks, initial=0))
    for me in range(WORLD):
        expected = [value for source in range(WORLD) for value in given(one, source)[edges[me] : edges[me + 1]]]
        assert wanted(one, me) == expected


def test_broadcast_and_send_recv() -> None:
    one = case("broadcast", root=3)
    assert wanted(one, 0) == given(one, 3) == wanted(one, 3) and given(one, 0) == []
    pair = case("send-recv")
    assert [wanted(pair, me) for me in range(WORLD)] == [given(pair, me - 1) for me in range(WORLD)]


def test_ranks_and_places_have_different_contents() -> None:
    """A chunk of the wrong rank, or from the wrong place, is no right result."""
    for name in ("sum", "prod", "band", "bor"):
        rows = [test_pattern.source(rank, WORLD, name) for rank in range(WORLD)]
        for left, right in itertools.combinations(rows, 2):
            assert not torch.equal(left, right)
        assert all(not torch.equal(row, row.roll(1)) for row in rows)


@pytest.mark.parametrize("world", [2, 4, 16, 63, 126])
def test_sums_stay_exact_in_the_narrowest_dtypes(world: int) -> None:
    total = sum(test_pattern.source(rank, world, "sum") for rank in range(world))
    assert isinstance(total, torch.Tensor) and int(total.max()) <= 127


def test_the_library_has_its_own_block_apart_and_algorithms_have_it_in_its_place() -> None:
    apart = case_layout.layout(case("all-gather"), RANKS, 1, 0)
    inside = case_layout.layout(case("all-gather"), RANKS, 1, 4)
    assert apart.own == (1003, 1003 + 251) and inside.own == (251, 502) == inside.parts[1]
    assert apart.size == 1254 and inside.size == 1003 and apart.checked == inside.checked == (0, 1003)


def test_scratch_of_an_all_to_all_has_the_sizes_of_the_input() -> None:
    one = case("all-to-all", shares=(0.25, 0.25, 0.1, 0.4))
    found = case_layout.layout(one, RANKS, 2, 12)
    lengths = [stop - start for start, stop in found.parts]
    assert lengths == [*one.blocks, *[one.blocks[2]] * 4, *one.blocks] and found.size == sum(lengths)
