"""``make test-frameworks FRAMEWORK=hf``: jobs of frameworks, right and resumed wrongly, drilled and judged; what is true is written by
the jobs themselves. It rewrites ``results.json`` for the cells that it ran, and exits with 1 if a verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from . import page
from .cells import CELLS, FAMILIES, Cell

BIN = Path(sys.executable).parent
FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
TIMEOUT_S = 600
#: Relative difference of sums that come in another order, soon after the resumption, and later.
ROUNDING = 1e-5
EXACT = ("data position", "RNG", "scaler")
#: What compares between worlds of another size: the state that was resumed.
RESUMED = ("weights", "optimizer", "learning rate")
#: Flaws of jobs that change nothing before a resumption: their undisturbed job is that of the right cell.
OF_RESUMPTION = re.compile(r"--broken (?!set_epoch)\S+ ?")
#: The environment of a world of one process.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}
#: Each part that was lost counts, random states too, and each bit.
STRICT = ("--require", "exact", "--accept", "none")
#: Parts that follow from others: a verdict may name them beside what was lost.
CONSEQUENCES = {"saved state", "other state", "learning rate", "scheduler", "loss"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="?", choices=[*FAMILIES, "all"], default="all")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only cells with this regular expression in their names"
    )
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "ccbed-frameworks")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="where results are added; the page shows those of the default"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="move the directory of each cell's drill there")
    options = parser.parse_args()
    cells = [cell for cell in CELLS if options.family in ("all", cell.family) and re.search(options.only, cell.name)]
    root = Path(tempfile.mkdtemp(prefix="frameworks-"))
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    counts: Counter[str] = Counter()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        for family in dict.fromkeys(cell.family for cell in cells):
            python = environment(family, options.environments)
            with bed(family, python, root):
                for cell in (cell for cell in cells if cell.family == family):
                    begun = time.monotonic()
                    row = judged(cell, python, root, options.keep)
                    counts[row["result"]] += 1
                    results[f"{family}: {cell.name}"] = {
                        **row,
                        "versions": versions(python, family),
                        "date": f"{datetime.now(UTC).date()}",
                    }
                    statement = " ".join(row["said"].split())
                    print(f"{row['result']:8} {cell.name}: {statement} ({time.monotonic() - begun:.0f} s)", flush=True)
                    options.results.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
                    if options.results == RESULTS:
                        page.PAGE.write_text(page.rendered(results))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    return int(any(result.startswith("wrong") for result in counts))


def environment(family: str, root: Path) -> Path:
    """Return the interpreter of a family's environment, made if it is not there. It shares the torch of this interpreter."""
    if not FAMILIES[family]:
        return Path(sys.executable)
    place = root / family
    python = place / "bin" / "python"
    if not (place / "done").exists():
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        site = next(place.glob("lib/python*/site-packages"))
        (site / "shared-torch.pth").write_text(
            str(Path(str(metadata.distribution("torch").locate_file(""))).resolve()) + "\n"
        )
        quiet = {**os.environ, "DS_BUILD_OPS": "0"}
        subprocess.run([python, "-m", "pip", "install", "-q", "setuptools", "wheel"], check=True, env=quiet)
        isolated = ["--no-build-isolation"] if family == "deepspeed" else []
        subprocess.run([str(python), "-m", "pip", "install", "-q", *isolated, *FAMILIES[family]], check=True, env=quiet)
        if family == "deepspeed":  # its first process group compiles an extension, for minutes
            subprocess.run(
                [python, "-c", "import deepspeed; deepspeed.init_distributed('gloo')"],
                check=True,
                env={**quiet, **ALONE},
            )
        (place / "done").touch()
    return python


