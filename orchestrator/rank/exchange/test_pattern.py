"""Test patterns for collectives: inputs and expected results, small integers that are exact in every dtype and order of sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .case_layout import COMBINED, Segment

#: Elements until a pattern repeats: a prime, so that a chunk at a wrong offset is detected.
PERIOD = 4093
#: Up to this value, sums of integers are exact in bfloat16 and fit int8.
_EXACT = 127

DTYPES = {
    "float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8, "int8": torch.int8,
}  # fmt: skip


class Patterns:
    """The patterns of the ranks of one group for one operator and dtype."""

    def __init__(self, ranks: Sequence[int], operator: str, dtype: str) -> None:
        self._ranks, self._operator, self._dtype = tuple(ranks), operator, DTYPES[dtype]
        self._made: dict[int, torch.Tensor] = {}

    def tile(self, segment: Segment) -> torch.Tensor:
        if segment.of not in self._made:
            self._made[segment.of] = self._pattern(segment.of)
        pattern, start = self._made[segment.of], segment.index % PERIOD
        times = -(-(start + segment.size) // PERIOD)
        return pattern.repeat(times)[start : start + segment.size]

    def _pattern(self, of: int) -> torch.Tensor:
        if of != COMBINED:
            return source(of, len(self._ranks), self._operator).to(self._dtype)
        every = torch.stack([source(rank, len(self._ranks), self._operator) for rank in self._ranks])
        if self._operator == "avg":
            return every.sum(dim=0).to(self._dtype) / len(self._ranks)
        return combine(every, self._operator).to(self._dtype)


def source(rank: int, world: int, operator: str) -> torch.Tensor:
    """One period of the input of ``rank`` among ``world`` ranks, as int64."""
    index = torch.arange(PERIOD)
    if operator == "prod":
        return 1 + ((index + 5 * rank) % max(4, -(-world // 6)) == 0).to(torch.int64)
    if operator == "band":
        bit = torch.bitwise_left_shift(torch.ones_like(index), index % 7)
        return torch.where(index % max(world, 2) == rank % max(world, 2), _EXACT - bit, _EXACT)
    limit = _EXACT if operator in ("bor", "bxor") else min(16, max(1, _EXACT // world))
    return 1 + (index * 7 + index // 13 + rank * 11) % limit


def combine(every: torch.Tensor, operator: str) -> torch.Tensor:
    """The rows of ``every`` combined by ``operator``."""
    if operator in ("sum", "prod"):
        return every.sum(dim=0) if operator == "sum" else every.prod(dim=0)
    if operator in ("min", "max"):
        return every.amin(dim=0) if operator == "min" else every.amax(dim=0)
    function = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[operator]
    result = every[0]
    for row in every[1:]:
        result = function(result, row)
    return result
