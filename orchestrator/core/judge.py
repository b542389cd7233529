"""From a finished run to verdicts, and from verdicts to an exit code. Pure; a checker that breaks proves nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

from .. import views
from ..model import codec, errors
from ..model.plugin import Catalogue, Checker, Plugin
from ..model.run import Run
from ..model.trial import CheckSpec, Trial
from ..model.verdict import Verdict

#: Checkers that compare what bundles state since format 2.
SINCE_2 = ("evidence-agrees",)


def specs(trial: Trial, catalogue: Catalogue) -> tuple[CheckSpec, ...]:
    """What is checked: the checkers that always run, those of the workload, those of the trial, each once.

    Where one is named twice, the later, more special, wins; the order is that of the first mention.
    """
    always = (name for name, plugin in catalogue.checkers.items() if _checker(plugin).ALWAYS)
    workload = catalogue.workloads.get(trial.workload)
    usual: Iterable[str] = getattr(workload.module, "CHECKS", ()) if workload else ()
    chosen = {name: CheckSpec(name=name) for name in (*always, *usual)}
    for spec in trial.checks:
        chosen[spec.name] = spec
    return tuple(chosen.values())


def needs_twin(chosen: Iterable[CheckSpec], catalogue: Catalogue) -> bool:
    """Whether one of the checkers compares with an uninterrupted run."""
    known = (catalogue.checkers.get(spec.name) for spec in chosen)
    return any(_checker(plugin).TWIN for plugin in known if plugin)


def without_twin(chosen: Iterable[CheckSpec], catalogue: Catalogue) -> tuple[CheckSpec, ...]:
    """What is left to check of a run that was asked to have no twin."""
    return tuple(spec for spec in chosen if not needs_twin((spec,), catalogue))


def for_format(chosen: Iterable[CheckSpec], format: int, required: int = 1) -> tuple[CheckSpec, ...]:
    """What can be checked in a bundle of ``format``: format 1 is judged by its own rules, unless more is ``required``."""
    return tuple(spec for spec in chosen if format >= 2 or required >= 2 or spec.name not in SINCE_2)


def judge(run: Run, catalogue: Catalogue, chosen: Iterable[CheckSpec]) -> tuple[Verdict, ...]:
    """The verdict of every chosen checker, in order."""
    return tuple(_verdict(run, catalogue.checkers.get(spec.name), spec) for spec in chosen)


def exit_code(verdicts: Iterable[Verdict], outcome: str, kind: str = "") -> int:
    """The first that applies of model.errors.PRECEDENCE. ``outcome`` and ``kind`` are those of ``run.end``.

    A planned fault that was not recovered from is a finding about the system under test, not a failure of the bed. No
    verdict at all is unknown: everything was skipped.
    """
    found = {verdict.outcome for verdict in verdicts}
    applies: Mapping[int, bool] = {
        errors.EXIT_INTERRUPTED: outcome == "interrupted",
        errors.EXIT_INFRASTRUCTURE: kind == "infrastructure",
        errors.EXIT_FINDING: "fail" in found or outcome == "failed",
        errors.EXIT_UNKNOWN: "unknown" in found or not found or outcome != "finished",
    }
    return next((code for code in errors.PRECEDENCE if applies.get(code)), errors.EXIT_PASS)


def _verdict(run: Run, plugin: Plugin | None, spec: CheckSpec) -> Verdict:
    if plugin is None:
        return views.unknown(spec.name, "there is no checker of this name")
    checker = _checker(plugin)
    try:
        params: Any = codec.build(checker.Params, dict(spec.params))
        return dataclasses.replace(checker.check(run, params), check=spec.name)
    except Exception as error:  # whatever it is, the other verdicts are still to be had
        return views.unknown(spec.name, f"the checker failed: {type(error).__name__}: {error}")


def _checker(plugin: Plugin) -> Checker:
    return cast(Checker, plugin.module)
