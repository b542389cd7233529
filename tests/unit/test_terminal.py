"""The terminal: lines fit it, colours follow NO_COLOR and FORCE_COLOR, wrong names have a suggestion."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.render import terminal
from orchestrator.cli.render.live_lines import Printer
from orchestrator.core.spec import written_values

from . import history
from .beds import LOCAL
from .test_cli import Desk, ccbed

__all__ = ["ccbed"]


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        (
            "  preflight   address lo ok · ports ok · shm 24 GiB ok",
            ["  preflight   address lo ok · ports ok ·", "              shm 24 GiB ok"],
        ),
        (
            "report    runs/latest/report/index.html      again: ccbed run trial.json",
            ["report    runs/latest/report/index.html", "          again: ccbed run trial.json"],
        ),
        (
            "a sentence without a label that is longer than a row",
            ["a sentence without a label that is", "  longer than a row"],
        ),
        ("note   " + "x" * 60, ["note   " + "x" * 60]),
        ("short", ["short"]),
    ],
)
def test_a_long_line_is_folded_below_the_text_behind_its_label(line: str, rows: list[str]) -> None:
    assert list(terminal.fold(line, 40, str)) == rows


@given(
    st.lists(st.text("abc·%", min_size=1, max_size=30), min_size=1, max_size=40), st.sampled_from((" ", "  ", "     "))
)
def test_folding_keeps_every_word_and_no_row_is_too_wide(words: list[str], gap: str) -> None:
    rows = list(terminal.fold(gap.join(words), 60, str))
    assert " ".join(rows).split() == words
    assert all(len(row) <= 60 for row in rows)


def test_styles_take_no_room_and_errors_go_on_behind_their_label() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = terminal.Terminal(out=out, err=err, colour=True, width=30, error_width=30)
    screen.line(f"{screen.style('PASS', 'PASS')}     {'word ' * 3}".rstrip())
    assert out.getvalue().count("\n") == 1 and "\x1b[" in out.getvalue()
    terminal.Terminal(out=out, err=err, error_width=30).error(["unknown name; did you mean something?"], "ccbed list")
    assert err.getvalue() == "error: unknown name; did you\n       mean something?\nnext: ccbed list\n"


def test_off_a_terminal_a_line_stays_whole() -> None:
    out = io.StringIO()
    terminal.Terminal(out=out, err=out).line("word " * 50)
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("tty", "variables", "colour"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "0"}, False),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_follow_the_variables(
    monkeypatch: pytest.MonkeyPatch, tty: bool, variables: dict[str, str], colour: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty)
    assert terminal.standard().colour is colour
    assert (terminal.standard().width > 0) is tty


@pytest.mark.parametrize(
    ("problem", "suggestion"),
    [
        ("--model: must be one of mlp, cnn (got 'mpl')", "; did you mean mlp?"),
        ("unknown algorithm; known: ring, star (got rng)", "; did you mean ring?"),
        ("Invalid value for 'WHAT': 'triasl' is not one of 'trials', 'runs'.", "; did you mean trials?"),
        ("--model: must be one of mlp, cnn (got 'zzz')", ""),
        ("--lr: must be > 0 (got 0)", ""),
    ],
)
def test_a_problem_that_lists_the_known_names_suggests_the_nearest(problem: str, suggestion: str) -> None:
    expected = problem.rstrip(".") + suggestion if suggestion else problem
    assert written_values.suggest(problem) == expected


@pytest.mark.parametrize("length", [60, 3000])
def test_a_long_list_of_known_names_is_one_line_of_the_nearest(length: int) -> None:
    metrics = [f"{size} allreduce {'x' * length} busbw" for size in range(300)]
    text = written_values.nearest("allreduce busbw", metrics)
    assert text.startswith("300 are known, such as: ") and "allreduce" in text and len(text) < 450
    assert written_values.nearest("zz", ["ring", "star"]) == "known: ring, star"


def test_ccbed_alone_prints_its_help(ccbed: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert ccbed() == 0
    assert "Start with: ccbed up" in capsys.readouterr().out
    assert ccbed("image") == 0
    assert "build" in capsys.readouterr().out and not ccbed.err


@pytest.mark.parametrize(
    ("args", "text", "hint"),
    [
        ("heal locl", "no bed locl is up; did you mean local?", "ccbed status"),
        ("down locl", "no bed locl is up; did you mean local?", "ccbed status"),
        ("status locl", "no bed locl is up; did you mean local?", "ccbed status"),
        ("exec local/n11 -- true", "bed local has no node n11; did you mean n1?", "ccbed status local"),
        ("logs local/keper", "did you mean keeper?", "ccbed status local"),
        ("list triasl", "did you mean trials?", "ccbed list --help"),
        ("run dp-ring --algorithm rng", "did you mean ring?", "ccbed list algorithms"),
        ("run dp-ring --fail-node n22 --dry-run", "did you mean n2?", ""),
        ("check latst", "did you mean latest?", "ccbed list runs"),
        ("up inventories/lcal.yml", "did you mean inventories/local.yml?", "ccbed list inventories"),
        ("run dp-rnig", "did you mean dp-ring?", "ccbed list trials"),
        ("lst", "did you mean list?", "ccbed --help"),
        ("status --jsn", "unknown option --jsn; did you mean --json?", "ccbed status --help"),
        ("run dp-ring --recovry spare", "unknown option --recovry; did you mean --recovery?", "ccbed run --help"),
        ("image biuld", "unknown verb ccbed image biuld; did you mean build?", "ccbed image --help"),
        ("image nope", "unknown verb ccbed image nope; known: build, list", "ccbed image --help"),
        ("init tiral", "error: 'tiral' is not one of", "ccbed init --help"),
        ("exec n1 --json -- true", "--json is not a command", "ccbed exec --json n1"),
    ],
)
def test_a_wrong_name_suggests_the_nearest(ccbed: Desk, args: str, text: str, hint: str) -> None:
    ccbed("up", "local.yml")
    assert ccbed(*args.split()) == 3
    assert text in ccbed.err
    assert hint in ccbed.err


@pytest.mark.parametrize("args", ["run dp-ring --check x", "run dp-ring --faults slow", "down -z"])
def test_an_option_that_is_like_no_other_gets_no_suggestion(ccbed: Desk, args: str) -> None:
    assert ccbed(*args.split()) == 3
    assert "unknown option -" in ccbed.err and "mean" not in ccbed.err


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ("logs --rank x", "error: --rank: must be a whole number (got x)\n"),
        ("logs --rank -1", "error: --rank: must be >= 0 (got -1)\n"),
        ("watch --timeout x", "error: --timeout: must be a number (got x)\n"),
        ("up local.yml --wait 3z", "error: --wait: must be a time such as 2s, 500ms or 10m (got 3z)\n"),
    ],
)
def test_a_wrong_number_is_named_with_its_option_and_its_limits(ccbed: Desk, args: str, problem: str) -> None:
    assert ccbed(*args.split()) == 3
    assert ccbed.err.startswith(problem)
    assert ccbed.err.endswith(f"next: ccbed {args.partition(' ')[0]} --help\n")


def test_with_several_beds_the_hint_is_a_line_that_works(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    (ccbed.root / "other.yml").write_text((ccbed.root / "local.yml").read_text())
    ccbed("up", "other.yml")
    assert ccbed("heal") == 3 and "next: ccbed heal local\n" in ccbed.err
    assert ccbed("exec", "n0", "--", "echo", "{a b}") == 3
    assert "next: ccbed exec local/n0 -- echo '{a b}'\n" in ccbed.err
    assert ccbed("run", "dp-ring") == 3 and "next: --bed local\n" in ccbed.err


def test_a_folder_of_several_beds_is_one_error(ccbed: Desk) -> None:
    folder = ccbed.root / "many"
    folder.mkdir()
    for name in ("a.yml", "b.yml"):
        (folder / name).write_text(LOCAL.replace("ccbed_nodes", "ccbed_provider: process, ccbed_nodes"))
    assert ccbed("up", "many") == 3
    assert ccbed.err.splitlines() == [
        "error: many: a folder of 2 beds (a.yml, b.yml); a bed has one inventory",
        "next: ccbed up many/a.yml",
    ]


def test_logs_of_a_node_show_what_its_agent_did_and_printed(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    assert ccbed("logs", "local/n0") == 0 and "local/n0: nothing written yet" in ccbed.out
    directory = ccbed.root / "state" / "beds" / "local" / "nodes" / "n0"
    directory.mkdir(parents=True)
    event = '{"type":"ok","f":"exec","node":"n0","value":{"code":0},"at":{"wall":1795439620.9}}\n'
    (directory / "events.jsonl").write_text(f"{event}torn line\n")
    (directory / "agent.log").write_text("a line of the agent\n")
    assert ccbed("logs", "local/n0") == 0
    assert ccbed.out.splitlines() == [
        "==> local/n0 events <==",
        "2026-11-23 13:13:40.900Z  exec ok  n0  code 0",
        "torn line",
        "==> local/n0 output <==",
        "a line of the agent",
    ]


@pytest.mark.parametrize(
    ("live", "quiet", "shown"), [(False, False, "line"), (True, False, "status"), (False, True, "")]
)
def test_what_follows_the_end_of_a_run_has_a_line(live: bool, quiet: bool, shown: str) -> None:
    out = io.StringIO()
    screen = terminal.Terminal(out=out, err=out, live=live, verbosity=-quiet)
    printer = Printer(terminal=screen, trial=history.clean().trial)
    printer.stage("writing the report")
    assert ("writing the report\n" in out.getvalue()) is (shown == "line")
    assert ("writing the report" in out.getvalue()) is bool(shown)


@pytest.mark.parametrize(("streams", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&- <&-", 0), ("nope >&-", 3)])
def test_a_closed_stream_is_no_traceback(tmp_path: Path, streams: str, code: int) -> None:
    """As under cron or a service that closes them; nothing else gets their numbers."""
    line = f'"{sys.executable}" -m orchestrator --plugins "$0" status {streams}'
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(["sh", "-c", line, tmp_path], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", ["status", "--help", "", "list trials", "list trials --json"])
def test_a_reader_that_has_gone_ends_ccbed_as_sigpipe_ends_a_program(tmp_path: Path, args: str) -> None:
    """Not with code 1, which is a failed verdict."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "orchestrator", *args.split()]
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_terminal_that_is_not_utf_8_shows_a_question_mark_for_what_it_lacks(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "orchestrator", "config", "show"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert " ? ccbed.toml" in done.stdout


def test_an_interruption_while_the_modules_are_loaded_is_no_traceback() -> None:
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from orchestrator import __main__\n"
        "__main__.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
