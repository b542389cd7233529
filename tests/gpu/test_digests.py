"""Digests that the device computes are those of the CPU: of every dtype, of shards, of what is not contiguous; and their rate."""

# mypy: disable-error-code="no-untyped-call,unused-ignore"
from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from orchestrator.rank.checkpoint import tensor_digest
from orchestrator.rank.watcher import digest, states
from tests.unit.watcher.test_digest import DTYPES, values

from . import device

pytestmark = pytest.mark.gpu
Figure = Callable[[str, object], None]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 1000, 3 * digest.CHUNK + 5])
def test_a_digest_is_the_same_on_both(dtype: torch.dtype, count: int) -> None:
    item = values(count, dtype)
    assert digest.tensor("w", item.to(device.NAME)) == digest.tensor("w", item)
    assert tensor_digest.tensor(item.to(device.NAME)) == tensor_digest.tensor(item)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_shards_on_the_device_add_up_to_the_whole_on_the_cpu(axis: int) -> None:
    full = values(30 * 40 * 50).view(30, 40, 50)
    total, offset = 0, 0
    for part in full.to(device.NAME).split([7, full.shape[axis] - 7], axis):
        offsets = tuple(offset if other == axis else 0 for other in range(3))
        total += digest.piece("w", part, digest.Box(tuple(full.shape), offsets))
        offset += part.shape[axis]
    assert total % 2**64 == digest.tensor("w", full)


def test_a_tensor_that_is_not_contiguous_has_the_digest_of_its_copy() -> None:
    item = values(300 * 700).view(300, 700).to(device.NAME).t()
    assert not item.is_contiguous()
    assert digest.tensor("w", item) == digest.tensor("w", item.contiguous().cpu())


def test_a_changed_bit_on_the_device_shows() -> None:
    item = values(70_000).to(device.NAME)
    before = digest.tensor("w", item)
    item.view(torch.int32)[65_536] ^= 1
    assert digest.tensor("w", item) != before


def test_random_states_of_the_device_are_among_the_generators() -> None:
    torch.ones(1, device=device.NAME)
    before = states.generators()
    torch.rand(4, device=device.NAME)
    after = states.generators()
    assert {name for name in after if after[name] != before[name]} == {"torch" if device.IS_REHEARSAL else "cuda"}


def test_the_rate_of_digests(record_property: Figure) -> None:
    """The rate of one large tensor, and the time of as many small ones as a transformer has."""
    size = (1 << 22) if device.IS_REHEARSAL else (1 << 28)
    whole = torch.ones(size, device=device.NAME)
    small = {f"w{index}": torch.ones(4096, device=device.NAME) for index in range(300)}
    digest.prepare([whole.device])
    record_property("digest_gb_s", round(4 * size / 1e9 / _seconds(lambda: digest.tensor("w", whole)), 3))
    record_property("digest_300_small_ms", round(1e3 * _seconds(lambda: digest.total(small)), 3))


def _seconds(work: Callable[[], object]) -> float:
    """The shortest of three: a digest is a number of the CPU, so the device has ended."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)
