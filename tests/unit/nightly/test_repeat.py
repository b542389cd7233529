"""`run --repeat N --json` prints one document, whatever comes of the runs."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app.announcement import Announcer
from orchestrator.cli import main
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.model.errors import InfrastructureError, Interrupted
from orchestrator.model.launch import Request, Result
from orchestrator.nightly import night_files
from orchestrator.nightly.app import repeats as repeated_run
from orchestrator.nightly.app import sweep_rounds
from orchestrator.nightly.records import Finding
from orchestrator.nightly.suite import Cell, Night
from orchestrator.store.paths import TornBundleError

from ..beds import LOCAL, local
from ..fake_bed import FakeProvider
from ..test_judged_by_plan import catalogue, sealed


@dataclasses.dataclass(kw_only=True)
class Desk:
    """A command line whose runs end as listed: with an exit code, or with an error."""

    root: Path
    ends: list[int | BaseException]
    launched: int = 0
    out: str = ""
    err: str = ""

    def __call__(self, *args: str) -> int:
        out, err, bed = io.StringIO(), io.StringIO(), FakeProvider()
        for line in (("up", str(self.root / "local.yml")), (*args, "--runs-dir", str(self.root / "runs"))):
            out.seek(0)
            out.truncate()
            session = Session(
                state=self.root / "state", terminal=terminal.Terminal(out=out, err=err),
                providers={"process": lambda state: bed}, agent=lambda: "a" * 64, launch=self.launch,
            )  # fmt: skip
            code = main.run(line, session)
        self.out, self.err = out.getvalue(), err.getvalue()
        return code

    def launch(self, request: Request) -> Result:
        end = self.ends[self.launched]
        self.launched += 1
        if isinstance(end, BaseException):
            raise end
        _, result = sealed(self.root / str(self.launched), catalogue())
        return dataclasses.replace(result, code=end)


def desk(root: Path, ends: Sequence[int | BaseException]) -> Desk:
    (root / "local.yml").write_text(LOCAL)
    for number in range(len(ends)):
        (root / str(number + 1)).mkdir()
    return Desk(root=root, ends=list(ends))


BROKEN = InfrastructureError("host h2 is gone", hint="ccbed up local.yml")


@pytest.mark.parametrize(
    ("ends", "codes", "exit", "error"),
    [
        ((0, 0, 0), [0, 0, 0], 0, None),
        ((0, 1, 2), [0, 1, 2], 1, None),
        ((0, 130, 0), [0, 130], 130, {"problems": ["run run was interrupted"], "next": "ccbed resume "}),
        ((1, BROKEN, 0), [1], 4, {"problems": ["host h2 is gone"], "next": "ccbed up local.yml"}),
        ((BROKEN,), [], 4, {"problems": ["host h2 is gone"], "next": "ccbed up local.yml"}),
        ((0, Interrupted("r: interrupted", hint="ccbed resume r")), [0], 130,
         {"problems": ["r: interrupted"], "next": "ccbed resume "}),
        ((0, KeyboardInterrupt()), [0], 130, {"problems": ["interrupted"], "next": "ccbed resume "}),
    ],
)  # fmt: skip
def test_repeated_runs_are_one_document(
    tmp_path: Path, ends: Sequence[int | BaseException], codes: list[int], exit: int, error: dict[str, Any] | None
) -> None:
    ccbed = desk(tmp_path, ends)
    assert ccbed("run", "dp-ring", "--repeat", str(len(ends)), "--json") == exit
    document = json.loads(ccbed.out)
    assert [run["exit"] for run in document["runs"]] == codes
    if exit == 130:
        document["error"]["next"] = document["error"]["next"].removesuffix(document["directory"])
    assert (document["exit"], document.get("error")) == (exit, error)
    assert all(problem in ccbed.err for problem in (error or {"problems": []})["problems"])


def test_one_repetition_has_the_shape_of_many_and_a_run_without_the_option_its_own(tmp_path: Path) -> None:
    ccbed = desk(tmp_path, (0, 0))
    assert ccbed("run", "dp-ring", "--repeat", "1", "--json") == 0
    document = json.loads(ccbed.out)
    assert [*document] == ["runs", "exit", "directory", "distribution"]
    assert night_files.is_closed(Path(document["directory"]))
    assert ccbed("run", "dp-ring", "--json") == 0
    assert json.loads(ccbed.out)["run"] == "run"


def test_without_json_every_run_is_shown_and_an_error_ends_them(tmp_path: Path) -> None:
    ccbed = desk(tmp_path, (0, BROKEN))
    assert ccbed("run", "dp-ring", "--repeat", "2") == 4
    assert ccbed.out.count("PASS") == 1
    assert "host h2 is gone" in ccbed.err and "ccbed up local.yml" in ccbed.err


def test_a_kill_before_the_document_of_ended_runs_leaves_them_to_resume(tmp_path: Path) -> None:
    ccbed = desk(tmp_path, (0, 0))
    assert ccbed("run", "dp-ring", "--repeat", "2", "--json") == 0
    directory = Path(json.loads(ccbed.out)["directory"])
    for is_second in (False, True):
        assert ccbed("resume", str(directory), "--json") == 0
        assert json.loads(ccbed.out)["exit"] == 0
        assert ccbed.launched == 2, "no run is repeated"
        assert is_second or (directory / "repeat.json").is_file()
        if not is_second:
            (directory / "repeat.json").unlink()


def test_runs_are_announced_before_their_plan_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is killed after its plan was written left it to `resume`."""

    def killed(directory: Path, night: Night) -> None:
        raise SystemExit(9)

    out, announcer = io.StringIO(), Announcer(tmp_path / "state", ("sweep",))
    session = Session(state=tmp_path / "state", terminal=terminal.Terminal(out=out, err=out), announcer=announcer)
    monkeypatch.setattr(night_files, "write_night", killed)
    with pytest.raises(SystemExit):
        repeated_run.begin(session, local(), "sweep", (Cell(name="gemm", trial="gemm", repeats=2),), tmp_path, "ccbed")
    assert "-sweep-gemm-" in json.loads(announcer.file.read_text())["directory"]


