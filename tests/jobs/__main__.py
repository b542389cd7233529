"""``make judge-matrix SEED=1 COUNT=8``: draws jobs, breaks and judges each, and compares the verdict with what is true.

It exits with 1 if a verdict is wrong: a PASS where the job did something else than undisturbed, a FAIL where it did not. UNKNOWN is
counted. ``--first N`` leaves out draws, so that parts can run apart.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from .draws import SHORT, Draw, differences, draws, momentum_draws

BIN = Path(sys.executable).parent
JOBS = {"job": draws, "momentum": momentum_draws}
RIGHT = {"PASS": "right", "FAIL": "right", "UNKNOWN": "unknown"}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--job", choices=sorted(JOBS), default="job")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    root = Path(tempfile.mkdtemp(prefix="judge-matrix-"))
    try:
        return _run(JOBS[options.job](options.seed, options.first + options.count)[options.first :], root)
    finally:
        subprocess.run(
            [BIN / "ccbed", "down", "matrix", "--force"], check=False, capture_output=True, env=_environment(root)
        )
        shutil.rmtree(root, ignore_errors=True)


def _run(drawn: list[Draw], root: Path) -> int:
    inventory = root / "matrix.yml"
    hosts = "all:\n  hosts:\n    localhost:\n      ansible_connection: local\n"
    inventory.write_text(f"{hosts}  vars:\n    ccbed_provider: process\n    ccbed_nodes: 4\n    ccbed_spares: 1\n")
    subprocess.run([BIN / "ccbed", "up", inventory], check=True, env=_environment(root), stdout=subprocess.DEVNULL)
    table: Counter[tuple[str, str]] = Counter()
    for draw in drawn:
        result, text = judged(draw, root)
        table[draw.flaw, result] += 1
        print(f"{result:8} {draw.name}: {text}", flush=True)
        if result not in ("right", "unknown"):
            print(
                f"         again: {' '.join([f'{draw.job}.py', '--fail-node', '2', '--', *draw.arguments])}", flush=True
            )
    for flaw in dict.fromkeys(flaw for flaw, _ in sorted(table)):
        print(
            f"{flaw:14} "
            + ", ".join(f"{count} {result}" for (own, result), count in sorted(table.items()) if own == flaw)
        )
    return int(any(result.startswith("wrong") for _, result in table))


def judged(draw: Draw, root: Path) -> tuple[str, str]:
    """(right, wrong PASS, wrong FAIL or unknown; what is true and what was said) of one draw."""
    clean, drill = root / f"clean-{draw.number}", root / f"drill-{draw.number}"
    for folder in (clean, drill):
        folder.mkdir()
        shutil.copy(Path(__file__).with_name(f"{draw.job}.py"), folder)
    arguments = [*draw.arguments]
    arguments[arguments.index("--flaw") + 1] = "none"
    torchrun: list[str | Path] = [
        BIN / "torchrun",
        "--standalone",
        "--nproc-per-node",
        "4",
        f"{draw.job}.py",
        *arguments,
        "--sleep",
        "0",
    ]
    subprocess.run(torchrun, cwd=clean, check=True, capture_output=True, timeout=900, env=_environment(root))
    command: list[str | Path] = [
        BIN / "ccbed",
        "run",
        f"{draw.job}.py",
        "--bed",
        "matrix",
        "--fail-node",
        "2",
        "--require",
        "exact",
        "--accept",
        "none",
        "--",
        *draw.arguments,
    ]
    output = subprocess.run(
        command, cwd=drill, check=False, capture_output=True, text=True, timeout=900, env=_environment(root)
    ).stdout
    verdict = next(re.finditer(r"^(PASS|FAIL|UNKNOWN) +(.*?) +exit \d$", output, re.MULTILINE), None)
    if verdict is None:
        return "wrong: no verdict", output[-300:]
    true = differences(clean, drill, SHORT if draw.kinds.get("dtype") == "bfloat16" else 1)
    expected = "FAIL" if true else "PASS"
    kind = RIGHT[verdict[1]] if verdict[1] in (expected, "UNKNOWN") else f"wrong {verdict[1]}"
    shutil.rmtree(clean)
    shutil.rmtree(drill)
    return kind, f"{verdict[1]}; true: {', '.join(true[:3]) or 'as undisturbed'}; {verdict[2][:160]}"


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(root / "state"), "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    sys.exit(main())
