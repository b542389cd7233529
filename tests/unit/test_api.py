"""The API for programs: quick to import, silent, and every error is an exception with its next step."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import ccbed
from orchestrator import api
from orchestrator.app import requests
from orchestrator.app import run as run_trial
from orchestrator.cli import main
from orchestrator.model.launch import Result
from orchestrator.store import seal

from .collectives import collective_runs

#: Prints what an import loads that is slow, or that a program may not have.
IMPORTED = "import sys; import {0}; print(*sorted({{'torch', 'numpy', 'click', 'yaml', 'rich', 'jinja2'}} & sys.modules.keys()))"
#: A call with a warning. ``logging.basicConfig()`` in front of it is the control.
WARNED = """
import logging
from orchestrator import api
{0}
with api._invocation(["up"]) as session:
    session.terminal.warn("a host is left out")
"""
FAILED = api.Result(
    run="r", bundle=Path("/runs/r"), outcome="fail", exit_code=1, sentence="Node n2 lost.", page=Path("/runs/r/report/index.html"),
    verdicts=(
        api.Verdict(check="finished", outcome="pass", text="done"),
        api.Verdict(check="no-hang", outcome="fail", text="hung"),
        api.Verdict(check="bit-exact", outcome="unknown", text="no reference run"),
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A sealed run of collectives that does not end."""
    run = collective_runs.reference()
    about: dict[str, object] = {**run.extras["bundle.json"], "format": 1}
    directory = collective_runs.write(
        replace(run, extras={**run.extras, "bundle.json": about}), tmp_path / "runs" / "r"
    )
    seal.seal(directory)
    return directory


@pytest.mark.parametrize("module", ["orchestrator.api", "ccbed", "ccbed.pytest_plugin"])
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(module)], capture_output=True, text=True, timeout=900, check=True
    )
    assert done.stdout.split() == []


def test_the_package_ccbed_offers_what_the_api_has_and_loads_it_when_it_is_used() -> None:
    code = (
        "import ccbed, sys; names, before = dir(ccbed), 'orchestrator' in sys.modules; "
        "from ccbed import Bed, run; print(names, before, run.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    assert done.stdout == f"{sorted(api.__all__)} False orchestrator.api\n"
    assert ccbed.run is api.run and ccbed.Result is api.Result
    with pytest.raises(AttributeError, match="module 'ccbed' has no attribute 'launch'"):
        ccbed.launch  # noqa: B018


@pytest.mark.parametrize("outcome", ["pass", "fail", "unknown", "broken"])
def test_a_result_that_is_asserted_says_nothing_by_itself(outcome: api.Outcome) -> None:
    with pytest.raises(TypeError, match=r"compare its outcome, or call require_pass\(\)"):
        assert replace(FAILED, outcome=outcome)


@pytest.mark.parametrize(
    ("outcome", "code", "kind"), [("fail", 1, api.FailedError), ("unknown", 2, api.UnknownError), ("broken", 4, api.InfrastructureError)]
)  # fmt: skip
def test_what_is_no_pass_raises_with_its_sentence_and_page(
    outcome: api.Outcome, code: int, kind: type[api.CcbedError]
) -> None:
    with pytest.raises(kind) as raised:
        replace(FAILED, outcome=outcome, exit_code=code).require_pass()
    assert (type(raised.value), raised.value.exit_code) == (kind, code)
    assert str(raised.value) == f"r: {outcome.upper()}: Node n2 lost."
    assert raised.value.hint == "see /runs/r/report/index.html; run it again: ccbed run /runs/r/trial.json"
    assert raised.value.__notes__ == [f"next: {raised.value.hint}"], "a traceback shows the next step"


def test_a_result_knows_its_findings_and_a_pass_is_returned() -> None:
    assert [verdict.check for verdict in FAILED.findings] == ["no-hang"]
    passed = replace(FAILED, outcome="pass", exit_code=0)
    assert passed.require_pass() is passed


def test_the_figures_of_a_result_are_those_of_its_bundle(tmp_path: Path) -> None:
    """The slowest of two recoveries counts. What a later version writes beside it is left out."""
    assert (FAILED.metrics, FAILED.time_to_recover, FAILED.phases, FAILED.steps_lost, FAILED.goodput) == (
        (),
        None,
        {},
        None,
        None,
    )
    figures = [
        ("goodput", 0.5, 0), ("ttr", 0.25, 0), ("phase join", 0.25, 0), ("lost steps", 2.0, 0),
        ("ttr", 0.75, 1), ("phase detect", 0.5, 1), ("phase join", 0.25, 1), ("lost steps", 3.0, 1), ("wrong", "inf", 0),
    ]  # fmt: skip
    about = {"trial": "t", "unit": "s", "better": "lower", "later": True}
    lines = [json.dumps({**about, "metric": name, "value": value, "rep": rep}) for name, value, rep in figures]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    result = replace(FAILED, bundle=tmp_path)
    assert (result.time_to_recover, result.steps_lost, result.goodput) == (0.75, 5, 0.5)
    assert result.phases == {"detect": 0.5, "join": 0.25}
    assert [(metric.metric, metric.value, metric.rep) for metric in result.metrics[-1:]] == [("wrong", math.inf, 0)]


def test_figures_become_rows_of_pandas_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"trial":"t","metric":"ttr","value":0.5,"unit":"s","better":"lower"}\n')
    result = replace(FAILED, bundle=tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    ((row),) = result.to_pandas()
    assert (row["metric"], row["value"], row["node"]) == ("ttr", 0.5, None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(api.UsageError, match="pandas is not installed") as raised:
        result.to_pandas()
    assert raised.value.hint == "pip install pandas"


def test_a_bed_that_is_not_up_cannot_be_attached_to() -> None:
    with pytest.raises(api.UsageError, match="no bed is up"):
        api.Bed.attach()


@pytest.mark.parametrize("name", ["", "A=B"])
def test_a_variable_without_a_proper_name_is_refused(name: str) -> None:
    with pytest.raises(api.UsageError, match="env: no name of a variable"):
        api.run("dp-ring", env={name: "c"})


def test_an_error_has_place_reason_and_next_step_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inventory = tmp_path / "bed.yml"
    inventory.write_text(
        "all: {hosts: {localhost: {ansible_connection: local}}, vars: {ccbed_provider: process, ccbed_nodes: -1}}\n"
    )
    with pytest.raises(api.UsageError, match=r"bed\.yml:1: .*ccbed_nodes: must be") as raised:
        api.Bed.up(inventory)
    assert raised.value.hint == f"correct {inventory}, then: ccbed up {inventory}"
    with pytest.raises(api.UsageError, match="no bed is up"):
        api.run("dp-ring")
    with pytest.raises(api.UsageError, match="no trial dp-rin; did you mean dp-ring"):
        api.run("dp-rin")
    with pytest.raises(api.UsageError, match="takes no arguments of its own"):
        api.run("dp-ring", args=["x"])
    with pytest.raises(api.UsageError, match="not JSON serializable"):
        api.run({"trial": object()})
    with pytest.raises(api.UsageError, match=r"reference: must be True, False or None \(got 'no'\)"):
        api.run("dp-ring", twin="no")  # type: ignore[arg-type]
    with pytest.raises(api.UsageError, match=r"trial\.json: workload: .*no-such"):
        api.run({"trial": "t", "workload": "no-such"})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("before", "errors"), [("", ""), ("logging.basicConfig()", "WARNING:ccbed:warning: a host is left out\n")]
)
def test_a_warning_is_logged_and_not_printed_where_a_program_has_no_logging(before: str, errors: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WARNED.format(before)], capture_output=True, text=True, timeout=900, check=True
    )
    assert (done.stdout, done.stderr) == ("", errors)


