"""What a step costs with our ring, with the library's all-reduce, and without records of chunks and digests. No limit is set."""

from __future__ import annotations

from . import table
from .bed import Bed

RING, LIBRARY, BARE = "ring", "library", "ring, nothing recorded"


def test_the_cost_of_a_step_is_reported(bed: Bed) -> None:
    taken = table.paired(
        {
            LIBRARY: lambda: table.median(bed.steps("library", algorithm="library")),
            RING: lambda: table.median(bed.steps("ring", algorithm="ring")),
            BARE: lambda: table.median(bed.steps("bare", algorithm="ring", record=False, digest_every=0)),
        }
    )
    notes = (
        "Each figure is the median of the steps of all ranks in one run; 4 ranks, batch 64, 971,048 bytes of gradients.",
    )
    table.Table(name="steps", title="A training step", samples=taken, against=LIBRARY, notes=notes).write()
    assert all(all(value > 0 for value in values) for values in taken.values())
