"""The additive digest: shards add up, every change shows, no tensor raises anything but Undigestible."""

# mypy: disable-error-code="no-untyped-call,unused-ignore"
from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

from orchestrator.rank.watcher import digest, small_tensors
from orchestrator.rank.watcher.checkpoints import tensor_parts

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.uint8,
    torch.complex64, torch.complex128, torch.float8_e4m3fn,
]  # fmt: skip


def values(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.rand(count, generator=generator).mul(100).to(dtype)


def digest_of(item: Any, name: str = "w") -> int:
    return digest.tensor(name, item)


def by_definition(name: str, item: torch.Tensor) -> int:
    """Element by element, as the module's docstring says."""
    total = 0
    for index, bits in enumerate(item.view(torch.int32).tolist()):
        table = int(digest._table(item.device)[index % digest.CHUNK])
        total += digest._odd("chunk", index // digest.CHUNK) * table * bits
    return total * digest._odd("name", name) % 2**64


def test_a_digest_is_the_sum_that_is_documented() -> None:
    item = values(digest.CHUNK + 300)
    assert digest_of(item) == by_definition("w", item)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_runs_of_any_lengths_add_up(dtype: torch.dtype) -> None:
    item = values(200_000, dtype)
    numbers = random.Random(1)
    for _ in range(5):
        cuts = sorted({0, len(item), *(numbers.randrange(len(item)) for _ in range(6))})
        parts = [digest.piece("w", item[a:b], start=a) for a, b in itertools.pairwise(cuts)]
        assert sum(parts) % 2**64 == digest_of(item)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_boxes_along_any_axis_add_up(axis: int) -> None:
    full = values(30 * 40 * 50).view(30, 40, 50)
    sizes = [7, 0, full.shape[axis] - 7]
    total, offset = 0, 0
    for part in full.split(sizes, axis):
        offsets = tuple(offset if other == axis else 0 for other in range(3))
        total += digest.piece("w", part, digest.Box(tuple(full.shape), offsets))
        offset += part.shape[axis]
    assert total % 2**64 == digest_of(full)


def test_a_shard_of_more_elements_than_one_pass_takes_has_the_indices_of_the_whole() -> None:
    """Of the other shard all bits are 0, so that it adds nothing."""
    full = torch.zeros(digest.CHUNK * 8 + 1, 2, dtype=torch.int8)
    full[:, 0] = 3
    assert digest.piece("w", full[:, :1], digest.Box(tuple(full.shape), (0, 0))) == digest_of(full)


def test_every_change_shows() -> None:
    item = values(70_000)
    before = digest_of(item)
    for index in (0, 1, 65_535, 65_536, 69_999):
        for bit in (0, 15, 22, 31):
            changed = item.clone()
            changed.view(torch.int32)[index] ^= 1 << bit if bit < 31 else -(1 << 31)
            assert digest_of(changed) != before, (index, bit)
    swapped = item.clone()
    swapped[[3, 65_539]] = item[[65_539, 3]]
    assert digest_of(swapped) != before
    assert digest_of(item, "v") != before
    assert digest_of(item.flip(0)) != before
    assert digest_of(torch.cat([item[65_536:], item[:65_536]])) != before


def test_layout_in_memory_makes_no_difference() -> None:
    item = values(64 * 48).view(64, 48)
    assert digest_of(item.t().contiguous().t()) == digest_of(item)
    image = values(2 * 3 * 8 * 8).view(2, 3, 8, 8)
    assert digest_of(image.to(memory_format=torch.channels_last)) == digest_of(image)
    conjugate = torch.view_as_complex(values(200).view(100, 2)).conj()
    assert digest_of(conjugate) == digest_of(conjugate.resolve_conj())


def test_scalars_and_empty_tensors_have_digests() -> None:
    assert digest_of(torch.tensor(3.0)) == digest_of(torch.tensor([3.0])) != 0
    assert digest.total({"a": torch.empty(0, 4), "b": torch.empty(0)}) == ("0" * 16, 0)


@pytest.mark.parametrize(
    "item",
    [
        torch.ones(3).to_sparse(),
        torch.ones(3, device="meta"),
    ],
    ids=["sparse", "meta"],
)
def test_what_has_no_plain_elements_has_no_digest(item: torch.Tensor) -> None:
    with pytest.raises(digest.Undigestible):
        digest_of(item)


def test_a_subclass_is_digested_by_the_tensors_that_it_wraps() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    pair = TwoTensor(values(10), values(20)[:10])
    other = TwoTensor(values(10), values(10))
    assert digest_of(pair) != digest_of(other)


def test_modes_of_the_user_see_nothing() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[Any] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func)
            return func(*args, **(kwargs or {}))

    item = values(100)
    with Mode():
        digest.total({"w": item})
    assert calls == []


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (torch.tensor([3.0, 4.0]), 5.0),
        (torch.tensor([3.0, 4.0], dtype=torch.bfloat16), 5.0),
        (torch.full((1 << 16,), 1.0, dtype=torch.float16), 256.0),
        (torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64)), 5.0),
        (torch.tensor([3, 4]), 0.0),
        (torch.tensor([3j]), 0.0),
        (torch.tensor([3.0, 4.0]).to_sparse(), 0.0),
        (torch.empty(2, device="meta"), 0.0),
        (torch.empty(0), 0.0),
        (torch.tensor([3.0]).as_subclass(type("Wrapped", (torch.Tensor,), {})), 0.0),
    ],
    ids=str,
)
def test_the_norm_is_that_of_plain_floats_and_no_tensor_has_an_error(item: torch.Tensor, expected: float) -> None:
    assert digest.norm(item) == pytest.approx(expected)


