"""Our ring against the library's all-reduce on the same group, with and without a record of every chunk. No limit is set."""

from __future__ import annotations

import json
from pathlib import Path

from . import table
from .bed import Bed

PROGRAM = Path(__file__).parent / "programs" / "all_reduce.py"


def test_our_ring_beside_the_librarys(bed: Bed) -> None:
    out = bed.folder / "all_reduce.json"
    bed.call("run", str(PROGRAM), "--nodes", "4", "--", str(out))
    taken = json.loads(out.read_text())
    notes = (
        "One all-reduce of 971,048 bytes over 4 ranks on this machine, taken in turns on one group; rank 0's time.",
    )
    table.Table(name="all_reduce", title="All-reduce", samples=taken, against="library", notes=notes).write()
    assert all(min(each) > 0 for each in taken.values())
