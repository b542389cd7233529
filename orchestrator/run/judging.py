"""Judge a run that has ended by the checks that its sealed plan lists, and draw its reports."""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import views
from ..core.verdict import judge, run_metrics
from ..model.errors import EXIT_PASS
from ..model.events import GatherDone
from ..model.launch import Request, Result
from ..model.plugin import Catalogue
from ..model.run import Run
from ..model.verdict import Verdict
from ..store import bundle, paths, seal

#: Signs the digest of a manifest: see ``model.provider.Provider.sign``.
Sign = Callable[[str], Mapping[str, str]]


def signer(request: Request) -> Sign:
    """Return what the keepers of the bed sign a bundle with."""
    return functools.partial(request.provider.sign, request.bed)


def forget(request: Request, directory: Path, code: int) -> None:
    """Remove the files of a sealed run from its nodes; of one that did not pass those that its bundle has as well."""
    gathered = None if code == EXIT_PASS else bundle.read_history(directory).last(GatherDone)
    if code == EXIT_PASS or (gathered and not gathered.data.missing and not gathered.data.capped):
        request.provider.forget(request.bed, directory.name, is_gathered=code != EXIT_PASS)


def _no_keeper(digest: str) -> Mapping[str, str]:
    return {}


def close(directory: Path, workdir: Path | None, sign: Sign = _no_keeper) -> None:
    """Store the keepers' events and the metrics of a run that has ended, and seal its evidence, unless it is sealed.

    ``workdir``: of its bed; None where the bed no longer exists. ``sign``: by its keepers, where they can be reached.
    """
    if not bundle.is_sealed(directory):
        _complete(directory, workdir)
        seal.seal(directory, sign)


def _complete(directory: Path, workdir: Path | None) -> None:
    if workdir is not None:
        bundle.keep_keeper_events(directory, workdir)
    lines = run_metrics.lines(bundle.load(directory))
    paths.write(directory / "metrics.jsonl", "".join(f"{line}\n" for line in lines).encode())


def conclude(
    catalogue: Catalogue,
    directory: Path,
    *,
    accept_changed: bool = False,
    is_signed: bool = False,
    read_only: bool = False,
    redraw: bool = True,
    on_request: Collection[str] = (),
    on_stage: Callable[[str], None] = lambda text: None,
) -> Result:
    """Judge a sealed run from its evidence alone, and draw its reports. Raises TornBundleError.

    ``redraw``: also where the verdicts are those that were saved, and the files match their checksums.

    ``read_only``: where verdicts and reports cannot be saved, the result says why; else OSError is raised.
    ``on_request``: reports that are written only if they are named. ``on_stage`` gets what begins now.
    ``accept_changed``: a plugin judges although its file has changed since the run was planned. ``is_signed``: see ``Run``.
    """
    run = replace(bundle.load(directory, judged=False), is_signed=is_signed)
    before = _saved_verdicts(directory)
    saved = {verdict.check: verdict.outcome for verdict in before}
    listed = bundle.planned_checks(run)
    chosen = judge.unlisted(run, catalogue, saved) if listed is None else judge.listed(run, listed)
    on_stage(f"judging the evidence by {len(chosen)} checks")
    verdicts = judge.judge(run, catalogue, chosen, accept_changed=accept_changed)
    unable = judge.obstacles(chosen, catalogue, accept_changed=accept_changed)
    unsaved = tuple(check for check in unable if saved.get(check) in ("pass", "fail"))
    run, obstacle, changes = replace(run, verdicts=verdicts), "", judge.changes(saved, verdicts)
    how = "with" if any(verdict.evidence.get("bed_key") for verdict in before) else "without"
    if is_signed != (how == "with"):  # what judges has changed, and not the evidence
        changes = {check: (f"{old} {how} --bed-key", new) for check, (old, new) in changes.items()}
    if not unsaved and (redraw or verdicts != before or not seal.is_derived(directory)):
        on_stage("writing the report")
        obstacle = _save(directory, verdicts, render_reports(run, catalogue, on_request), read_only=read_only)
    outcome, _, kind = views.ending(run.history)
    code = judge.exit_code(verdicts, outcome, kind, run.trial.require)
    return Result(
        run=directory.name, directory=str(directory), code=code, verdicts=verdicts,
        changes=changes, unsaved=unsaved, obstacle=obstacle, judged=run,
    )  # fmt: skip


def passes(catalogue: Catalogue, directory: Path, workdir: Path) -> bool:
    """Return whether a run that has ended and is not sealed would pass."""
    _complete(directory, workdir)
    run = bundle.load(directory, judged=False)
    verdicts = judge.judge(run, catalogue, judge.listed(run, bundle.planned_checks(run) or ()))
    outcome, _, kind = views.ending(run.history)
    return judge.exit_code(verdicts, outcome, kind, run.trial.require) == EXIT_PASS


def finish(
    catalogue: Catalogue,
    directory: Path,
    workdir: Path | None = None,
    sign: Sign = _no_keeper,
    on_stage: Callable[[str], None] = lambda text: None,
) -> Result:
    """Seal the evidence of a run that has ended, and judge it. ``workdir``, ``sign``: see ``close``. Raises TornBundleError."""
    on_stage("writing checksums and signatures of the evidence")
    close(directory, workdir, sign)
    return conclude(catalogue, directory, on_stage=on_stage)


def _save(directory: Path, verdicts: tuple[Verdict, ...], reports: Mapping[str, bytes], *, read_only: bool) -> str:
    """Return why verdicts and reports cannot be saved; empty where they are. Raises OSError unless ``read_only``."""
    try:
        bundle.write_derived(directory, verdicts, reports)
    except OSError as error:
        if not read_only:
            raise
        return f"{error.filename or directory}: {error.strerror}"
    return ""


def _saved_verdicts(directory: Path) -> tuple[Verdict, ...]:
    """Return the saved verdicts; none where they are missing or damaged."""
    try:
        return bundle.read_verdicts(directory)
    except paths.TornBundleError:
        return ()


def warm_up_reports(catalogue: Catalogue) -> threading.Thread:
    """Load in the background what draws the reports. An error is reported when the report is drawn."""

    def load() -> None:
        with suppress(Exception):
            for plugin in catalogue.reports.values():
                getattr(plugin.module, "warm_up", lambda: None)()

    thread = threading.Thread(target=load, daemon=True, name="ccbed-reports")
    thread.start()
    return thread


def render_reports(run: Run, catalogue: Catalogue, on_request: Collection[str] = ()) -> dict[str, bytes]:
    """Every report by its path; one that is written on request only if it is named. A report that fails is replaced by its traceback."""
    files: dict[str, bytes] = {}
    for plugin in catalogue.reports.values():
        module: Any = plugin.module
        if getattr(module, "ON_REQUEST", False) and plugin.name not in on_request:
            continue
        try:
            files.update(module.render(run))
        except (Exception, SystemExit):  # noqa: BLE001 a user's plugin: whatever it raises, the verdicts stand
            files[f"{plugin.name}-failed.txt"] = traceback.format_exc().encode()
    return files
