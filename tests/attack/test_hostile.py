"""Hostile bundles: `check` answers with exit 2 and the place, within 10 s and 1 GB; no verb breaks or waits for ever."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.store import unpack

from ..e2e import trials
from ..e2e.conftest import Bed, bed
from . import scale
from .hostile_bundles import FORMAT_2, Hostile, all_of_them, prepare

__all__ = ["bed"]
pytestmark = [pytest.mark.attack, pytest.mark.e2e]

BUNDLES = Path(__file__).parents[1] / "golden" / "bundles"
SECONDS, BYTES = 10.0, 1024**3
#: Verbs beside `check` that read a bundle; X is its directory.
VERBS = (
    "report X", "report X --table", "compare X X", "bundle verify X", "bundle export X -o X.tar.gz", "list runs --runs-dir D",
    "logs X -n 3", "watch X --timeout 0.1", "resume X", "run X/trial.json --dry-run", "logs X --rank 0",
)  # fmt: skip


@pytest.fixture(scope="module")
def bases(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Real bundles: recorded ones of format 1, and a run of this version."""
    ran = bed.run(trials.dp(trials.crash(2)), inputs={"e2e.yml": b"trial: e2e\n"})
    made = {FORMAT_2: tmp_path_factory.mktemp("bundles") / FORMAT_2}
    shutil.copytree(ran.directory, made[FORMAT_2], ignore=shutil.ignore_patterns("report"))
    for base in ("failover", "collective"):
        with unpack.unpacked(BUNDLES / f"format-1-{base}.tar.gz") as unpacked:
            made[base] = tmp_path_factory.mktemp("bundles") / base
            shutil.copytree(unpacked, made[base])
    return made


def chosen() -> list[Hostile]:
    """One hundred of them at full scale; the same for the same seed."""
    everything = all_of_them()
    scale.generator("hostile").shuffle(everything)
    return everything[: scale.count(100)]


@pytest.mark.parametrize("hostile", chosen(), ids=lambda hostile: hostile.name)
def test_a_hostile_bundle_is_answered_with_its_place(
    bases: dict[str, Path], tmp_path: Path, hostile: Hostile, tally: Callable[[str], None]
) -> None:
    directory = tmp_path / "runs" / bases[hostile.base].name
    shutil.copytree(bases[hostile.base], directory)
    prepare(hostile, directory)
    code, output, seconds, size = measured(tmp_path, "check", str(directory))
    tally(f"hostile: {hostile.name}: exit {code}, {seconds:.1f} s, {size / 1024**2:.0f} MiB")
    assert "internal error of ccbed" not in output, output
    assert code in hostile.codes, output
    assert output.strip(), "an exit code without a word"
    assert not control_characters(output), repr(output)
    assert seconds < SECONDS
    assert size < BYTES
    for verb in VERBS:
        words = verb.replace("X", str(directory)).replace("D", str(directory.parent)).split(" ")
        code, output = within(300.0, lambda words=words: in_process(tmp_path, *words))  # type: ignore[misc]
        assert "internal error of ccbed" not in output, f"{verb}: {output}"
        assert code in (0, 1, 2, 3, 4), f"{verb}: {output}"
        assert not control_characters(output), f"{verb}: {output!r}"


def measured(folder: Path, *args: str) -> tuple[int, str, float, int]:
    """Exit code, output, CPU seconds and largest size in bytes of a ccbed of its own."""
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    log = folder / "output"
    with log.open("wb") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.cli", *args], stdout=target, stderr=target, stdin=subprocess.DEVNULL, env=env, cwd=folder
        )  # fmt: skip
        end = time.monotonic() + 600
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        while not pid:
            if time.monotonic() > end:
                process.kill()
                pytest.fail(f"hangs: ccbed {' '.join(args)}")
            time.sleep(0.01)
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    return process.returncode, log.read_text(errors="replace"), seconds, usage.ru_maxrss * 1024


def in_process(folder: Path, *args: str) -> tuple[int, str]:
    out = io.StringIO()
    own_session = terminal_session.Session(
        state=folder / "state", terminal=terminal.Terminal(out=out, err=out), agent=lambda: "abcdef"
    )
    return main.run(args, own_session), out.getvalue()


def within(seconds: float, call: Callable[[], tuple[int, str]]) -> tuple[int, str]:
    """Its result; fails where it takes longer."""
    results: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert results, "hangs, or left without a code"
    return results[0]


def control_characters(text: str) -> list[str]:
    return [letter for letter in text if (ord(letter) < 32 and letter not in "\n\t") or 127 <= ord(letter) < 160]
