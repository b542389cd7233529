"""Our ring against the library's all-reduce on the same group, with and without a record of every chunk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import table
from .bed import Bed

PROGRAM = Path(__file__).parent / "programs" / "all_reduce.py"
#: The gradients of the reference classifier, and a small buffer, in elements of 4 bytes.
GRADIENTS, SMALL = 242_762, 16_384
#: To reach: recording's part of an all-reduce of 64 KB on loopback.
SHARE = 0.02


def measured(bed: Bed, elements: int, rounds: int) -> dict[str, Any]:
    out = bed.folder / f"all_reduce-{elements}.json"
    bed.call("run", str(PROGRAM), "--nodes", "4", "--", str(out), str(elements), str(rounds))
    document: dict[str, Any] = json.loads(out.read_text())
    return document


def test_our_ring_beside_the_librarys(bed: Bed) -> None:
    """No limit is set."""
    taken = measured(bed, GRADIENTS, 60)["taken"]
    notes = (
        "One all-reduce of 971,048 bytes over 4 ranks on this machine, taken in turns on one group; rank 0's time.",
    )
    table.Table(name="all_reduce", title="All-reduce", samples=taken, against="library", notes=notes).write()
    assert all(min(times) > 0 for times in taken.values())


def test_recording_is_a_small_part_of_a_small_all_reduce(bed: Bed) -> None:
    """What its records take of the ring's time; the difference of two medians says less, as loopback varies by more."""
    measured_s = measured(bed, SMALL, 400)
    taken, records, record_s = measured_s["taken"], measured_s["records"], measured_s["record_s"]
    plain, recorded = (table.median(taken[name]) for name in ("ring", "ring, recorded"))
    share = records * record_s / plain
    summary = f"{records} records of {record_s * 1e6:.2f} us are {share:.2%} of the ring's time; to reach: at most {SHARE:.0%}."
    notes = (
        f"An all-reduce of 65,536 bytes over 4 ranks on this machine, in turns. {summary}",
        f"Median with records against without: {recorded / plain - 1:+.1%}.",
    )
    more = {"share": share, "difference": recorded / plain - 1}
    table.Table(
        name="recording", title="Recording every chunk", samples=taken, against="ring", notes=notes, more=more
    ).write()
    assert share <= SHARE
