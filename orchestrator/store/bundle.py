"""Bundles: create a run's directory, write its inputs, seal it, and read it."""

from __future__ import annotations

import datetime
import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ..core.documents import decoder
from ..model import codec
from ..model.errors import InfrastructureError, UsageError
from ..model.event import History
from ..model.events import RunBegin, RunEnd
from ..model.events.field_types import RANKS
from ..model.plan import Plan, PlannedCheck
from ..model.run import Run, Twin
from ..model.trial import Trial
from ..model.verdict import Verdict
from ..system import plain_files
from . import durable, journal, paths, rank_payload, recorded_files, seal

INPUTS = "inputs"
KEEPERS = "keepers"
TRIAL = "trial.json"
PLAN = "plan.json"
FINGERPRINT = "fingerprint.json"
BUNDLE = "bundle.json"
TWIN = "twin.json"
#: The reference runs that a run uses again if it passes, from its beginning until it is judged.
CHOSEN_TWIN = "chosen-twin.json"
NO_TWIN = "no-twin.json"
HISTORY = "history.jsonl"
VERDICTS = "verdicts.json"
REPORT = "report"
#: The files of the plugins that the run uses; a folder for ``--plugins``.
PLUGINS = "inputs/plugins"
LATEST = "latest"
#: The link to the newest night.
LATEST_NIGHT = "latest-night"
#: A directory with it is a night of a suite.
NIGHT = "night.json"
EXTRAS: Mapping[str, Any] = {PLAN: Plan, FINGERPRINT: decoder.Fingerprint, BUNDLE: decoder.About, NO_TWIN: dict}
#: The format that is written. Format 1 is still read, but its contents cannot be compared: its run.begin has no inputs.
FORMAT = 2
FORMATS = (1, FORMAT)


def name(trial: str, now: datetime.datetime, token: str) -> str:
    """``2026-11-21T02-00-07Z-dp-ring-3f9c``; ``now`` in UTC."""
    return f"{now:%Y-%m-%dT%H-%M-%SZ}-{trial}-{token}"


def new(runs: Path, trial: str, now: datetime.datetime | None = None, *, run: str = "") -> Path:
    """The path of the directory of a new run of ``trial``; only ``runs`` is created. Raises UsageError if it cannot be.

    ``run``: its name, where ``unused`` has chosen that before. git does not track ``runs``, unless it was there before.
    """
    try:
        is_new = not runs.exists()
        runs.mkdir(parents=True, exist_ok=True)
        if is_new and not (runs.parent / NIGHT).exists():  # that of a night is in a directory of runs
            (runs / ".gitignore").write_text("*\n")
    except OSError as error:
        raise _cannot_make(runs, error) from None
    return runs / run if run else unused(runs, trial, now)


def unused(runs: Path, trial: str, now: datetime.datetime | None = None) -> Path:
    """The path of the directory of a new run of ``trial``; nothing is created."""
    moment = now or datetime.datetime.now(datetime.UTC)
    while True:
        directory = runs / name(trial, moment, secrets.token_hex(2))
        if not os.path.lexists(directory):
            return directory


def make(directory: Path) -> None:
    """Create the directory of a run. Raises UsageError if it cannot be created, or exists already."""
    try:
        durable.perform((durable.MakeDirectory(path=directory, new=True), durable.SyncDirectory(path=directory.parent)))
    except OSError as error:
        raise _cannot_make(directory.parent, error) from None


def _cannot_make(runs: Path, error: OSError) -> UsageError:
    return UsageError(f"{runs}: cannot create a run's directory: {error.strerror}", hint="--runs-dir DIRECTORY")


def latest(runs: Path) -> str:
    """The name of the run to which ``latest`` refers; empty if there is none."""
    try:
        return str((runs / LATEST).readlink())
    except OSError:
        return ""


def link_latest(runs: Path, run: str, name: str = LATEST) -> None:
    """Let the link ``name`` refer to ``run``, atomically; empty: to no run. A real file of that name is not changed."""
    link = runs / name
    if link.exists() and not link.is_symlink():
        return
    if not run:
        link.unlink(missing_ok=True)
        return
    temporary = runs / f".{name}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    try:
        temporary.symlink_to(run)
    except OSError as error:
        if error.errno not in plain_files.NO_LINKS:
            raise
        return  # without symbolic links there is no ``latest``; a run is named by its last four characters
    temporary.replace(link)


def describe(
    *,
    run: str,
    version: str,
    command: str,
    reason: str,
    bed: str,
    twin: bool = True,
    twin_of: str = "",
    twin_after: bool = False,
    budget_s: float | None = None,
) -> dict[str, Any]:
    """The content of ``bundle.json``: format, layout of the binary files, and the exact command line.

    ``twin`` False: the run has no twin, so checks that need one are skipped. ``twin_of``: the run whose twin this is.
    ``twin_after``: a twin may follow the run, so its key is not stated when the run begins.
    ``budget_s``: the seconds that both may take.
    """
    return {
        "format": FORMAT,
        "run": run,
        "ccbed": version,
        "bed": bed,
        "command": command,
        "reason": reason,
        "twin": twin,
        **({"twin_of": twin_of} if twin_of else {}),
        **({"twin_after": True} if twin_after else {}),
        **({"budget_s": budget_s} if budget_s else {}),
        "chunks": {"format": recorded_files.CHUNK_FORMAT, "fields": list(recorded_files.CHUNK_FIELDS)},
    }