class bed:  # noqa: N801 - a context manager
    """A bed of four nodes and a spare with the interpreter of a family."""

    def __init__(self, family: str, python: Path, root: Path) -> None:
        self.name, self.root = f"fw-{family}", root
        self.inventory = root / f"{self.name}.yml"
        hosts = (
            "all:\n  hosts:\n    localhost:\n      ansible_connection: local\n  vars:\n    ccbed_provider: process\n"
        )
        self.inventory.write_text(f"{hosts}    ccbed_nodes: 4\n    ccbed_spares: 1\n    ccbed_python: {python}\n")

    def __enter__(self) -> None:
        subprocess.run(
            [BIN / "ccbed", "up", self.inventory], check=True, env=variables(self.root), stdout=subprocess.DEVNULL
        )

    def __exit__(self, *_: object) -> None:
        command: list[str | Path] = [BIN / "ccbed", "down", self.name, "--force"]
        subprocess.run(command, check=False, capture_output=True, env=variables(self.root))


def undisturbed(job: str, arguments: str, python: Path, root: Path) -> tuple[Path, str]:
    """Run the job of cells without ccbed; return its directory, and the end of what it wrote if it failed."""
    clean = folder_of_jobs(root)
    launcher: list[str | Path] = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    try:
        done = subprocess.run(
            [*launcher, job, *shlex.split(arguments)], cwd=clean, check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
            env=variables(root),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return clean, f"it has not ended after {TIMEOUT_S} s"
    return clean, f"{done.stdout[-150:]} {done.stderr[-1500:]}" if done.returncode else ""


def folder_of_jobs(root: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=root))
    for file in (FOLDER / "jobs").glob("*.py"):
        shutil.copy(file, folder)
    return folder


def judged(cell: Cell, python: Path, root: Path, keep: Path | None = None) -> dict[str, Any]:
    """Run a cell undisturbed and with its fault; return the result, what is true, and what was said."""
    arguments = OF_RESUMPTION.sub("", f"{cell.arguments} ").strip()
    name = f"{cell.job} {arguments}".strip()
    clean = root / f"undisturbed {cell.family} {name}"
    if not clean.exists():
        folder, failure = undisturbed(cell.job, arguments, python, root)
        if failure:  # torchrun and FSDP2 fail now and then on their own
            print(f"the undisturbed job {name} failed and is run once more: {failure}", file=sys.stderr, flush=True)
            folder, failure = undisturbed(cell.job, arguments, python, root)
        if failure:
            return {"result": "broken", "true": [], "said": f"the undisturbed job fails: {failure}"}
        folder.rename(clean)
    drill = folder_of_jobs(root)
    command: list[str | Path] = [BIN / "ccbed", "run", *trial(cell, drill)]
    output = subprocess.run(
        command, cwd=drill, check=False, capture_output=True, text=True, timeout=2 * TIMEOUT_S, env=variables(root)
    )
    verdict = next(re.finditer(r"^(PASS|FAIL|UNKNOWN) +(.*?) +exit \d$", output.stdout, re.MULTILINE), None)
    true = sorted(set(differences(clean / "truth", drill / "truth")))
    if verdict is None:
        return {"result": "wrong: no verdict", "true": true, "said": (output.stdout + output.stderr)[-300:]}
    rows = json.loads((drill / "runs" / "latest" / "verdicts.json").read_text())
    named = parts(rows)
    result = compared(cell, verdict[1], true, named)
    named_parts, true_parts = ", ".join(sorted(named)) or "nothing", ", ".join(true) or "as undisturbed"
    statement = f"{verdict[1]}; named: {named_parts}; true: {true_parts}; {verdict[2][:220]}"
    if keep:
        shutil.move(drill, keep / f"{cell.family} {cell.name}".replace("/", "_"))
    shutil.rmtree(drill, ignore_errors=True)
    return {"result": result, "true": true, "said": statement}


