"""What a process of pytest brings up is written down, so that it is undone also if the process is killed (``tests/reaper.py``)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: In the environment of all that a process of pytest starts: the directory in which it writes down what to undo.
VARIABLE = "TESTS_OF_CCBED"


def variables() -> dict[str, str]:
    """For the environment of a program that gets no other variable of this process. Empty outside of tests."""
    return {name: os.environ[name] for name in (VARIABLE,) if name in os.environ}


@contextlib.contextmanager
def by_command(*argv: str | Path) -> Iterator[None]:
    """If this process is killed in the body, the reaper runs this idempotent command. So it does after a body that failed."""
    with _written({"argv": [str(word) for word in argv]}):
        yield


@contextlib.contextmanager
def by_itself(process: subprocess.Popen[bytes], limit_s: int = 30) -> Iterator[None]:
    """It ends, in its own time, when this process ends; the reaper waits for that."""
    with by_command("timeout", f"{limit_s}", "tail", f"--pid={process.pid}", "--follow", "/dev/null"):
        yield


@contextlib.contextmanager
def temporary_directory(prefix: str) -> Iterator[Path]:
    """Like ``tempfile.TemporaryDirectory``, and the reaper unmounts what is mounted below it."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    with _written({"directory": str(directory)}):
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _written(entry: dict[str, object]) -> Iterator[None]:
    if VARIABLE not in os.environ:
        yield
        return
    folder = Path(os.environ[VARIABLE])
    number = sum(1 for _ in folder.glob("*.json"))
    while (file := folder / f"{number:04}.json").exists():
        number += 1
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(entry))
    partial.rename(file)
    yield
    file.unlink(missing_ok=True)