def test_a_bundle_is_judged_as_by_the_command_line(bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = api.check(bundle)
    assert (result.outcome, result.exit_code, result.bundle) == ("fail", 1, bundle)
    assert result.findings and result.page == bundle / "report" / "index.html"
    (bundle / "trial.json").write_text("{}")
    with pytest.raises(api.CcbedError, match=r"trial\.json: changed since") as raised:
        api.check(bundle)
    assert raised.value.exit_code == 2, "evidence that was changed allows no conclusion"
    assert capfd.readouterr() == ("", "")


def test_the_log_has_no_result_of_a_run_which_the_caller_gets(bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended = Result(run="r", directory=str(bundle), code=0, verdicts=())
    with caplog.at_level("INFO", "ccbed"), api._invocation(["run", "dp-ring"]) as session:
        session.run_observer(requests.OutputRequest(), is_script=False).judged(ended)
        assert caplog.messages == []
        session.terminal.line("attempt 0")
    assert caplog.messages == ["attempt 0"], "the control"


def test_variables_of_the_command_line_do_not_change_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    main.Verbs().get_command(
        click.Context(click.Command("ccbed")), "run"
    )  # the command line names a variable for each option
    monkeypatch.setenv("CCBED_REPEAT", "3")
    monkeypatch.setenv("CCBED_NODES", "17")
    request = requests.build(requests.RunRequest, {"trial": requests.TrialRef(name="dp-ring")})
    assert (request.repeat, request.world.nodes) == (None, None)


def test_the_recorded_command_says_what_was_called() -> None:
    given = {"fail_node": ("2", "3"), "reference": False, "runs_dir": Path("x"), "param_checkpoint_every": 5}
    words = api._words("dp-ring", given, ["--lr", "1"])
    line = "run dp-ring --fail-node 2 --fail-node 3 --no-reference --runs-dir x --checkpoint-every 5 -- --lr 1"
    assert words == line.split()


def test_one_text_is_one_secret_one_folder_and_the_arguments_of_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, Any, Any]] = []

    def run(session: Any, request: Any, source: Any) -> None:
        calls.append((session, source, request))
        raise api.UsageError("not now")

    monkeypatch.setattr(run_trial, "run", run)
    script = tmp_path / "train.py"
    script.write_text("")
    (tmp_path / "faults").mkdir()
    for secret, args, folder in (("PIN", "--pin '1 2'", tmp_path), ({"PIN"}, ["--pin", "1 2"], [str(tmp_path)])):
        params = {"batch": 8, "lr": None}
        with pytest.raises(api.UsageError, match="not now"):
            api.run(script, secret=secret, args=args, plugins=folder, params=params)  # type: ignore[arg-type]
        session, source, request = calls.pop()
        assert request.process.secret == ("PIN",) and session.plugins == (tmp_path,)
        assert request.params == {"batch": 8}, "a parameter without a value is not given"
        assert session.argv[2:4] == ("--secret", "PIN") and session.argv[-2:] == ("--pin", "1 2")
        assert "1 2" in json.dumps(source.document, default=str)
    with api._invocation(["up"], vault_password_files="pass.txt") as session:
        assert session.vault.files == ("pass.txt",)
    with pytest.raises(api.UsageError, match="args: No closing quotation"):
        api.run(script, args="--pin '1")


def test_the_umask_of_the_process_is_restored() -> None:
    before = os.umask(0o022)
    try:
        with pytest.raises(api.UsageError):
            api.run("dp-ring")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
