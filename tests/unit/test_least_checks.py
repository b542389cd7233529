"""A bundle cannot choose the checks that judge it."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import __version__, plugins
from orchestrator.core.verdict import judge, least_checks
from orchestrator.model import codec
from orchestrator.model.events import RunBegin
from orchestrator.model.plan import PlannedCheck
from orchestrator.model.run import Run
from orchestrator.model.trial import CheckSpec
from orchestrator.store.bundle import FORMAT
from orchestrator.views.agreement import identity

from . import history
from .verdicts import ask

CATALOGUE = plugins.discover(())
#: The format and the version that this code writes.
NOW = (FORMAT, __version__)
Checks = tuple[PlannedCheck, ...]


def test_the_row_of_this_version_is_what_this_version_plans() -> None:
    """A new default check, or a new version, needs a new row: append it."""
    row = least_checks.ROWS[NOW]
    assert row.always == tuple(name for name, plugin in CATALOGUE.checkers.items() if plugin.module.ALWAYS)
    assert set(row.twin) == {name for name, plugin in CATALOGUE.checkers.items() if plugin.module.TWIN}
    modules = {name: plugin.module for name, plugin in CATALOGUE.workloads.items()}
    assert {name: set(names) for name, names in row.workloads.items()} == {
        name: set(getattr(module, "CHECKS", ())) for name, module in modules.items()
    }
    assert {name: set(names) for name, names in row.faults.items()} == {
        name: set(module.CHECKS_OF_FAULTS) for name, module in modules.items() if hasattr(module, "CHECKS_OF_FAULTS")
    }


def ran(wrote: tuple[int, str] = NOW, **changes: Any) -> Run:
    """A run whose trial names ``detected-within: 2s``, and its plan as this version wrote it."""
    run = history.reference()
    trial = dataclasses.replace(
        run.trial, checks=(CheckSpec(name="detected-within", params={"seconds": 2.0}),), **changes
    )
    plan = {"checks": codec.plain(judge.planned(trial, CATALOGUE, twin=True))}
    extras = {**run.extras, "plan.json": plan, "bundle.json": {"format": wrote[0], "ccbed": wrote[1]}}
    return dataclasses.replace(run, trial=trial, extras=extras)


def edited(run: Run, change: Callable[[Checks], Checks]) -> tuple[Run, Checks]:
    checks = change(codec.build(tuple[PlannedCheck, ...], run.extras["plan.json"]["checks"]))
    return dataclasses.replace(run, extras={**run.extras, "plan.json": {"checks": codec.plain(checks)}}), checks


def without(*names: str) -> Callable[[Checks], Checks]:
    return lambda checks: tuple(check for check in checks if check.name not in names)


def only(*names: str) -> Callable[[Checks], Checks]:
    return lambda checks: tuple(check for check in checks if check.name in names)


def changed(name: str, **values: Any) -> Callable[[Checks], Checks]:
    return lambda checks: tuple(
        dataclasses.replace(check, **values) if check.name == name else check for check in checks
    )


EDITS = {
    "left out": (without("resume-complete", "replay-equal"), ["resume-complete", "replay-equal"]),
    "only finished": (only("finished"), ["evidence-agrees", "bit-exact", "detected-within", "no-hang"]),
    "weaker": (changed("detected-within", params={"seconds": 999.0}), ["detected-within"]),
    "a default made weaker": (changed("resumed-newest", params={"within": 5}), ["resumed-newest"]),
    "skipped": (changed("replay-equal", skipped="not checked"), ["replay-equal"]),
    "named and skipped": (changed("detected-within", skipped="not checked"), ["detected-within"]),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("wrote", [NOW, (FORMAT, "99.0"), (FORMAT, "None")], ids=["known", "another version", "none"])
def test_a_check_that_is_missing_or_weaker_is_a_finding_and_judges_as_it_was_planned(
    edit: str, wrote: tuple[int, str]
) -> None:
    change, names = EDITS[edit]
    run = ran(wrote, workload="script")
    assert least_checks.findings(run) == () or wrote != NOW
    run, checks = edited(run, change)
    text = " ".join(least_checks.findings(run))
    judging = {check.name: check for check in judge.listed(run, checks)}
    planned = {check.name: check for check in judge.planned(run.trial, CATALOGUE, twin=True)}
    for name in names:
        assert name in text
        assert judging[name].params == planned[name].params
        assert not getattr(judging[name], "skipped", "")


@pytest.mark.parametrize(("has_twin", "findings"), [(True, 2), (False, 0)])
def test_a_comparison_is_skipped_only_where_there_is_no_reference_run(has_twin: bool, findings: int) -> None:
    run = ran()
    run = dataclasses.replace(run, twin=run.twin if has_twin else None)
    assert (run.twin is not None) == has_twin
    run, checks = edited(
        run, lambda own: changed("baseline-clean", skipped="x")(changed("bit-exact", skipped="x")(own))
    )
    assert len(least_checks.findings(run)) == findings
    skipped = {check.name for check in judge.listed(run, checks) if isinstance(check, PlannedCheck) and check.skipped}
    assert skipped == (set() if has_twin else {"bit-exact", "baseline-clean"})


def test_a_comparison_that_the_trial_names_is_not_skipped() -> None:
    run = dataclasses.replace(ran(), twin=None)
    trial = dataclasses.replace(run.trial, checks=(*run.trial.checks, CheckSpec(name="bit-exact")))
    run, checks = edited(dataclasses.replace(run, trial=trial), changed("bit-exact", skipped="not checked"))
    assert least_checks.findings(run) == ("plan.json skips bit-exact, which its trial implies",)
    assert "bit-exact" not in {check.name for check in judge.listed(run, checks) if getattr(check, "skipped", "")}


def test_another_version_is_judged_by_all_rows_and_unknown_at_most() -> None:
    assert least_checks.doubt(ran()) == ""
    other = ran((FORMAT, "0.0.1"))
    assert "format 2 of ccbed 0.0.1" in least_checks.doubt(other)
    run, checks = edited(other, only("finished"))
    implied = {check.name for check in judge.listed(run, checks)}
    assert {check.name for check in judge.planned(run.trial, CATALOGUE, twin=True)} <= implied


def test_the_signed_plan_of_another_version_judges() -> None:
    """A version that is in the table keeps its row, also where the keepers signed a weaker plan."""
    signed = dataclasses.replace(ran((FORMAT, "99.0")), is_signed=True)
    run, checks = edited(signed, only("finished"))
    assert (least_checks.doubt(run), least_checks.findings(run)) == ("", ())
    assert [check.name for check in judge.listed(run, checks)] == ["finished"]
    known, _ = edited(dataclasses.replace(ran(), is_signed=True), only("finished"))
    assert len(least_checks.findings(known)) > 5
    assert "ccbed check --bed-key FILE" in least_checks.doubt(ran((FORMAT, "99.0")))


def test_the_verdict_says_whether_the_beds_key_was_used() -> None:
    run = ran()
    files: Any = run.files
    files.texts["plan.json"] = json.dumps(run.extras["plan.json"])
    assert ask(dataclasses.replace(run, is_signed=True), "evidence-agrees").evidence["bed_key"] is True
    assert "bed_key" not in ask(run, "evidence-agrees").evidence


@pytest.mark.parametrize("weaker", [{"require": "survived"}, {"accept": ("rng",)}])
def test_a_rung_that_is_edited_contradicts_the_id_that_the_run_began_with(weaker: dict[str, Any]) -> None:
    """And no plan has fewer checks for it: what counts is drawn from their verdicts."""
    run = history.reference()
    begin = run.history.first(RunBegin)
    assert begin is not None
    files, code = typing.cast("Any", (run.files, begin.data.code))
    files.texts["plan.json"] = ""
    run = dataclasses.replace(run, code=code)
    edit = dataclasses.replace(run, trial=dataclasses.replace(run.trial, **weaker))
    assert edit.trial.id != run.trial.id
    assert any(f"the bundle has {edit.trial.id}" in item.text for item in identity(edit))
    assert judge.planned(edit.trial, CATALOGUE, twin=True) == judge.planned(run.trial, CATALOGUE, twin=True)
