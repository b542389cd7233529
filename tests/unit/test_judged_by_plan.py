"""A bundle is judged by the checks that its sealed plan lists, whatever plugins and versions are there later."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import py_compile
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import summary_lines, terminal
from orchestrator.core.spec import planning
from orchestrator.core.verdict import judge, least_checks, rungs
from orchestrator.model import codec
from orchestrator.model.launch import Result
from orchestrator.model.plan import Plan
from orchestrator.model.plugin import BUILT_IN, Catalogue
from orchestrator.model.trial import CheckSpec, Trial
from orchestrator.model.verdict import Verdict
from orchestrator.run import judging
from orchestrator.store import bundle, paths, rank_payload, seal

from . import history, test_plan

CHECKER = '''"""A check that {outcome}s."""

from dataclasses import dataclass

from ..model.verdict import Verdict

ALWAYS = {always}
TWIN = False


@dataclass(frozen=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run, params):
    return Verdict(check="", outcome="{outcome}", text="it {outcome}s")
'''
WORKLOAD = '''"""A workload with a check of its own."""

from dataclasses import dataclass

METRICS = {}
CHECKS = ("never",)


@dataclass(frozen=True, kw_only=True)
class Params:
    """Nothing to choose."""


def last_step(params, data):
    return None


def run(ctx):
    pass
'''
#: What these bundles imply: nothing, for they are judged by a few of the checkers.
ROW = {(1, "None"): least_checks.Row(always=(), workloads={}, twin=("bit-exact",))}
BUILT = ("finished", "fault-verified", "planned-faults-only", "bit-exact", "baseline-clean")


@pytest.fixture(autouse=True)
def _implied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(least_checks, "ROWS", {**least_checks.ROWS, **ROW})


def folder(root: Path, outcome: str = "fail", *, always: bool = True) -> Path:
    """A plugin folder with the check `never`, the workload `mine` that names it, and a report."""
    files = {
        "checkers/never.py": CHECKER.format(outcome=outcome, always=always),
        "workloads/mine.py": WORKLOAD,
        "reports/own.py": '"""A report."""\n\n\ndef render(run):\n    return {"own.txt": b"own"}\n',
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def catalogue(*folders: Path) -> Catalogue:
    """A few of the built-in checkers, which pass on a clean history without node files, and all plugins of the folders."""
    known = plugins.discover(folders)
    checkers = {name: p for name, p in known.checkers.items() if name in BUILT or p.source != BUILT_IN}
    workloads = {name: p for name, p in known.workloads.items() if p.source != BUILT_IN}
    return dataclasses.replace(known, checkers=checkers, workloads=workloads)


def sealed(
    root: Path, known: Catalogue, trial: Trial | None = None, *, twin: bool = True, **about: Any
) -> tuple[Path, Result]:
    """A sealed and judged bundle of a clean run, planned with this catalogue; of format 1, for the nodes left no files."""
    run = history.clean()
    trial = trial or run.trial
    checks = judge.planned(trial, known, twin=twin)
    plan = dataclasses.replace(test_plan.planned(test_plan.trial()), checks=checks)
    directory = root / "run"
    directory.mkdir()
    documents = {
        bundle.TRIAL: trial, bundle.PLAN: plan, bundle.BUNDLE: {"twin": twin, "format": 1, **about},
        bundle.FINGERPRINT: run.extras["fingerprint.json"],
    }  # fmt: skip
    bundle.write_inputs(directory, documents, planning.user_sources(trial, checks, known))
    lines = (json.dumps(codec.plain(event)) + "\n" for event in run.history.events)
    (directory / bundle.HISTORY).write_text("".join(lines))
    seal.seal(directory)
    return directory, judging.conclude(known, directory)


def outcomes(result: Result) -> dict[str, str]:
    return {verdict.check: verdict.outcome for verdict in result.verdicts}


def text(result: Result, check: str) -> str:
    return next(verdict.text for verdict in result.verdicts if verdict.check == check)


def trial(**changes: Any) -> Trial:
    return dataclasses.replace(history.trial(), workload="mine", **changes)


@pytest.mark.parametrize("always", [True, False], ids=["by a checker", "by a workload"])
def test_a_run_that_a_plugin_failed_never_passes_without_the_plugin(tmp_path: Path, always: bool) -> None:
    known = catalogue(folder(tmp_path / "own", always=always))
    directory, result = sealed(tmp_path, known, trial())
    assert (result.code, outcomes(result)["never"]) == (1, "fail")
    later = judging.conclude(catalogue(), directory)
    assert (later.code, outcomes(later)["never"]) == (2, "unknown")
    assert "--plugins" in text(later, "never")
    assert later.unsaved == ("never",)
    assert [v.outcome for v in bundle.read_verdicts(directory) if v.check == "never"] == ["fail"], "kept as it was"


def test_the_plugins_in_the_bundle_judge_as_the_originals_did_and_leave_its_seal_whole(tmp_path: Path) -> None:
    directory, result = sealed(tmp_path, catalogue(folder(tmp_path / "own")), trial())
    kept = sorted(str(path.relative_to(directory)) for path in (directory / bundle.PLUGINS).rglob("*.py"))
    assert [path.removeprefix("inputs/plugins/") for path in kept] == [
        "checkers/never.py", "reports/own.py", "workloads/mine.py"
    ]  # fmt: skip
    shutil.rmtree(tmp_path / "own")
    later = judging.conclude(catalogue(directory / bundle.PLUGINS), directory)
    assert (later.code, later.verdicts, later.changes, later.unsaved) == (result.code, result.verdicts, {}, ())
    assert seal.verify(directory) == (), "loading a plugin out of a bundle writes no bytecode into it"


def test_the_summary_of_a_run_that_was_just_judged_reads_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, result = sealed(tmp_path, catalogue())
    read_again = summary_lines.document(dataclasses.replace(result, judged=None))
    monkeypatch.delattr(bundle, "load")
    assert summary_lines.document(result) == read_again


def test_bytecode_beside_a_plugin_is_not_what_runs(tmp_path: Path) -> None:
    own = folder(tmp_path / "own")
    file = own / "checkers/never.py"
    honest = file.read_text()
    file.write_text(honest.replace('outcome="fail"', 'outcome="pass"'))
    stamp = file.stat()
    py_compile.compile(str(file))
    file.write_text(honest)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    _, result = sealed(tmp_path, catalogue(own))
    assert outcomes(result)["never"] == "fail"


def test_a_plugin_that_was_changed_judges_only_where_that_is_accepted_and_is_labelled(tmp_path: Path) -> None:
    directory, _ = sealed(tmp_path, catalogue(folder(tmp_path / "own")))
    changed = catalogue(folder(tmp_path / "other", "pass"))
    later = judging.conclude(changed, directory)
    assert (later.code, outcomes(later)["never"], later.unsaved) == (2, "unknown", ("never",))
    assert "is not the one that the run was planned with" in text(later, "never")
    accepted = judging.conclude(changed, directory, accept_changed=True)
    assert (accepted.code, outcomes(accepted)["never"]) == (0, "pass")
    assert accepted.changes == {"never": ("fail", "pass")}
    assert [v.check for v in accepted.verdicts if judge.JUDGED_BY in v.evidence] == ["never"]


def test_a_built_in_check_of_another_version_judges_and_says_so(tmp_path: Path) -> None:
    known = catalogue()
    checkers = {
        name: dataclasses.replace(p, code=p.code + b"#" * (name == "finished")) for name, p in known.checkers.items()
    }
    directory, _ = sealed(tmp_path, dataclasses.replace(known, checkers=checkers))
    later = judging.conclude(known, directory)
    assert later.code == 0
    assert [v.check for v in later.verdicts if judge.JUDGED_BY in v.evidence] == ["finished"]


def test_checks_that_are_there_later_do_not_judge_what_was_planned_without_them(tmp_path: Path) -> None:
    directory, result = sealed(tmp_path, catalogue())
    later = judging.conclude(catalogue(folder(tmp_path / "own")), directory)
    assert (result.code, later.code) == (0, 0)
    assert outcomes(later) == outcomes(result)


def test_a_check_that_the_trial_names_is_judged_though_the_plan_lacks_it(tmp_path: Path) -> None:
    known = catalogue()
    directory, _ = sealed(tmp_path, known)
    named = dataclasses.replace(history.trial(), checks=(CheckSpec(name="absent"),))
    bundle.write_inputs(directory, {bundle.TRIAL: named})
    seal.seal(directory)
    assert judging.conclude(known, directory).code == 2


def test_a_bundle_of_format_one_is_judged_by_what_the_catalogue_chooses(tmp_path: Path) -> None:
    known = catalogue(folder(tmp_path / "own", "pass"))
    directory, result = sealed(tmp_path, known, trial())
    _without_checks(directory)
    assert judging.conclude(catalogue(), directory).code == 2
    later = judging.conclude(known, directory)
    assert (later.code, later.verdicts) == (0, result.verdicts)


def test_in_format_two_a_plan_without_checks_proves_nothing(tmp_path: Path) -> None:
    known = catalogue()
    directory, _ = sealed(tmp_path, known, format=2)
    _without_checks(directory)
    with pytest.raises(paths.TornBundleError, match=r"plan.json: checks: not a list of checks \(it is empty\)"):
        judging.conclude(known, directory)


def test_the_plan_of_a_run_lists_its_checks_and_its_workload() -> None:
    plan = test_plan.planned(test_plan.trial("checks: [detected-within: 3s]"))
    assert plan.checks is not None and plan.workload is not None
    (check,) = [check for check in plan.checks if check.name == "detected-within"]
    assert (check.params, check.source, check.sha256) == (
        {"seconds": 3.0},
        BUILT_IN,
        _sha("checkers/detected_within.py"),
    )
    assert (plan.workload.name, plan.workload.sha256) == ("train-dp", _sha("workloads/train_dp.py"))
    assert codec.build(Plan, json.loads(json.dumps(codec.plain(plan)))) == plan


def _sha(file: str) -> str:
    return hashlib.sha256((Path(plugins.__file__).parent / file).read_bytes()).hexdigest()


def _without_checks(directory: Path) -> None:
    plan = json.loads((directory / bundle.PLAN).read_text())
    del plan["checks"]
    paths.write_json(directory / bundle.PLAN, plan)
    seal.seal(directory)


def test_what_shows_whether_the_plan_was_edited_judges_though_the_plan_does_not_list_it(tmp_path: Path) -> None:
    directory, result = sealed(tmp_path, catalogue(), format=2)
    assert "evidence-agrees" not in (directory / bundle.PLAN).read_text()
    assert outcomes(result)["evidence-agrees"] == "unknown"
    assert outcomes(judging.conclude(plugins.discover(), directory))["evidence-agrees"] != "pass"


def twinned(tmp_path: Path, *names: str) -> tuple[Path, Result]:
    """A run with --no-reference of a workload whose default is bit-exact; the trial names ``names``."""
    own = folder(tmp_path / "own", "pass")
    file = own / "workloads/mine.py"
    file.write_text(file.read_text().replace('"never"', '"bit-exact"'))
    named = tuple(CheckSpec(name=name) for name in names)
    return sealed(tmp_path, catalogue(own), trial(checks=named), twin=False)


def test_without_a_twin_a_default_check_is_listed_as_not_checked_and_alters_no_exit_code(tmp_path: Path) -> None:
    directory, result = twinned(tmp_path)
    assert (result.code, outcomes(result)["bit-exact"]) == (0, "skipped")
    assert "not checked" in text(result, "bit-exact")
    report = directory / bundle.REPORT
    assert 'skipped="3"' in (report / "junit.xml").read_text()
    assert "| skipped | bit-exact | not checked" in (report / "summary.md").read_text()
    assert "not checked" in (report / "index.html").read_text()
    assert 'check="bit-exact"' not in (report / "metrics.prom").read_text()


def test_without_a_twin_a_check_that_the_trial_names_is_unknown(tmp_path: Path) -> None:
    _, result = twinned(tmp_path, "bit-exact")
    assert (result.code, outcomes(result)["bit-exact"]) == (2, "unknown")


def test_a_run_of_which_everything_was_skipped_is_unknown() -> None:
    skipped = [Verdict(check="bit-exact", outcome="skipped", text="not checked")]
    assert judge.exit_code(skipped, "finished") == 2
    assert rungs.worst(skipped) == "unknown"


def test_the_terminal_lists_what_was_not_checked(tmp_path: Path) -> None:
    directory, result = twinned(tmp_path)
    out = io.StringIO()
    session = Session(state=tmp_path, terminal=terminal.Terminal(out=out, err=out, verbosity=1))
    assert summary_lines.show(session, result) == 0
    assert "skipped bit-exact: not checked" in out.getvalue()
    assert f"--plugins {directory}/inputs/plugins" in out.getvalue().replace(os.path.relpath(directory), str(directory))


@pytest.mark.parametrize("saved", [True, False], ids=["with its verdicts", "without its verdicts"])
def test_a_bundle_of_format_one_never_passes_without_the_plugins_that_failed_it(tmp_path: Path, saved: bool) -> None:
    directory, result = sealed(tmp_path, catalogue(folder(tmp_path / "own", always=False)), trial())
    _without_checks(directory)
    if not saved:
        (directory / bundle.VERDICTS).unlink()
    later = judging.conclude(catalogue(), directory)
    assert (result.code, later.code) == (1, 2)
    assert outcomes(later).get("never") == ("unknown" if saved else None)
    assert outcomes(later)["workload mine"] == "unknown"
    assert "--plugins" in text(later, "workload mine")


def test_the_terminal_names_the_plugins_of_the_run_that_are_not_loaded(tmp_path: Path) -> None:
    directory, result = sealed(tmp_path, catalogue(folder(tmp_path / "own")), trial())
    for folders, noted in (((), True), ((directory / bundle.PLUGINS,), False)):
        out = io.StringIO()
        session = Session(state=tmp_path, terminal=terminal.Terminal(out=out, err=out), plugins=folders)
        summary_lines.show(session, result)
        names = "not loaded: checker never, report own, workload mine (--plugins "
        assert (names in out.getvalue()) is noted


@pytest.mark.parametrize(("code", "noted"), [("0" * 64, True), (rank_payload.controller_digest(), False)])
def test_the_terminal_says_where_another_version_of_ccbed_judges(tmp_path: Path, code: str, noted: bool) -> None:
    directory, result = sealed(tmp_path, catalogue())
    first, *others = (directory / bundle.HISTORY).read_text().splitlines(keepends=True)
    begin = json.loads(first)
    begin["value"]["code"] = code
    (directory / bundle.HISTORY).write_text(json.dumps(begin) + "\n" + "".join(others))
    out = io.StringIO()
    session = Session(state=tmp_path, terminal=terminal.Terminal(out=out, err=out))
    summary_lines.show(session, dataclasses.replace(result, judged=None))
    assert ("judged by another version of ccbed" in out.getvalue()) is noted


def test_a_plan_that_skips_a_failing_check_does_not_hide_it(tmp_path: Path) -> None:
    known = catalogue(folder(tmp_path / "own"))
    directory, result = sealed(tmp_path, known)
    _change_checks(directory, lambda check: {**check, "skipped": "not today"})
    later = judging.conclude(known, directory)
    assert (result.code, later.code, outcomes(later)["never"]) == (1, 1, "fail")


@pytest.mark.parametrize("change", [{"name": {}}, {"name": 5}, {"params": []}, {"sha256": 1}, {"skipped": ["x"]}])
def test_a_list_of_checks_of_another_shape_is_one_error_with_its_place(tmp_path: Path, change: dict[str, Any]) -> None:
    directory, _ = sealed(tmp_path, catalogue())
    _change_checks(directory, lambda check: {**check, **change})
    with pytest.raises(paths.TornBundleError, match=r"plan\.json: checks\[0\]\."):
        judging.conclude(catalogue(), directory)


def _change_checks(directory: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    plan = json.loads((directory / bundle.PLAN).read_text())
    plan["checks"] = [change(check) for check in plan["checks"]]
    paths.write_json(directory / bundle.PLAN, plan)
    seal.seal(directory)


def test_reports_are_written_again_only_if_a_verdict_or_a_file_has_changed(tmp_path: Path) -> None:
    directory, _ = sealed(tmp_path, catalogue())
    page = directory / bundle.REPORT / "summary.md"
    written = page.stat().st_mtime_ns
    judging.conclude(catalogue(), directory, redraw=False)
    assert page.stat().st_mtime_ns == written
    page.write_text("edited")
    judging.conclude(catalogue(), directory, redraw=False)
    assert page.read_text() != "edited"
    verdicts = (directory / bundle.VERDICTS).read_text()
    (directory / bundle.VERDICTS).write_text(verdicts.replace('"pass"', '"unknown"', 1))
    files = sorted(
        str(file.relative_to(directory)) for file in (directory / bundle.REPORT).rglob("*") if file.is_file()
    )
    seal.write(directory, seal.DERIVED, [bundle.VERDICTS, *files])
    judging.conclude(catalogue(), directory, redraw=False)
    assert (directory / bundle.VERDICTS).read_text() == verdicts
    judging.conclude(catalogue(), directory)
    assert page.stat().st_mtime_ns != written


BY_KEY = CHECKER.replace(
    'outcome="{outcome}", text="it {outcome}s")',
    'outcome="pass" if run.is_signed else "unknown", text="", evidence={{"bed_key": True}} if run.is_signed else {{}})',
)


def test_a_verdict_that_was_saved_with_the_beds_key_is_not_called_changed_without_saying_so(tmp_path: Path) -> None:
    own = folder(tmp_path / "own")
    (own / "checkers/never.py").write_text(BY_KEY.format(always=True, outcome="pass"))
    directory, result = sealed(tmp_path, known := catalogue(own))
    assert (outcomes(result)["never"], result.changes) == ("unknown", {})
    signed = [judging.conclude(known, directory, is_signed=True).changes for _ in range(2)]
    assert signed == [{"never": ("unknown without --bed-key", "pass")}, {}]
    unsigned = [judging.conclude(known, directory).changes for _ in range(2)]
    assert unsigned == [{"never": ("pass with --bed-key", "unknown")}, {}]


def test_a_change_by_the_same_key_is_told_as_before(tmp_path: Path) -> None:
    own = folder(tmp_path / "own")
    directory, _ = sealed(tmp_path, known := catalogue(own), trial())
    damaged = bundle.read_verdicts(directory)
    bundle.write_derived(directory, tuple(dataclasses.replace(item, outcome="pass") for item in damaged), {})
    assert judging.conclude(known, directory).changes["never"] == ("pass", "fail")
