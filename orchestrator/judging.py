"""From a closed run to its verdicts and reports: by the checks that its sealed plan lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from . import rendering, views
from .core import judge
from .model.launch import Result
from .model.plugin import Catalogue
from .model.run import Run
from .model.trial import CheckSpec
from .store import bundle, paths


def conclude(catalogue: Catalogue, directory: Path, *, require_format: int = 1, accept_changed: bool = False) -> Result:
    """Verdicts and reports of a closed run, from its evidence alone. Raises TornBundleError.

    ``require_format``: what a bundle of an older format cannot show is unknown.
    ``accept_changed``: a plugin judges although its file is not the one that the run was planned with.
    """
    run = bundle.load(directory, judged=False)
    chosen = _checks(run, catalogue, require_format)
    verdicts = judge.judge(run, catalogue, chosen, accept_changed=accept_changed)
    before = _saved_outcomes(directory)
    unable = judge.obstacles(chosen, catalogue, accept_changed=accept_changed)
    unsaved = tuple(check for check in unable if before.get(check) in ("pass", "fail"))
    if not unsaved:
        run = replace(run, verdicts=verdicts)
        bundle.write_derived(directory, verdicts, rendering.rendered(run, catalogue))
    outcome, _, kind = views.ending(run.history)
    return Result(
        run=directory.name, directory=str(directory), code=judge.exit_code(verdicts, outcome, kind), verdicts=verdicts,
        changes=judge.changes(before, verdicts), unsaved=unsaved,
    )  # fmt: skip


def _saved_outcomes(directory: Path) -> Mapping[str, str]:
    """Of the verdicts that were saved before; none where they are missing or damaged."""
    try:
        return {verdict.check: verdict.outcome for verdict in bundle.read_verdicts(directory)}
    except paths.TornBundleError:
        return {}


def _checks(run: Run, catalogue: Catalogue, require_format: int) -> tuple[CheckSpec, ...]:
    """What the sealed plan lists; a bundle of format 1 lists nothing and is judged by what the catalogue chooses."""
    checks = bundle.planned_checks(run)
    if checks is None:
        checks = judge.planned(run.trial, catalogue, twin=bool(run.extras.get(bundle.BUNDLE, {}).get("twin", True)))
    return judge.for_format(judge.listed(run.trial, checks), run.format, require_format)