def trial(cell: Cell, drill: Path) -> list[str]:
    """Return what ``ccbed run`` runs. A fault that no option names is that of a file, which is written into the drill's directory."""
    bed_of_family = ["--bed", f"fw-{cell.family}"]
    if cell.fault.startswith("-"):
        return [cell.job, *bed_of_family, *shlex.split(cell.fault), *STRICT, "--", *shlex.split(cell.arguments)]
    params = {"file": cell.job, "args": shlex.split(cell.arguments)}
    (drill / "trial.yml").write_text(
        f"trial: fault\nworkload: script\nparams: {json.dumps(params)}\n"
        f"world: {{nodes: 4, ranks_per_node: 1, backend: gloo}}\nfaults:\n  - {cell.fault}\n"
    )
    return ["trial.yml", *bed_of_family, *STRICT]


def compared(cell: Cell, verdict: str, true: list[str], named: set[str]) -> str:
    """Return whether a verdict is right. What the cell says and what the job wrote must agree first."""
    if bool(true) != cell.is_otherwise:
        return "broken: the job is not what the cell says"
    if verdict == "UNKNOWN":
        return "unknown"
    if not cell.lost:
        return "right" if verdict == "PASS" else "wrong FAIL"
    if verdict == "PASS":
        return "wrong PASS"
    if not all(set(group.split("|")) & named for group in cell.lost):
        return "wrong part"
    return "right"


def parts(rows: list[Mapping[str, Any]]) -> set[str]:
    """Return the parts of the state, and the checks, that fail."""
    failed = {row["check"] for row in rows if row["outcome"] == "fail"}
    states: Mapping[str, Any] = next(
        (row["evidence"].get("rows", {}) for row in rows if row["check"] == "resume-complete"), {}
    )
    failed |= {row["evidence"]["differs_first"] for row in rows if row["evidence"].get("differs_first")}
    return failed | {
        part for attempt in states.values() for part, state in attempt.items() if state["result"] == "fail"
    }


def differences(clean: Path, drill: Path) -> Iterator[str]:
    """Give what the last attempt of the drill did otherwise than the undisturbed job.

    A smaller world shares its data in another way: then only the state compares that it resumed.
    """
    last = {path.name.partition(".")[0]: path for path in sorted(drill.glob("*.jsonl"), key=_begun) if read(path)}
    worlds: dict[str, int] = {rank: read(path)[0].get("world", 0) for rank, path in last.items()}
    is_smaller = len(set(worlds.values())) > 1
    for path in sorted(clean.glob("*.jsonl")):
        rank = path.name.partition(".")[0]
        known = {row["step"]: row for row in read(path)}
        if rank not in last:
            yield f"rank {rank} wrote nothing"
            continue
        rows = read(last[rank])
        if is_smaller and worlds[rank] == max(worlds.values()):
            continue
        if rows[-1]["step"] < max(known):
            yield "end"
        different = {
            part
            for row in (rows[:1] if is_smaller else rows)
            for part in row
            if part != "world" and not (is_smaller and part not in RESUMED)
            if not is_equal(part, row[part], known.get(row["step"], {}).get(part))
        }
        if different != {"RNG"}:  # a random state that nothing draws from changes nothing
            yield from different


def _begun(path: Path) -> int:
    return int(path.name.split(".")[1])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def is_equal(part: str, value: Any, other: Any) -> bool:
    if part in EXACT or other is None:
        return bool(value == other)
    pairs = zip(value, other, strict=False) if isinstance(value, list) else [(value, other)]
    return all(math.isclose(first, another, rel_tol=ROUNDING, abs_tol=ROUNDING) for first, another in pairs)


def variables(root: Path) -> dict[str, str]:
    return {
        **os.environ,
        "XDG_STATE_HOME": str(root / "state"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def versions(python: Path, family: str) -> dict[str, str]:
    names = [re.split("[=<>]", package)[0] for package in ("torch", *FAMILIES[family])]
    program = "import sys\nfrom importlib.metadata import version\nfor name in sys.argv[1:]: print(version(name))"
    shown = subprocess.run([python, "-c", program, *names], check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(names, shown, strict=True))


if __name__ == "__main__":
    sys.exit(main())