@pytest.mark.parametrize(("suspect", "count"), [(False, 2), (True, 3)])
def test_a_suspect_of_a_sweep_is_confirmed_once(tmp_path: Path, suspect: bool, count: int) -> None:
    """After a kill the rounds are judged with the evidence that is there, and none is run twice."""
    known, launched = catalogue(), []

    def once(runs: Path, reason: str, resume: Path | None) -> Result:
        launched.append(reason)
        (tmp_path / str(len(launched))).mkdir()
        made, result = sealed(tmp_path / str(len(launched)), known)
        directory = made.rename(runs / f"r{len(launched)}")
        return dataclasses.replace(result, run=directory.name, directory=str(directory), code=0)

    finding = Finding(gate="fleet", outcome="warn" if suspect else "pass", text="n1 is odd")
    cells = (Cell(name="gemm", trial="gemm", repeats=2), Cell(name=sweep_rounds.CONFIRMING, trial="gemm", repeats=1))
    bed = local()
    out = io.StringIO()
    session = Session(state=tmp_path / "state", terminal=terminal.Terminal(out=out, err=out))
    command = "ccbed sweep gemm --each-node --rounds 2"
    directory, night = repeated_run.begin(session, bed, "sweep", cells, tmp_path, command)
    for _ in range(2):
        session = Session(state=tmp_path / "state", terminal=terminal.Terminal(out=out, err=out))
        rounds = sweep_rounds.Rounds(
            session=session, directory=directory, once=once, on_result=lambda _: None,
            judge=lambda directories: (None, (finding,)),
        )  # fmt: skip
        rounds.carry_out(night)
        assert (len(launched), len(rounds.results)) == (count, count)
        assert rounds.finish().code == (2 if suspect else 0)
        (directory / "sweep.json").unlink()
    assert repeated_run.resumed_command(directory)[-2:] == ("--resume", str(directory))
    shutil.rmtree(directory / "runs" / "r1")
    lost = dataclasses.replace(rounds, results=[])
    lost.carry_out(night)
    with pytest.raises(TornBundleError, match="r1: this round cannot be read"):
        lost.finish()


def test_a_sweep_without_a_judgement_is_recorded_as_it_was_printed(tmp_path: Path) -> None:
    ccbed = desk(tmp_path, (4,))
    assert ccbed("sweep", "gemm", "--each-node", "--json") == 4
    printed = json.loads(ccbed.out)
    (directory,) = (tmp_path / "runs").glob("*-sweep-gemm-*")
    assert ccbed("resume", str(directory), "--json") == 4
    assert json.loads(ccbed.out) == printed
