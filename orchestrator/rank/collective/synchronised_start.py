"""What comes before the clock of a measured iteration: everybody there, the buckets of the links empty, and off at once."""

from __future__ import annotations

import torch
import torch.distributed as dist


class LineUp:
    """One rank's place at the start line. ``drain``: bytes that empty the bucket of a link; 0: links are not shaped.

    The barrier comes before the shift that empties the buckets, because they fill up again while ranks wait for each other.
    The shift ends at its own time on each rank, and an early one would count its waiting for the others as time of the
    collective: so the shift is the first round of a barrier by dissemination (each rank tells the one 1, 2, 4, … ahead that
    it is there), whose other rounds are of one byte. They take as long as as many small messages, which fills little.
    """

    def __init__(self, rank: int, world: int, drain: int, device: torch.device) -> None:
        self._rank, self._world = rank, world
        self._rounds = rounds(world, drain)
        self._buffers = torch.zeros(2, max(drain, 1), dtype=torch.uint8, device=device)

    def ready(self) -> None:
        """Return on all ranks at about the same time."""
        if self._world < 2:
            return
        dist.barrier()
        for distance, size in self._rounds:
            ahead, behind = (self._rank + distance) % self._world, (self._rank - distance) % self._world
            sent, got = self._buffers[0, :size], self._buffers[1, :size]
            pair = [dist.P2POp(dist.irecv, got, behind), dist.P2POp(dist.isend, sent, ahead)]
            for waiting in dist.batch_isend_irecv(pair):
                waiting.wait()


def rounds(world: int, drain: int) -> list[tuple[int, int]]:
    """Distance and bytes of every round; none where there is nothing to empty."""
    if not drain:
        return []
    distances = [1 << bit for bit in range((world - 1).bit_length())]
    return [(distance, drain if distance == 1 else 1) for distance in distances]
