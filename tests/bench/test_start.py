"""A script's whole life, argv to exit: forked from a warm bed, with journal, verdicts and sealed bundle, or by torchrun."""

from __future__ import annotations

from . import table, torchrun
from .bed import Bed

NOOP = torchrun.PROGRAMS / "noop.py"
CCBED, TORCHRUN = "ccbed run noop.py", "torchrun noop.py"


def test_a_warm_bed_starts_a_script_at_least_eight_times_as_fast(bed: Bed) -> None:
    taken = table.paired(
        {TORCHRUN: lambda: torchrun.whole(NOOP), CCBED: lambda: bed.call("run", str(NOOP), "--nodes", "4")}
    )
    note = (
        "The same file: init_process_group and one all-reduce on 4 ranks. ccbed: verdicts and sealed bundle included."
    )
    results = table.Table(
        name="start", title="Start of a gang, argv to exit", samples=taken, against=TORCHRUN, notes=(note,)
    )
    results.write()
    assert results.ratio(CCBED) >= 8
