"""Judge a finished run: the verdict of every check, and the exit code. The outcome of a failed checker is unknown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ... import views
from ...model import codec, errors
from ...model.plan import PlannedCheck
from ...model.plugin import BUILT_IN, Catalogue, Checker, Plugin
from ...model.run import Run
from ...model.trial import CheckSpec, Trial
from ...model.verdict import Verdict
from . import least_checks, rungs

#: Checkers of facts that no bundle of format 1 has.
NEW_IN_2 = ("times-possible", "gaps-kept")
#: The exit code of a run's overall outcome.
EXIT_CODES = {
    "interrupted": errors.EXIT_INTERRUPTED,
    "broken": errors.EXIT_INFRASTRUCTURE,
    "fail": errors.EXIT_FINDING,
    "unknown": errors.EXIT_UNKNOWN,
    "pass": errors.EXIT_PASS,
}
#: The outcomes that a checker may return.
OUTCOMES = ("pass", "fail", "unknown")
#: The reason for skipping a check that needs a twin.
NO_TWIN = "not checked: the run has no reference run to compare with (--no-reference): --reference"
#: The hint to the files of a run's plugins.
FROM_BUNDLE = "the bundle has it: --plugins inputs/plugins"
#: Key and value in the evidence of a verdict if the file of the check has changed since the run was planned.
JUDGED_BY, ANOTHER_VERSION = "judged_by", "another version of the check than the run was planned with"


def specs(trial: Trial, catalogue: Catalogue) -> tuple[CheckSpec, ...]:
    """The checks: those that always run, those of the workload, with ``CHECKS_OF_FAULTS`` if a fault is planned, and the trial's.

    If a check is named twice, the later, more specific entry applies; the order is that of the first entry.
    """
    always = (name for name in catalogue.checkers if _runs_always(name, catalogue))
    workload = catalogue.workloads.get(trial.workload)
    defaults: Iterable[str] = getattr(workload.module, "CHECKS", ()) if workload else ()
    recovery: Iterable[str] = getattr(workload.module, "CHECKS_OF_FAULTS", ()) if workload and trial.faults else ()
    chosen = {name: CheckSpec(name=name) for name in (*always, *defaults, *recovery)}
    for spec in trial.checks:
        chosen[spec.name] = spec
    return tuple(chosen.values())


def _runs_always(name: str, catalogue: Catalogue) -> bool:
    if name in catalogue.built_in.get("checkers", ()):
        return name in catalogue.always
    return _checker(catalogue.checkers[name]).ALWAYS


def needs_twin(chosen: Iterable[CheckSpec], catalogue: Catalogue) -> bool:
    """Return whether one of the checkers compares the run with its twin."""
    known = (catalogue.checkers.get(spec.name) for spec in chosen)
    return any(_checker(plugin).TWIN for plugin in known if plugin)


def planned(trial: Trial, catalogue: Catalogue, *, twin: bool) -> tuple[PlannedCheck, ...]:
    """The checks that judge a run of this trial, for its plan.

    Without a twin, default checks that need one are skipped; the trial's own checks are run.
    """
    own = {spec.name for spec in trial.checks}
    chosen = specs(trial, catalogue)
    skipped = [] if twin else [s.name for s in chosen if s.name not in own and needs_twin((s,), catalogue)]
    return tuple(_planned(spec, catalogue, NO_TWIN if spec.name in skipped else "") for spec in chosen)


def listed(run: Run, checks: Iterable[PlannedCheck]) -> tuple[CheckSpec, ...]:
    """The checks of a plan, and those that its trial implies: see ``least_checks``."""
    checks = tuple(checks)
    stronger = {check.name: check for check, _ in least_checks.missing(run, checks)}
    return (*(stronger.pop(check.name, check) for check in checks), *stronger.values())


def unlisted(run: Run, catalogue: Catalogue, before: Iterable[str]) -> tuple[CheckSpec, ...]:
    """The checks for a bundle of format 1, whose plan lists none: those of the catalogue, and those of earlier verdicts.

    A workload that is not loaded may name more checks, so it is listed as a check that cannot be run.
    """
    twin = bool(views.mapping(run.extras.get("bundle.json")).get("twin", True))
    chosen = tuple(c for c in planned(run.trial, catalogue, twin=twin) if c.name not in NEW_IN_2)
    workload = f"workload {run.trial.workload}"
    names = {*before} - {workload} - {check.name for check in chosen}
    missing = () if run.trial.workload in catalogue.workloads else (workload,)
    return (*chosen, *(CheckSpec(name=name) for name in (*sorted(names), *missing)))


def obstacles(chosen: Iterable[CheckSpec], catalogue: Catalogue, *, accept_changed: bool = False) -> dict[str, str]:
    """Check -> why the checker with which the run was planned cannot judge it now.

    A built-in checker of another version may judge; a changed plugin may judge only if ``accept_changed``.
    """
    reasons: dict[str, str] = {}
    for check in chosen:
        plugin = catalogue.checkers.get(check.name)
        if plugin is None:
            reasons[check.name] = _absent(check)
        elif _is_changed(check, plugin) and not (accept_changed or _both_built_in(check, plugin)):
            reasons[check.name] = f"the file of the check is not the one that the run was planned with ({FROM_BUNDLE})"
    return reasons


def judge(
    run: Run, catalogue: Catalogue, chosen: Iterable[CheckSpec], *, accept_changed: bool = False
) -> tuple[Verdict, ...]:
    """The verdict of every chosen check, in order."""
    chosen = tuple(chosen)
    reasons = obstacles(chosen, catalogue, accept_changed=accept_changed)
    return tuple(_verdict(run, catalogue, spec, reasons.get(spec.name, "")) for spec in chosen)


def changes(before: Mapping[str, str], verdicts: Iterable[Verdict]) -> dict[str, tuple[str, str]]:
    """Check -> (earlier outcome, outcome now) if they differ; empty if there are no earlier verdicts."""
    now = {verdict.check: verdict.outcome for verdict in verdicts}
    names = [name for name in dict.fromkeys((*before, *now)) if before and before.get(name) != now.get(name)]
    return {name: (before.get(name, "not listed"), now.get(name, "not listed")) for name in names}


def exit_code(verdicts: Iterable[Verdict], outcome: str, kind: str = "", require: str = "exact") -> int:
    """The exit code of the run's overall outcome. ``outcome`` and ``kind`` are those of ``run.end``; ``require``: of its trial."""
    return EXIT_CODES[rungs.overall(verdicts, outcome, kind, require)]


