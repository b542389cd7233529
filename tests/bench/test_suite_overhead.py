"""A night costs little beyond its trials: planning, rows, seal, history, judgement and reports."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.nightly import night_files

from .bed import Bed

#: To reach, as a share of the time of the trials.
OVERHEAD = 0.05
REPEATS, TRIAL_S = 20, 5.0


def test_a_night_takes_little_longer_than_its_trials(bed: Bed) -> None:
    """A night as long as the suite `quick`, against its own rows, and against the same trial by `ccbed run`, as a program each."""
    (bed.folder / "sleeps.py").write_text(f"import time\ntime.sleep({TRIAL_S})\n")
    suite = {"suite": "overhead", "trials": [{"trial": "sleeps.py", "repeats": REPEATS, "world": {"nodes": 2}}]}
    (bed.folder / "overhead.yml").write_text(json.dumps(suite))
    by_hand_s = [bed.call("run", "sleeps.py", "--nodes", "2") for _ in range(3)]
    night_s = bed.call("nightly", "overhead.yml", "--record", timeout_s=600.0)
    (directory,) = night_files.nights(Path(bed.folder) / "runs")
    rows = night_files.read_rows(directory)
    trials_s = sum(row.duration_s for row in rows)
    share = night_s / trials_s - 1
    program_share = night_s / (sorted(by_hand_s)[1] * REPEATS) - 1
    print(
        f"\n{REPEATS} trials of {TRIAL_S:g} s: night {night_s:.1f} s, its trials {trials_s:.1f} s, overhead {share:.1%}; "
        f"against {REPEATS} times the median of 3 `ccbed run` ({sorted(by_hand_s)[1]:.2f} s): {program_share:+.1%}; "
        f"to reach: under {OVERHEAD:.0%}"
    )
    assert [row.state for row in rows] == ["passed"] * REPEATS
    assert share < OVERHEAD
