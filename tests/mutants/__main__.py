"""Apply each mutation to a copy of the tree, and run the tests that cover it: which test notices it, or that none does.

    python -m tests.mutants [ID…] [--jobs N] [--accept]

The coverage map is recorded first, into build/mutants, for each file of tests that has changed; all of it after a change of the
product. Exit code 1 if fewer mutations are killed than survivors.txt says; ``--accept`` writes that file anew.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from . import mutations, recorder
from .mutations import ROOT, CoveringTest, Mutation

MAP = ROOT / "build" / "mutants"
FOLDERS = ("tests/unit", "tests/sim", "tests/contract", "tests/arch")
#: Not in the map: a browser, PostgreSQL, Ansible, an engine, wheels. They are slow, and run other code than that of the list.
SLOW_FILES = {
    "tests/unit/test_pages.py", "tests/unit/test_vaulted.py", "tests/unit/test_preparing.py",
    "tests/contract/test_providers.py", "tests/contract/test_contributing.py", "tests/arch/test_contributing.py",
}  # fmt: skip
SELECTION = ("-k", "not postgresql and not browser")
#: CPU seconds of a mutation, so that a busy machine lets none survive; a test that hangs has failed after this time.
LIMIT_S, TEST_LIMIT_S, WALL_S = 60, 120, 600
HEAD = "# Written by `make mutants ARGS=--accept`: the mutations that no test notices, a tab, and how each survives.\n"


class Tree:
    """A copy of the checkout. What runs in it imports this copy, also in other processes."""

    def __init__(self, directory: Path, source: Path = ROOT) -> None:
        self.directory = directory
        listed = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, directory / name)
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.environment = {**kept, "PYTHONPATH": str(directory), "XDG_STATE_HOME": str(directory / "build" / "state")}
        code = "import orchestrator, sys; sys.exit(orchestrator.__file__)"
        imported = subprocess.run(
            [sys.executable, "-c", code], cwd="/", env=self.environment, capture_output=True, text=True
        )
        assert Path(imported.stderr.strip()).is_relative_to(directory), f"{imported.stderr} is not of {directory}"
        self._changes = 0

    def pytest(self, *arguments: str, cpu_s: int | None = None, **variables: str) -> tuple[int, str]:
        """(exit code, output). -SIGXCPU: it has used that much CPU time; what it started is ended with it."""
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *SELECTION, *arguments]
        with subprocess.Popen(
            argv, cwd=self.directory, env={**self.environment, **variables}, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            if cpu_s:
                resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
            try:
                output, _ = process.communicate(timeout=WALL_S if cpu_s else None)
            except subprocess.TimeoutExpired:
                return -signal.SIGXCPU, ""
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, output

    def write(self, file: str, text: str) -> None:
        """With a time of its own: Python tells by it whether what it has compiled is of this text."""
        path = self.directory / file
        path.write_text(text)
        self._changes += 1
        at = (ROOT / file).stat().st_mtime + self._changes
        os.utime(path, (at, at))


def record_map(tree: Tree, jobs: int) -> tuple[CoveringTest, ...]:
    """The coverage map; what is not recorded yet is recorded."""
    product = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((ROOT / "orchestrator").rglob("*.py"))))
    files = {str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("test_*.py")}
    names = {file: _map_name(file, product.digest()) for file in sorted(files - SLOW_FILES)}
    MAP.mkdir(parents=True, exist_ok=True)
    for old in {path.name for path in MAP.glob("*.json")} - set(names.values()):
        (MAP / old).unlink()
    if missing := [file for file, name in names.items() if not (MAP / name).exists()]:
        print(f"recording which lines {len(missing)} files of tests run", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            workers = ("-n", str(jobs), "--dist", "loadfile") if len(missing) > 1 else ()
            tree.pytest(
                "-p", "tests.mutants.recorder", *workers, "--timeout", "120", *missing, CCBED_MUTANTS_MAP=folder
            )
            for file in missing:
                written = Path(folder) / f"{file.replace('/', '.')}.json"
                shutil.move(written, MAP / names[file]) if written.exists() else (MAP / names[file]).write_text("{}")
    return mutations.read_map(MAP)


def _map_name(file: str, product: bytes) -> str:
    digest = hashlib.sha256(product + (ROOT / file).read_bytes()).hexdigest()
    return f"{file.replace('/', '.')}-{digest[:12]}.json"


def judge(tree: Tree, mutation: Mutation, known: Sequence[CoveringTest]) -> str:
    """``killed by TEST``, ``survived, tests: N`` or ``not covered``. A test that fails without the mutation as well kills nothing."""
    source = (ROOT / mutation.file).read_text()
    mutated = mutations.apply(mutation, source)
    tests = list(mutations.covering(mutation, source, known))
    while tests:
        tree.write(mutation.file, mutated)
        try:
            killer, ended = _first_failure(tree, tests)
        finally:
            tree.write(mutation.file, source)
        if not killer:
            return f"survived, tests: {len(tests)}" + ("" if ended else f", not all in {LIMIT_S} s")
        if not _first_failure(tree, [killer])[0]:
            return f"killed by {killer}"
        tests = [test for test in tests if not f"{killer}::".startswith(f"{test}::")]
    return "not covered"


def _first_failure(tree: Tree, tests: Iterable[str]) -> tuple[str, bool]:
    """(the first test function that fails; whether all were run in time)."""
    arguments = tree.directory / "build" / "tests.txt"
    arguments.parent.mkdir(exist_ok=True)
    arguments.write_text("\n".join(tests))
    code, output = tree.pytest(
        "-x", "-p", "no:xdist", "--tb=no", "--timeout", str(TEST_LIMIT_S), f"@{arguments}", cpu_s=LIMIT_S
    )
    failed = [line.split(" ", 1)[1] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if code not in (0, 1, -signal.SIGXCPU) or (code == 1 and not failed):
        raise RuntimeError(f"pytest ended with {code}: {' '.join(output[-400:].split())}")
    return (recorder.function_of(failed[0].partition(" - ")[0]) if failed else ""), code >= 0


def run(chosen: Sequence[Mutation], jobs: int) -> Mapping[str, str]:
    """Mutation -> its result, which is printed as well."""
    with tempfile.TemporaryDirectory(prefix="ccbed-mutants-") as folder:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(jobs):
            trees.put(Tree(Path(folder) / str(number)))
        first = trees.get()
        known = record_map(first, jobs)
        trees.put(first)

        def result(mutation: Mutation) -> tuple[str, str]:
            tree = trees.get()
            try:
                text = judge(tree, mutation, known)
            except RuntimeError as error:
                text = f"not run: {error}"
            trees.put(tree)
            print(f"{mutation.id}\t{text}", flush=True)
            return mutation.id, text

        with ThreadPoolExecutor(jobs) as pool:
            return dict(pool.map(result, chosen))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("ids", nargs="*", help="all, if none is named")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree in which tests run side by side")
    parser.add_argument("--accept", action="store_true", help="write the survivors into the committed file")
    options = parser.parse_args()
    listed = {mutation.id: mutation for mutation in mutations.read()}
    chosen = [listed[id] for id in options.ids or listed]
    results = run(chosen, options.jobs)
    alive = {id: text for id, text in results.items() if not text.startswith("killed")}
    print(f"{len(results) - len(alive)} of {len(results)} mutations are killed, {len(alive)} survive")
    recorded = mutations.survivors()
    before = recorded.keys() & results.keys()
    if options.accept:
        kept = {id: text for id, text in recorded.items() if id in listed.keys() - results.keys()} | alive
        mutations.SURVIVORS.write_text(HEAD + "".join(f"{id}\t{text}\n" for id, text in sorted(kept.items())))
    for id in sorted(alive.keys() - before):
        print(f"survives, and was killed before: {id}")
    return int(len(alive) > len(before) and not options.accept)


if __name__ == "__main__":
    sys.exit(main())
