"""The output of ranks on the terminal."""

from __future__ import annotations

import dataclasses
import io
import os
import threading
from pathlib import Path

import pytest

from orchestrator.cli.render import live_lines, rank_output
from orchestrator.cli.render.terminal import Terminal
from orchestrator.model.trial import Trial


def _tee(nodes: Path, which: str, out: io.StringIO) -> rank_output.Tee:
    terminal = Terminal(out=out, err=out)
    return rank_output.Tee(
        terminal=terminal,
        nodes=nodes,
        which=which,
        hide=lambda text: text.replace("pa55", "***"),
        lock=threading.RLock(),
    )


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    for rank in range(2):
        directory = tmp_path / f"n{rank}/runs/r1/i1-e0"
        directory.mkdir(parents=True)
        (directory / f"rank-{rank}.log").write_text(f"ccbed: run r1 node n{rank}\nfrom {rank} pa55\nlast {rank}")
    return tmp_path


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("0", ["from 0 ***", "last 0"]),
        ("all", ["[n0/0] from 0 ***", "[n0/0] last 0", "[n1/1] from 1 ***", "[n1/1] last 1"]),
        ("none", []),
    ],
)
def test_new_lines_are_printed_once_and_without_secrets(nodes: Path, which: str, expected: list[str]) -> None:
    out = io.StringIO()
    tee = _tee(nodes, which, out)
    tee.begin("r1")
    tee.stop()
    tee.stop()
    assert out.getvalue().splitlines() == expected


def test_logs_of_another_run_are_not_printed(nodes: Path) -> None:
    out = io.StringIO()
    tee = _tee(nodes, "all", out)
    tee.begin("r2")
    tee.stop()
    assert out.getvalue() == ""


def test_logs_are_copied_by_attempt_and_rank(nodes: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    source = run / "nodes/n1/i2-e1/rank-1.log"
    source.parent.mkdir(parents=True)
    source.write_text("text")
    notes: list[str] = []
    rank_output.copy_logs(run, tmp_path / "logs", notes.append)
    assert (tmp_path / "logs/run/attempt_1/1/output.log").read_text() == "text" and notes == []
    rank_output.copy_logs(run, source, notes.append)
    assert len(notes) == 1 and "the output was not copied" in notes[0] and str(run / "nodes") in notes[0]


def test_a_run_goes_on_when_the_reader_of_its_output_has_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = os.fdopen(writer, "w")
    terminal = Terminal(out=out, err=io.StringIO())
    printer = live_lines.Printer(terminal=terminal, trial=Trial(name="t", workload="script"))
    for text in ("first", "second"):
        printer.note(text)
    out.close()


def test_a_terminal_that_falls_behind_skips_lines_and_says_how_many_and_a_file_gets_all(tmp_path: Path) -> None:
    log = tmp_path / "n0/runs/r1/i1-e0/rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number:>9}\n" for number in range(700_000)))
    for is_tty in (True, False):
        out = io.StringIO()
        tee = _tee(tmp_path, "0", out)
        tee.terminal = dataclasses.replace(tee.terminal, live=is_tty)
        tee.begin("r1")
        tee.stop()
        lines = out.getvalue().replace("\r\x1b[2K", "").splitlines()
        assert lines[-1] == "line    699999"
        if not is_tty:
            assert len(lines) == 700_000
            continue
        position = next(index for index, line in enumerate(lines) if "lines are not shown" in line)
        left_out = int(lines[position].split()[1].replace(",", ""))
        assert left_out + len(lines) - 1 == 700_000
        assert len(lines) < 400_000
        assert "nodes/n0/i1-e0/rank-0.log of the bundle" in lines[position]
