"""Bare `ccbed resume` acts on the last run of its own shell, and on no other run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from orchestrator.app import announcement
from orchestrator.app.announcement import Announcement, Shell
from orchestrator.model.errors import UsageError
from orchestrator.model.launch import Request, Result
from orchestrator.node.oslayer import processes
from orchestrator.store import bed_files as store
from orchestrator.store import bundle
from orchestrator.system import host_facts

from . import beds as beds_of_tests
from .nightly.run_archive import Archive
from .test_cli import Desk as PlainDesk

#: A process that lives as long as the test, and some that have exited: no process has the number 0.
ALIVE = f"{os.getppid()}:{processes.start_time(os.getppid())}"
SHELL, OTHER, TIMEOUT, PART = "0:1", "0:2", "0:3", "0:4"


def shell(*ancestors: str, ci: str = "", callers: tuple[str, ...] = (), place: str = "login /d") -> Shell:
    return Shell(boot=host_facts.boot_id(), ancestors=ancestors, ci=ci, callers=callers, places=(place, *callers))


def announced(state: Path, number: int, made_by: Shell, took_s: float = 0.5) -> None:
    """An announcement of a run that has ended; the larger the number, the later."""
    at = time.time() + number
    item = Announcement(
        at=at, process="0:9", shell=made_by, command=str(number), directory=f"/runs/{number}", code=0, until=at + took_s
    )
    write(state, number, item)


def write(state: Path, number: int, item: Announcement) -> None:
    folder = state / announcement.FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.json").write_text(json.dumps(asdict(item)))


CASES: Mapping[str, tuple[list[Shell], Shell, str]] = {
    "the last one of the shell": ([shell(SHELL), shell(SHELL)], shell(SHELL), "1"),
    "under a program that has exited": ([shell(SHELL), shell(TIMEOUT, SHELL)], shell(SHELL), "1"),
    "asked in a script": ([shell(SHELL)], shell(PART, SHELL), "0"),
    "parts of a script, each its own": ([shell(ALIVE, SHELL), shell(PART, SHELL)], shell(ALIVE, SHELL), "0"),
    "another terminal that is open": ([shell(SHELL), shell(ALIVE)], shell(SHELL), "0"),
    "only another terminal": ([shell(OTHER)], shell(SHELL), ""),
    "a wrapper that hides its caller": ([shell(SHELL), shell(OTHER)], shell(SHELL), "refused"),
    "steps of one job of a CI system": ([shell(OTHER, ci="J=1")], shell(SHELL, ci="J=1"), "0"),
    "jobs of one runner": ([shell(SHELL, ci="J=1")], shell(SHELL, ci="J=2"), ""),
    "srun, called by this shell": ([shell(SHELL), shell(callers=("job 7", "login /d"))], shell(SHELL), "1"),
    "srun, called elsewhere": ([shell(SHELL), shell(callers=("job 7", "login /e"))], shell(SHELL), "0"),
    "srun, both times": ([shell(callers=("job 7", "login /d"))], shell(callers=("job 8", "login /d"), place="n1 /d"), "0"),
    "steps of one job of Slurm": ([shell(callers=("job 7", "x"))], shell(SHELL, callers=("job 7", "y"), place="n1 /"), "0"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_run_of_a_shell_is_found_by_its_ancestors_its_job_or_its_place(case: str, tmp_path: Path) -> None:
    made, resuming, expected = CASES[case]
    for number, made_by in enumerate(made):
        announcement._clear(tmp_path, made_by)
        announced(tmp_path, number, made_by)
    if expected == "refused":
        with pytest.raises(UsageError, match="not known which was the last run of this shell"):
            announcement.last(tmp_path, resuming)
    else:
        last = announcement.last(tmp_path, resuming)
        assert (last.command if last else "") == expected


def test_a_night_of_a_timer_that_has_ended_hides_no_run(tmp_path: Path) -> None:
    announced(tmp_path, 0, shell(SHELL))
    announced(tmp_path, 1, shell(OTHER))
    file = tmp_path / announcement.FOLDER / "1.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "command": "ccbed nightly quick"}))
    last = announcement.last(tmp_path, shell(SHELL))
    assert last and last.command == "0"


def test_two_runs_of_a_shell_at_the_same_time_are_not_taken_for_each_other(tmp_path: Path) -> None:
    announced(tmp_path, 1, shell(SHELL), took_s=5.0)
    announced(tmp_path, 2, shell(PART, SHELL))
    with pytest.raises(UsageError, match="not known which was the last run"):
        announcement.last(tmp_path, shell(SHELL))
    background = announcement.last(tmp_path, shell(PART))
    assert background
    running = replace(background, process=ALIVE, code=None)
    write(tmp_path, 2, running)
    ended = announcement.last(tmp_path, shell(SHELL))
    assert ended and ended.command == "1"


WRAPPERS = {
    "no": "{run}", "timeout": "timeout 60 {run}", "time": "time {run}", "nohup": "nohup {run}", "a script": "sh -c '{run}; exit 1'",
    "setsid": "setsid -w {run}", "a terminal of its own": "script -qec '{run}' /dev/null", "a subshell": "( ( {run} ) )",
}  # fmt: skip


@pytest.mark.skipif(not shutil.which("script"), reason="without the program script")
def test_no_program_between_hides_the_shell(tmp_path: Path) -> None:
    """The shell has a terminal, as sudo needs it to give its command another one."""
    run = (
        f"{sys.executable} -c 'import sys, pathlib; from orchestrator.app import announcement as a;"
        " a.Announcer(pathlib.Path(sys.argv[1]), (sys.argv[2],)).end(3)' state "
    ).replace("'", '"')
    last = f"{sys.executable} -c 'import os, pathlib; from orchestrator.app import announcement as a;"
    last += ' print(a.last(pathlib.Path("state"), a.current_shell(os.environ)).command)\' >> commands'
    lines = [f"{form.format(run=run + name.replace(' ', '-'))}; {last}" for name, form in WRAPPERS.items()]
    (tmp_path / "lines").write_text("\n".join(lines))
    environment = {name: value for name, value in os.environ.items() if name not in announcement._CI_JOB}
    root = Path(__file__).parents[2]
    subprocess.run(
        ["script", "-qec", "bash lines", "/dev/null"], cwd=tmp_path, env={**environment, "PYTHONPATH": str(root)}, stdin=subprocess.DEVNULL,
        check=True, timeout=600, capture_output=True,
    )  # fmt: skip
    commands = (tmp_path / "commands").read_text().splitlines()
    assert commands == [f"ccbed {name.replace(' ', '-')}" for name in WRAPPERS]


@dataclass(kw_only=True)
class Desk(PlainDesk):
    """``begins``: the inputs of a run are written; its launch then ends as an interruption does."""

    begins: bool = True

    def _launch(self, request: Request) -> Result:
        self.launched.append(request)
        if self.begins:
            directory = bundle.new(Path(request.runs), request.trial.name, run=request.run)
            directory.mkdir()
            (directory / bundle.TRIAL).write_text("{}")
        raise KeyboardInterrupt


@pytest.fixture
def ccbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = PlainDesk(root=tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "local.yml").write_text(beds_of_tests.LOCAL)
    assert desk("up", "local.yml") == 0
    return Desk(root=tmp_path, bed=desk.bed)


def last_run(desk: Desk) -> str:
    """The directory on which `resume` would act."""
    item = announcement.last(desk.root / "state", announcement.current_shell(os.environ))
    return Path(item.directory).name if item and item.has_run else ""


def test_resume_acts_on_the_run_that_was_announced(ccbed: Desk) -> None:
    assert ccbed("run", "dp-ring") == 130
    assert last_run(ccbed) == ccbed.launched[-1].run
    assert ccbed("resume") != 0 and ccbed.launched[-1].run in ccbed.err, "an empty trial cannot be read"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("run dp-rin", "no trial dp-rin; did you mean dp-ring?"),
        ("run dp-ring --stpes 3", "unknown option --stpes"),
        ("run dp-ring --bed lab", "no bed lab is up"),
        ("--plugin x run dp-ring", "unknown option --plugin; did you mean --plugins?"),
        ("rnu dp-ring", "unknown verb rnu; did you mean run?"),
        ("run dp-ring --repeat 0", "--repeat: must be >= 1 (got 0)"),
        ("run dp-ring --detach --tee x", "--tee: must be a rank"),
        ("sweep gemn", "sweep takes either --each-node or --each-pair"),
        ("nightly qick", "no suite qick; did you mean quick?"),
        ("nigthly quick", "unknown verb nigthly; did you mean nightly?"),
        ("accept new.yml", "new.yml: cannot be read"),
    ],
)
def test_a_run_that_never_began_is_not_answered_by_the_one_before(ccbed: Desk, line: str, text: str) -> None:
    ccbed("run", "dp-ring")
    assert ccbed(*line.split()) == 3
    assert ccbed("resume", "--json") == 3
    problems = json.loads(ccbed.out)["error"]["problems"]
    assert problems[0] == f"ccbed {line}: failed before its run began, with exit code 3" and text in problems[1]


def test_an_interrupted_preparation_and_one_that_was_killed_leave_nothing_to_resume(ccbed: Desk) -> None:
    ccbed.begins = False
    assert ccbed("run", "dp-ring") == 130
    assert ccbed("resume") == 3 and "failed before its run began, with exit code 130" in ccbed.err
    [file] = (ccbed.root / "state" / announcement.FOLDER).iterdir()
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"process": "0:9", "code": None, "problems": []}))
    assert ccbed("resume") == 3
    assert f"it was killed before its run {ccbed.launched[-1].run} began" in ccbed.err


def test_a_run_that_is_killed_while_ccbed_is_loaded_is_not_answered_by_the_one_before(ccbed: Desk) -> None:
    assert ccbed("run", "dp-ring") == 130
    kill = "import sys, os; sys.modules['orchestrator.cli'] = None; from orchestrator import __main__ as m"
    code = f"{kill}; m.os._exit = lambda code: os.kill(os.getpid(), 9); m.main()"
    state = Path(shutil.copytree(ccbed.root / "state", ccbed.root / "home/ccbed"))
    for verb, killed in (("status", False), ("run", True)):
        environment = {**os.environ, "XDG_STATE_HOME": str(state.parent)}
        line = [sys.executable, "-c", code, verb, "dp-ring"]
        subprocess.run(line, env=environment, cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
        item = announcement.last(state, announcement.current_shell(os.environ))
        assert item and item.has_run is not killed
    assert item and "ccbed run: it was killed before its run began" in str(item.why_no_run())
    made_by = announcement.current_shell(os.environ)
    assert announcement.last(state, replace(made_by, ci="J=1")) == item


def test_a_line_that_begins_no_run_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "ccbed" / announcement.FOLDER
    folder.mkdir(parents=True)
    for line in (("run", "--help"), ("logs", "run"), ("run", "nothing")):
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
        subprocess.run(
            [sys.executable, "-m", "orchestrator", *line], env=environment, cwd=tmp_path, capture_output=True
        )
        assert len(list(folder.iterdir())) == (line == ("run", "nothing"))


def test_in_a_directory_that_was_removed_the_shell_is_known(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ccbed("run", "dp-rin") == 3
    (gone := ccbed.root / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert ccbed("run", "dp-ring") == 4
    monkeypatch.chdir(ccbed.root)
    assert ccbed("resume") == 3 and "failed before its run began, with exit code 4" in ccbed.err


def test_help_and_plans_are_no_runs(ccbed: Desk) -> None:
    ccbed("run", "dp-ring")
    run = ccbed.launched[-1].run
    for line in (("run", "--help"), ("run", "dp-ring", "--dry-run"), ("runs",), ("status",)):
        assert ccbed(*line) == 0
        assert last_run(ccbed) == run


def test_without_an_announcement_the_only_open_run_is_meant(ccbed: Desk) -> None:
    assert ccbed("resume") == 3 and "no run is open, and runs has none" in ccbed.err
    ended = Archive(ccbed.root / "runs").run()
    bundle.link_latest(ended.parent, ended.name)
    assert ccbed("resume") == 3
    assert (
        f"no run is open; the last one, {ended.name}, has ended" in ccbed.err
        and f"ccbed check runs/{ended.name}" in ccbed.err
    )
    first, second = (ccbed.root / "state/beds" / name for name in ("local", "lab"))
    store.change_run(first, "r", ccbed.root / "runs/r", begun=True)
    assert ccbed("resume") == 3 and "runs/r" in ccbed.err
    second.mkdir()
    store.change_run(second, "s", ccbed.root / "runs/s", begun=True)
    assert ccbed("resume") == 3 and "several runs are open: s, r" in ccbed.err


def test_an_open_run_of_a_night_is_named_with_the_command_that_continues_the_night(ccbed: Desk) -> None:
    night = Archive(ccbed.root / "runs").night(0)
    store.change_run(ccbed.root / "state/beds/local", "r", night / "runs/r", begun=True)
    assert ccbed("resume") == 3
    assert ccbed.err == (
        f"error: run r is open, of night {night.name}\nnext: ccbed nightly --resume runs/{night.name}\n"
    )