def input_steps(
    directory: Path, values: Mapping[str, Any], inputs: Mapping[str, bytes] | None = None
) -> tuple[durable.Step, ...]:
    """Steps that write the values by file name (dataclasses or JSON values) and the user's files under ``inputs/``.

    ``trial.json`` is written last, when all else is on the disk: it makes the directory a run.
    """
    contents = {file: paths.as_json(codec.plain(value)) for file, value in values.items()}
    trial = contents.pop(TRIAL)
    files = {f"{INPUTS}/{path}": content for path, content in (inputs or {}).items()}
    for path in files:
        paths.inside(directory, path)
    return (*durable.tree(directory, {**files, **contents}), *durable.file(directory / TRIAL, trial))


def write_inputs(directory: Path, values: Mapping[str, Any], inputs: Mapping[str, bytes] | None = None) -> None:
    durable.perform(input_steps(directory, values, inputs))


def keep_reason(directory: Path, why: str) -> None:
    """State why a run has no twin: what is unknown without one repeats it."""
    paths.write_json(directory / NO_TWIN, {"why": why})


def sums(inputs: Mapping[str, bytes]) -> dict[str, str]:
    """Path under ``inputs/`` -> SHA-256 of the content, as the plan lists them."""
    return {path: hashlib.sha256(content).hexdigest() for path, content in sorted(inputs.items())}


def identity(directory: Path) -> dict[str, Any]:
    """The identity of the bundle for ``run.begin``: format, trial, twin, and the SHA-256 of its documents and inputs."""
    plan = paths.document(directory, PLAN)
    twin = paths.document(directory, TWIN)["key"] if (directory / TWIN).exists() else None
    names = (TRIAL, FINGERPRINT, BUNDLE, TWIN)
    return {
        "format": read_format(directory),
        "trial": load_trial(directory).id,
        "twin": twin,
        "plan": plain_files.sha256(directory / PLAN),
        "inputs": plan.get("inputs", {}),
        "documents": {name: plain_files.sha256(directory / name) for name in names if (directory / name).exists()},
        "code": rank_payload.controller_digest(),
    }


def read_format(directory: Path) -> int:
    """The format of a bundle; 1 if bundle.json is missing, which a checker reports. Raises TornBundleError if unknown."""
    if not (directory / BUNDLE).exists():
        return 1
    document = paths.document(directory, BUNDLE)
    number = document.get("format") if isinstance(document, dict) else None
    if isinstance(number, bool) or number not in FORMATS:
        known = ", ".join(map(str, FORMATS))
        raise paths.TornBundleError(
            f"{directory / BUNDLE}: format: unknown format {number!r}; this ccbed reads {known}",
            hint="read it with the ccbed that made it, or a newer one",
        )
    return int(number)


def load_trial(directory: Path) -> Trial:
    """Raises TornBundleError, or UsageError if there is no run."""
    _need_run(directory)
    trial: Trial = paths.built(Trial, directory, TRIAL)
    return trial


def load_plan(directory: Path) -> Plan:
    """Raises TornBundleError, or UsageError if there is no run."""
    _need_run(directory)
    plan: Plan = paths.built(Plan, directory, PLAN)
    return plan


def load(directory: Path, *, judged: bool = True) -> Run:
    """The run for checkers and reports; ``judged`` False: without its verdicts, because it is judged again.

    Raises UsageError if there is no run, TornBundleError for a damaged one.
    """
    trial = load_trial(directory)
    history = read_history(directory)
    if not history.events:
        raise paths.TornBundleError(f"{directory / HISTORY}: holds no event")
    extras = {file: paths.document(directory, file) for file in EXTRAS if (directory / file).exists()}
    for file, value in extras.items():
        paths.convert(EXTRAS[file], value, directory / file)
    world = RANKS if trial.params.get("launcher") else trial.world.size  # a launcher numbers its workers itself
    twin: Twin | None = paths.built(Twin, directory, TWIN) if (directory / TWIN).exists() else None
    return Run(
        directory=str(directory),
        trial=trial,
        history=history,
        files=recorded_files.BundleFiles(directory, recorded_files.incarnations(history), world),
        twin=twin,
        has_twin_beside=twin is not None and (directory.parent / Path(twin.run).name / BUNDLE).is_file(),
        extras=extras,
        code=rank_payload.controller_digest(),
        verdicts=read_verdicts(directory) if judged else (),
    )


