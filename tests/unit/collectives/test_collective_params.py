"""What users may write for collectives, and what is said about the rest, before anything is started."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from orchestrator.collectives.plugins.workloads import collective, emulate
from orchestrator.collectives.rank import measuring
from orchestrator.model.bed import LinkSpec
from orchestrator.rank.exchange import cases, sizes

Params = collective.Params


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (("971048",), (971048,)),
        (("1K:8K",), (1024, 2048, 4096, 8192)),
        (("1K:64K:4",), (1024, 4096, 16384, 65536)),
        (("1K:10K",), (1024, 2048, 4096, 8192)),
        (("2M", "1k", "1K"), (2 << 20, 1 << 10)),
        (("1KiB:2kb",), (1024, 2048)),
        (("4:9:1.5",), (4, 6, 9)),
    ],
)
def test_sizes_double_or_grow_by_a_factor_or_stand_alone(text: tuple[str, ...], expected: tuple[int, ...]) -> None:
    assert sizes.sizes(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1K:0", "at least 1 (got '0') in '1K:0'"),
        ("0", "at least 1"),
        ("64K:1K", "must be at least the first"),
        ("1K:8K:1", "factor"),
        ("1K:8K:nan", "factor"),
        ("1K:8K:1.0001", "at most 1000"),
        ("1K:2K:3:4", "FIRST:LAST"),
        ("big", "must be bytes"),
        ("1.5", "whole number"),
    ],
)
def test_a_bad_size_is_named(text: str, reason: str) -> None:
    (problem,) = collective.check(Params(sizes=(text,)))
    assert problem.startswith("sizes: ") and reason in problem


def test_groups_are_counted_or_written_out() -> None:
    assert sizes.groups("", 4) == ((0, 1, 2, 3),)
    assert sizes.groups("2", 4) == ((0, 1), (2, 3))
    assert sizes.groups("2,0/3,1", 4) == ((0, 2), (1, 3))
    for text, reason in (
        ("3", "do not divide"), ("0,1/1,2", "one group only"), ("0/1,2", "same number"), ("0,4", "ranks 0..3"), ("a", "must be"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=reason):
            sizes.groups(text, 4)


def test_shares_lose_nothing_and_leave_nobody_without() -> None:
    assert sizes.split(256, (0.25, 0.25, 0.10, 0.4)) == (64, 64, 26, 102)
    assert sum(sizes.split(1001, (1 / 3, 1 / 3, 1 / 3))) == 1001
    with pytest.raises(ValueError, match="is none"):
        sizes.split(4, (0.25, 0.25, 0.05, 0.45))
    assert sizes.shares_problem((0.5, 0.4)) == "must sum to 1 (they sum to 0.9)"
    assert sizes.shares_problem((1.5, -0.5)) == "each must be above 0"


def test_cases_are_every_combination_and_steps_follow_one_another() -> None:
    params = Params(sizes=("1K", "4K"), algorithm=("ring", "library"), dtype=("float32", "int8"), iterations=10)
    all_cases = cases.cases(collective.items(params), 4)
    assert [(algorithm.item.bytes, algorithm.item.dtype, algorithm.item.algorithm) for algorithm in all_cases[:3]] == [
        (1024, "float32", "ring"), (1024, "float32", "library"), (1024, "int8", "ring"),
    ]  # fmt: skip
    assert [entry.first_step for entry in all_cases] == [1, 11, 21, 31, 41, 51, 61, 71]
    assert all_cases[-1].last_step == collective.last_step(params) == 80


def test_algorithms_of_one_size_take_turns_and_steps_are_numbered_as_they_are_carried_out() -> None:
    params = Params(sizes=("1K", "4K"), algorithm=("ring", "star", "library"), iterations=4)
    all_cases = cases.cases(collective.items(params), 4, in_turn=True)
    assert [(entry.first_step, entry.stride, entry.last_step) for entry in all_cases] == [
        (1, 3, 10), (2, 3, 11), (3, 3, 12), (13, 3, 22), (14, 3, 23), (15, 3, 24),
    ]  # fmt: skip
    assert [tuple(algorithm.number for algorithm in among) for among in cases.turns(all_cases)] == [
        (0, 1, 2),
        (3, 4, 5),
    ]
    assert all_cases[-1].last_step == collective.last_step(params) == 24


def test_what_differs_in_more_than_the_algorithm_does_not_take_turns() -> None:
    items = [cases.Item(operation="all-reduce", bytes=1024, trials=trials, algorithm="ring") for trials in (2, 3)]
    all_cases = cases.cases([*items, replace(items[1], algorithm="star")], 4, in_turn=True)
    assert [(entry.first_step, entry.stride) for entry in all_cases] == [(1, 1), (3, 2), (4, 2)]
    apart = cases.cases([items[1], replace(items[1], algorithm="star")], 4)
    assert [(entry.first_step, entry.stride) for entry in apart] == [(1, 1), (4, 1)]


def test_a_size_is_read_as_nccl_tests_reads_it() -> None:
    def sizes_of(operation: str) -> tuple[int, int]:
        (case,) = cases.cases([cases.Item(operation=operation, bytes=6438912)], 4)
        return case.per_rank, case.total

    assert sizes_of("all-gather") == (1609728, 6438912)
    assert sizes_of("all-reduce") == (6438912, 4 * 6438912)
    assert sizes_of("all-to-all") == (6438912, 4 * 6438912)


def test_operators_multiply_the_cases_of_reductions_only_and_a_barrier_has_one() -> None:
    more = Params(operation="all-gather", operator=("sum", "max"))
    assert len(collective.items(more)) == 1
    assert len(collective.items(Params(operator=("sum", "max")))) == 2
    assert len(collective.items(Params(operation="barrier", sizes=("1K:1M",), dtype=("int8", "int32")))) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"operation": "allreduce"}, "operation: must be one of all-reduce, "),
        ({"sizes": ("1023",)}, "sizes: 1023 is not a multiple of the 4 bytes of float32"),
        ({"sizes": ("2",)}, "sizes: must hold an element of float32, 4 bytes (got 2)"),
        ({"dtype": ("float8",)}, "dtype: must be one of float32, float64, "),
        ({"operator": ("band",)}, "operator: band of float32 is not defined; defined: sum, prod, min, max, avg"),
        ({"operator": ("avg",), "dtype": ("int32",)}, "operator: avg of int32 is not defined; defined: sum, prod, "),
        ({"operator": ("mean",)}, "operator: must be one of sum, prod, "),
        ({"iterations": 0}, "iterations: must be >= 1 (got 0)"),
        ({"warmup": -1}, "warmup: must be >= 0 (got -1)"),
        ({"over": "p99"}, "over: must be one of chunk, max_rank, mean_rank, cct (got 'p99')"),
        ({"shares": (0.5, 0.5)}, "shares: is for all-to-all only (got it for all-reduce)"),
        ({"operation": "all-to-all", "shares": (0.5, 0.4)}, "shares: must sum to 1 (they sum to 0.9) (got 0.5, 0.4)"),
        ({"algorithm": ("rong",)}, "algorithm: unknown algorithm; all-reduce has "),
        ({"algorithm": ()}, "algorithm: needs at least one value"),
        ({"algorithm": ("auto",), "probe": False}, "probe: algorithm auto needs the probe (got false)"),
        ({"over": "chunk", "record": False}, "record: over chunk needs the record of every chunk (got false)"),
        ({"drain": -2}, "drain: must be >= 0 bytes, or -1 (got -2)"),
        ({"gap_ms": -1.0}, "gap_ms: must be >= 0 (got -1.0)"),
        ({"gap_ms": math.inf}, "gap_ms: must be finite (got inf)"),
        ({"probe_s": math.nan}, "probe_s: must be > 0 and finite (got nan)"),
        ({"groups": "-1,0"}, "groups: must be a number of groups, or ranks such as 0,1/2,3 (got '-1,0')"),
    ],
)
def test_each_bad_value_is_told_by_name(change: dict[str, object], expected: str) -> None:
    given = Params(**{"operation": "all-reduce", "algorithm": ("library",), **change})  # type: ignore[arg-type]
    assert [entry[: len(expected)] for entry in collective.check(given)] == [expected]


def test_an_algorithm_of_another_operation_names_those_that_do_it() -> None:
    (problem,) = collective.check(Params(operation="broadcast", algorithm=("ring",)))
    assert problem.startswith("algorithm: ring does not do broadcast; broadcast has ") and "library, auto" in problem


@pytest.mark.parametrize("text", ["chain:100000", "chain:0", "auto:segments=4"])
def test_parameters_that_are_none_are_told(text: str) -> None:
    (problem,) = collective.check(Params(operation="broadcast", algorithm=(text,)))
    assert problem.startswith("algorithm: ") and ("NAME:KEY=VALUE" in problem or "auto has no parameters" in problem)


def test_a_parameter_that_an_algorithm_lacks_is_told() -> None:
    (problem,) = collective.check(Params(algorithm=("ring:segments=4",)))
    assert problem == "algorithm: ring has no parameter segments (got 'ring:segments=4')"


@pytest.mark.parametrize(
    ("change", "world", "expected"),
    [
        ({"groups": "2"}, 5, "groups: 5 ranks do not divide into 2 groups of one size (got 2)"),
        ({"groups": "0,7"}, 4, "groups: the world has ranks 0..3 (got '0,7')"),
        ({"operation": "broadcast", "root": 4}, 4, "root: a group has ranks 0..3 (got 4)"),
        ({"operation": "broadcast", "root": 2, "groups": "2"}, 4, "root: a group has ranks 0..1 (got 2)"),
        ({"operation": "all-to-all", "shares": (0.5, 0.5)}, 4, "shares: needs a value for each of 4 ranks (got 2)"),
        ({"operation": "send-recv"}, 1, "groups: send-recv needs at least 2 ranks in a group (got 1)"),
        (
            {"operation": "all-gather", "sizes": ("1K",)}, 3,
            "sizes: library does all-gather in 3 parts of one size; 1024 bytes of float32 do not divide by 3 (1020 bytes do)",
        ),
    ],
)  # fmt: skip
def test_what_a_world_cannot_do_is_told_before_anything_starts(
    change: dict[str, object], world: int, expected: str
) -> None:
    given = Params(**{"algorithm": ("library",), **change})  # type: ignore[arg-type]
    assert collective.check(given) == []
    assert collective.fits(given, world) == [expected]


def test_what_fits_has_no_problems() -> None:
    every = Params(sizes=("1K:1M",), algorithm=("ring", "library", "auto"), groups="2", dtype=("float32", "bfloat16"))
    assert collective.check(every) == [] and collective.fits(every, 4) == []
    uneven = Params(operation="all-to-all", algorithm=("library",), shares=(0.25, 0.25, 0.10, 0.4))
    assert collective.check(uneven) == [] and collective.fits(uneven, 4) == []


ITEM = {"operation": "all-reduce", "bytes": 971048, "trials": 8, "gap_ms": 1.5, "algorithm": "ring", "dtype": "float32"}


def test_items_are_replayed_in_order_with_scaled_gaps() -> None:
    gather = {"operation": "all-gather", "bytes": 6438912, "groups": [[0, 2], [1, 3]]}
    params = emulate.Params(items=(ITEM, gather), gap_scale=2.0)
    assert emulate.check(params) == [] and emulate.fits(params, 4) == []
    first, second = cases.cases(emulate.items(params), 4)
    assert (first.item.gap_ms, first.first_step, first.last_step) == (3.0, 1, 8)
    assert (second.groups, second.first_step) == (((0, 2), (1, 3)), 9)
    assert emulate.last_step(params) == 9


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({}, "items: item 0: operation: is missing"),
        ({**ITEM, "bytes": "1K"}, "items: item 0: bytes: must be a whole number (got '1K')"),
        ({**ITEM, "size": 3}, "items: item 0: size: is not a key of an item; known: operation, bytes, "),
        ({**ITEM, "trials": True}, "items: item 0: trials: must be a whole number (got True)"),
        ({**ITEM, "groups": [0, 1]}, "items: item 0: groups: must be a list of lists of ranks "),
        ({**ITEM, "shares": 5}, "items: item 0: shares: must be a list (got 5)"),
        ({**ITEM, "shares": [True]}, "items: item 0: shares: must be numbers (got [True])"),
        ({**ITEM, "gap_ms": math.inf}, "items: item 0: gap_ms: must be finite (got inf)"),
        ({**ITEM, "algorithm": "ring:4"}, "items: item 0: algorithm: must be NAME or NAME:KEY=VALUE"),
        ({**ITEM, "bytes": 3}, "items: item 0: bytes: must hold an element of float32, 4 bytes (got 3)"),
        ({**ITEM, "algorithm": "rong"}, "items: item 0: algorithm: unknown algorithm; all-reduce has "),
    ],
)
def test_a_bad_item_is_told_with_its_place(item: dict[str, object], expected: str) -> None:
    assert emulate.check(emulate.Params(items=(item,)))[0].startswith(expected)


def test_a_scale_of_gaps_is_a_number() -> None:
    for scale in (-1.0, math.inf, math.nan):
        (problem,) = emulate.check(emulate.Params(items=(ITEM,), gap_scale=scale))
        assert problem == f"gap_scale: must be >= 0 and finite (got {scale:g})"


def test_nothing_to_replay_is_a_mistake() -> None:
    assert emulate.check(emulate.Params()) == [
        "items: must be a list such as [{operation: all-reduce, bytes: 971048, trials: 8}]"
    ]


def test_a_shaped_link_says_how_much_empties_its_bucket() -> None:
    shaped = LinkSpec(rate=10**9, burst=31250, groups=2, uplink=10**9, uplink_burst=65536)
    assert measuring.drain(measuring.BY_LINK, shaped) == 65536 + measuring.BEYOND
    assert measuring.drain(measuring.BY_LINK, LinkSpec(delay_s=0.001)) == measuring.drain(measuring.BY_LINK, None) == 0
    assert measuring.drain(0, shaped) == 0 and measuring.drain(5000, None) == 5000


def test_sizes_within_a_range_are_rounded_down_to_whole_elements_and_that_is_said() -> None:
    params = Params(sizes=("1K:1M:1.5",), dtype=("float32", "int8"))
    assert collective.check(params) == []
    requested, made = sizes.sizes(params.sizes), sorted({item.bytes for item in collective.items(params)})
    assert made == [size // 4 * 4 for size in requested] and made != list(requested)
    (message,) = collective.notes(params)
    assert message == f"6 of {len(made)} sizes are rounded down to whole elements of 4 bytes: 39,366 is 39,364"
    assert list(collective.notes(Params(sizes=("1K:1M",)))) == []
    assert collective.check(Params(sizes=("1023:4K",))) == ["sizes: 1023 is not a multiple of the 4 bytes of float32"]


def test_totals_of_a_range_are_rounded_down_to_equal_parts_of_the_ranks_where_the_algorithm_needs_them() -> None:
    params = Params(operation="all-gather", algorithm=("ring", "library"), sizes=("4K:64K:4",))
    for world in (1, 3, 4, 5, 40):
        assert collective.fits(params, world) == []
        assert [item.bytes for item in collective.items(params, world)] == [
            size // (4 * world) * (4 * world) for size in (4096, 16384, 65536) for _ in params.algorithm
        ]
        assert len(collective.items(params, world)) * 20 == collective.last_step(params), "the same steps in any world"
    own = Params(operation="all-gather", algorithm=("ring",), sizes=("4K:64K:4",))
    assert [item.bytes for item in collective.items(own, 5)] == [4096, 16384, 65536], "the ring takes unequal parts"
    single = Params(operation="all-gather", algorithm=("library",), sizes=("4K",))
    assert len(collective.fits(single, 5)) == 1, "a single size is measured as it is, or refused"
    small = Params(operation="all-gather", algorithm=("library",), sizes=("8:64",))
    assert len(collective.fits(small, 5)) == 2, "8 and 16 bytes hold no element for each of 5 ranks"