def test_signed_sums_tell_how_far_tensors_moved_and_are_equal_for_equal_ones() -> None:
    before = values(5000) / 100
    after = before + 1e-6 * torch.sign(values(5000) - 50)
    same, moved = digest.signed_sums([before.clone()]), digest.signed_sums([after])
    assert same == digest.signed_sums([before]) and len(same) == digest.SUMS and same != moved
    size = max(abs(first - second) for first, second in zip(same, moved, strict=True)) / 2**40
    assert 1e-6 < size < 1e-6 * digest.SAMPLE


@pytest.mark.parametrize(
    "item",
    [torch.ones(3, dtype=torch.int64), torch.ones(4, 4).t()[:, :2], torch.ones(2, device="meta"), torch.ones(3).to_sparse()],
    ids=["integers", "not contiguous", "without memory", "sparse"],
)  # fmt: skip
def test_tensors_without_plain_floats_in_a_row_have_no_signed_sums(item: torch.Tensor) -> None:
    assert digest.signed_sums([item]) == []


def test_signed_sums_take_any_floats() -> None:
    items = [torch.ones(5, dtype=torch.bfloat16), torch.tensor([float("inf"), 1e30, -1e30]), torch.tensor(3.0)]
    assert len(digest.signed_sums(items)) == 3 * digest.SUMS


def small_of_all_kinds() -> list[torch.Tensor]:
    return [
        *(values(size, dtype) for dtype in DTYPES if not dtype.is_complex for size in (1, 3, 300, small_tensors.SMALL)),
        *(values(333) * factor for factor in range(900)), values(200).view(10, 20).t(), torch.tensor(2.0),
    ]  # fmt: skip


def test_small_tensors_have_one_by_one_the_digests_that_they_have_alone() -> None:
    items = small_of_all_kinds()
    assert all(map(small_tensors.is_small, items))
    sums = small_tensors.separate_sums(items)
    assert [value % 2**64 for value in sums] == [digest.piece("", item) for item in items]
    named = small_tensors.named_sums([(f"w{index}", item) for index, item in enumerate(items)])
    assert [value % 2**64 for value in named] == [digest.piece(f"w{index}", item) for index, item in enumerate(items)]


def test_what_is_digested_later_and_in_two_threads_has_the_digests_and_norms_of_each() -> None:
    items = {f"w{index}": item for index, item in enumerate(small_of_all_kinds())}
    items |= {"large": values(400_000), "complex": values(64).to(torch.complex64), "sparse": torch.ones(3).to_sparse()}
    digests, held = tensor_parts.Digests(), dict[str, tensor_parts.Part]()
    for name, item in items.items():
        digests.add(held, name, item, has_norm=True)
    digests.start()
    digests.finish()
    assert list(held) == list(items)
    assert held == {name: tensor_parts.part(item) for name, item in items.items()}
    assert held["sparse"].unit is None and held["large"].norm > 0


def test_a_small_tensor_whose_memory_is_released_before_it_is_digested_has_no_digest() -> None:
    released, kept = values(8), values(8)
    digests, held = tensor_parts.Digests(), dict[str, tensor_parts.Part]()
    for name, item in {"released": released, "kept": kept}.items():
        digests.add(held, name, item)
    released.untyped_storage().resize_(0)
    digests.finish()
    assert (held["released"].unit, held["kept"].unit) == (None, tensor_parts.part(kept).unit)
