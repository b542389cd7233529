"""The report and the check of a run of 1,000,000 chunk records, each in a process of its own, with its peak of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from orchestrator.run import judging

from ..unit.collectives import collective_bulk
from .bed import program

RECORDS = 1_000_000
REPORT_S, CHECK_S, LIMIT_MIB = 8.0, 5.0, 300.0
ROOT = Path(__file__).parents[2]
OUT = Path(__file__).parent / "out"

#: A command line of ccbed, and what its process used.
PROGRAM = """
import json, os, subprocess, sys, time
begin = time.monotonic()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps({"code": os.waitstatus_to_exitcode(status), "wall_s": time.monotonic() - begin,
                  "cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}))
"""


def used(*args: str) -> dict[str, float]:
    """What a command line of ccbed used; measured beside a small process, because a child starts with its parent's peak."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, program(), *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=True,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def test_the_report_of_a_million_records_is_quick_and_small(tmp_path: Path) -> None:
    """On a busy machine the time of the processor is what counts; both are written down."""
    directory = collective_bulk.write(tmp_path / "bulk", RECORDS)
    judging.close(directory, None)
    report, check = used("report", str(directory)), used("check", str(directory))
    rows = [
        f"{what}: {row['wall_s']:.1f} s, of the processor {row['cpu_s']:.1f} s, at most {row['peak_mib']:.0f} MiB"
        for what, row in (("ccbed report (verdicts, page, CSV and JSON)", report), ("ccbed check", check))
    ]
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    text = "\n\n".join([f"# Report of {RECORDS:,} chunk records", *rows, load]) + "\n"
    OUT.mkdir(exist_ok=True)
    (OUT / "report.md").write_text(text)
    print(text)
    assert (directory / "report" / "index.html").stat().st_size < 3 << 20
    assert (report["code"], check["code"]) == (0, 1), "its evidence is synthetic: the check says so"
    assert report["cpu_s"] < REPORT_S and check["cpu_s"] < CHECK_S
    assert max(report["peak_mib"], check["peak_mib"]) < LIMIT_MIB