def _verdict(run: Run, catalogue: Catalogue, spec: CheckSpec, obstacle: str) -> Verdict:
    if isinstance(spec, PlannedCheck) and spec.skipped:
        return Verdict(check=spec.name, outcome="skipped", text=spec.skipped)
    if obstacle:
        return views.unknown(spec.name, obstacle)
    plugin = catalogue.checkers[spec.name]
    checker = _checker(plugin)
    try:
        params: Any = codec.build(checker.Params, dict(spec.params))
        verdict = dataclasses.replace(checker.check(run, params), check=spec.name)
        if verdict.outcome == "skipped" and plugin.source == BUILT_IN and getattr(checker, "SKIPS", False):
            return _skipped(verdict, named=any(own.name == spec.name for own in run.trial.checks))
        verdict = _valid(verdict)
    except errors.CcbedError as error:  # evidence that cannot be read
        return views.unknown(spec.name, str(error))
    except (Exception, SystemExit) as error:  # a plugin may raise anything; the other checks must still run
        return views.unknown(spec.name, f"the checker failed: {type(error).__name__}: {error}")
    if not _is_changed(spec, plugin):
        return verdict
    return dataclasses.replace(verdict, evidence={**verdict.evidence, JUDGED_BY: ANOTHER_VERSION})


def _skipped(verdict: Verdict, *, named: bool) -> Verdict:
    """A built-in check without the required facts is skipped if it is a default, unknown if the trial names it."""
    return views.unknown(verdict.check, verdict.text) if named else verdict


def _valid(verdict: Verdict) -> Verdict:
    """The verdict, checked. Raises ValueError or TypeError for an invalid outcome and for values that cannot be saved."""
    if verdict.outcome not in OUTCOMES:
        raise ValueError(f"outcome must be one of {', '.join(OUTCOMES)} (got {verdict.outcome!r})")
    json.dumps(codec.plain(verdict))
    return dataclasses.replace(verdict, text=str(verdict.text))


def _planned(spec: CheckSpec, catalogue: Catalogue, skipped: str) -> PlannedCheck:
    check = PlannedCheck(name=spec.name, params=spec.params, skipped=skipped)
    plugin = catalogue.checkers.get(spec.name)
    return dataclasses.replace(check, sha256=plugin.sha256, source=plugin.source) if plugin else check


def _absent(check: CheckSpec) -> str:
    if isinstance(check, PlannedCheck) and check.source != BUILT_IN:
        return f"the plugin of this check is not loaded ({FROM_BUNDLE})"
    return "neither this version of ccbed nor a folder of --plugins has it"


def _is_changed(check: CheckSpec, plugin: Plugin) -> bool:
    return isinstance(check, PlannedCheck) and check.sha256 not in ("", plugin.sha256)


def _both_built_in(check: CheckSpec, plugin: Plugin) -> bool:
    return isinstance(check, PlannedCheck) and check.source == plugin.source == BUILT_IN


def _checker(plugin: Plugin) -> Checker:
    return cast(Checker, plugin.module)