def keep_keeper_events(directory: Path, workdir: Path) -> None:
    """Copy the keepers' events of the run into the bundle, up to the last line that the history contains."""
    history = read_history(directory)
    begin = history.first(RunBegin)
    known = {event.source.identity for event in history.events}
    for name, start in ((begin.data.cursors if begin else None) or {}).items():
        lines = (_keeper_events(workdir, name, start) or b"").splitlines(keepends=True)
        end = max(
            (number for number, line in enumerate(lines, start=1) if recorded_files.identity(line) in known), default=0
        )
        if lines:
            paths.write(paths.inside(directory, f"{KEEPERS}/{name}"), b"".join(lines[:end]))


def keeper_prefixes(workdir: Path, begin: Mapping[str, int]) -> dict[str, dict[str, str | int]]:
    """Path in the bundle -> the number of bytes that the keeper had written for this run, and their SHA-256."""
    prefixes: dict[str, dict[str, str | int]] = {}
    for name, start in begin.items():
        if content := _keeper_events(workdir, name, start):
            whole = content[: content.rfind(b"\n") + 1]
            prefixes[f"{KEEPERS}/{name}"] = {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    return prefixes


def _keeper_events(workdir: Path, name: str, start: int) -> bytes | None:
    """A keeper's event file from an offset; None for a node's file, or if there is no file."""
    if name.startswith("nodes/") or not (workdir / name).is_file():
        return None
    with (workdir / name).open("rb") as source:
        source.seek(start)
        return source.read()


def read_history(directory: Path) -> History:
    """The events of a bundle. Raises TornBundleError for a line that is not an event."""
    paths.inside(directory, HISTORY)
    try:
        return journal.read(directory / HISTORY)
    except OSError as error:
        raise paths.TornBundleError(f"{directory / HISTORY}: {error.strerror}") from None
    except InfrastructureError as error:
        raise paths.TornBundleError(*error.problems, hint=error.hint) from None


def read_verdicts(directory: Path) -> tuple[Verdict, ...]:
    """The verdicts of the last check; none before the first."""
    if not (directory / VERDICTS).exists():
        return ()
    verdicts: tuple[Verdict, ...] = paths.built(tuple[Verdict, ...], directory, VERDICTS)
    return verdicts


def planned_checks(run: Run) -> tuple[PlannedCheck, ...] | None:
    """The checks in the sealed plan of the run; None for a bundle of format 1, whose plan lists none.

    Raises TornBundleError.
    """
    plan = run.extras.get(PLAN)
    items = plan.get("checks") if isinstance(plan, dict) else None
    if items is None and run.format == 1:
        return None
    if not items:
        raise paths.TornBundleError(f"{run.directory}/{PLAN}: checks: not a list of checks (it is empty)")
    checks: tuple[PlannedCheck, ...] = paths.convert(tuple[PlannedCheck, ...], items, Path(run.directory) / PLAN)
    return checks


def read_inputs(directory: Path) -> dict[str, bytes]:
    """The files under ``inputs/`` by their path there. Raises TornBundleError."""
    root = directory / INPUTS
    return {path: paths.data(root, path) for path in paths.walk(root)} if root.is_dir() else {}


def is_sealed(directory: Path) -> bool:
    return (directory / seal.MANIFEST).exists()


#: The stage of a run: its directory is not a run yet; not ended; ended, but not judged completely; judged and sealed.
Stage = Literal["none", "open", "ended", "closed"]


def is_twin_reused(directory: Path) -> bool:
    """Return whether a run is compared with the reference runs of an earlier one."""
    return (directory / TWIN).exists() and bool(paths.document(directory, TWIN).get("reused"))


def stage(directory: Path) -> Stage:
    """Raises TornBundleError for a damaged history."""
    if not (directory / TRIAL).exists() and not (directory / HISTORY).exists():
        return "none"
    if not has_ended(directory):
        return "open"
    return "closed" if is_sealed(directory) and seal.is_derived(directory) else "ended"


def has_ended(directory: Path) -> bool:
    """Return whether the history of the run has its end. Raises TornBundleError for a damaged one."""
    return read_history(directory).last(RunEnd) is not None


def has_begun(directory: Path) -> bool:
    """Return whether the history of the run holds anything. Raises TornBundleError for a damaged one."""
    return bool(read_history(directory).events)


def write_derived(directory: Path, verdicts: tuple[Verdict, ...], reports: Mapping[str, bytes]) -> None:
    """Replace verdicts and report; they have a separate checksum list, so that the seal of the evidence stays valid."""
    targets = {path: paths.inside(directory, f"{REPORT}/{path}") for path in reports}
    paths.write_json(directory / VERDICTS, codec.plain(verdicts))
    shutil.rmtree(directory / REPORT, ignore_errors=True)
    for path, content in reports.items():
        paths.write(targets[path], content)
    seal.write(directory, seal.DERIVED, [VERDICTS, *(f"{REPORT}/{path}" for path in reports)])


def _need_run(directory: Path) -> None:
    """Raises UsageError if there is no run, TornBundleError for a bundle of an unknown format."""
    if not (directory / TRIAL).is_file():
        problem = "no such directory" if not directory.is_dir() else f"not a run: it has no {TRIAL}"
        raise UsageError(f"{directory}: {problem}", hint="ccbed list runs")
    read_format(directory)
