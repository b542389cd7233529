"""The report of a run of 1,000,000 chunk records: judged and written, in a process of its own, with its peak of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from orchestrator.run import judging

from ..unit import collective_bulk

RECORDS = 1_000_000
LIMIT_S, LIMIT_MIB = 10.0, 300.0
ROOT = Path(__file__).parents[2]
OUT = Path(__file__).parent / "out"

PROGRAM = """
import json, resource, sys, time
from pathlib import Path
from orchestrator.run import judging; from orchestrator import plugins
begin = time.monotonic()
judging.conclude(plugins.discover(), Path(sys.argv[1]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"wall_s": time.monotonic() - begin, "cpu_s": time.process_time(), "peak_mib": peak}))
"""


def test_the_report_of_a_million_records_is_quick_and_small(tmp_path: Path) -> None:
    """On a busy machine the time of the processor is what counts; both are written down."""
    directory = collective_bulk.write(tmp_path / "bulk", RECORDS)
    judging.close(directory, None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=True,
    )
    document = json.loads(done.stdout)
    text = (
        f"# Report of {RECORDS:,} chunk records\n\n"
        f"{document['wall_s']:.1f} s, of the processor {document['cpu_s']:.1f} s, at most {document['peak_mib']:.0f} MiB; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores. Verdicts, page, CSV, JSON and plots included.\n"
    )
    OUT.mkdir(exist_ok=True)
    (OUT / "report.md").write_text(text)
    print(text)
    assert (directory / "report" / "index.html").stat().st_size < 3 << 20
    assert document["cpu_s"] < LIMIT_S
    assert document["peak_mib"] < LIMIT_MIB
