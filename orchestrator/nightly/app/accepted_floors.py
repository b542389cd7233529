"""Accept floors of a hardware model from runs that passed, and new levels from nights; read the baselines."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...app import audited
from ...app.requests import argument, baselines_directory, option, runs_directory
from ...app.session import Session
from ...core.spec import written_values
from ...model.errors import UsageError
from ...model.frozen import dataclass
from ...store import index, paths

if TYPE_CHECKING:
    from ..baselines import Baseline, Floor
    from ..levels import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptFloorsRequest:
    """The request of `ccbed baseline accept`. ``handles``: of runs or nights."""

    handles: tuple[str, ...] = argument(metavar="RUN|NIGHT…", completes="runs")
    margin: str = option(
        "", "From the worst node to the floor, towards worse; default: the least change of the metric's class."
    )
    metrics: tuple[str, ...] = option(
        (), "Only these metrics; words of a name, or *. Repeatable.", metavar="NAME", flags=("--metric",)
    )
    because: str = option(
        "",
        "Write no floors: the night begins a new level, with which later nights are compared, for this reason.",
        metavar="WHY",
    )
    nodes: tuple[str, ...] = option(
        (), "With --because: the new level is that of this node alone. Repeatable.", metavar="NODE", flags=("--node",)
    )
    output: Path | None = option(
        None, "The file; default: by the hardware model.", flags=("-o", "--output"), is_file=True
    )
    dry_run: bool = option(False, "Print the floors, and write nothing.")
    baselines: Path = baselines_directory()
    runs_dir: Path = runs_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The floors of a hardware model; ``written``: into the file, or only shown. ``spare``: of each floor, by what share the last
    accepted night is better than it.
    """

    hardware: str
    file: Path
    written: bool
    floors: tuple[Floor, ...]
    spare: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedLevel:
    """A night with which later nights of its bed are compared; ``written``: or only shown."""

    level: Level
    written: bool


def accept(session: Session, request: AcceptFloorsRequest) -> tuple[Accepted | AcceptedLevel, ...]:
    """Write the floors of runs or nights into the baselines of their hardware, or the levels that nights begin.

    Raises UsageError, TornBundleError, InfrastructureError.
    """
    directories = [_resolve(handle, request.runs_dir) for handle in request.handles]
    if request.because.strip():
        return _accept_levels(directories, request)
    if request.nodes:
        raise UsageError(
            "--node: floors are those of all nodes", hint='a new level of one node needs a reason: --because "…"'
        )
    return _accept_floors(session, directories, request)


def _accept_levels(directories: Sequence[Path], request: AcceptFloorsRequest) -> tuple[AcceptedLevel, ...]:
    from .. import levels

    by_runs: dict[Path, list[Level]] = {}
    for directory in directories:
        by_runs.setdefault(directory.parent, []).append(_level(directory, request))
    if not request.dry_run:
        for runs, added in by_runs.items():
            levels.add(runs, added)
    return tuple(
        AcceptedLevel(level=level, written=not request.dry_run) for added in by_runs.values() for level in added
    )


def _level(directory: Path, request: AcceptFloorsRequest) -> Level:
    """Raises UsageError for what is no recorded night, or did not measure what is accepted."""
    from .. import classes, levels, night_files
    from ..judging.night import read_runs
    from ..run_record import nodes_of

    if not night_files.is_night(directory):
        raise UsageError(
            f"{directory}: not a night: only a recorded night begins a level", hint="ccbed runs lists the nights"
        )
    night = night_files.read_night(directory)
    if not night.recorded:
        raise UsageError(
            f"{directory}: was not recorded, so that no night is compared with it", hint="ccbed nightly … --record"
        )
    runs, _ = read_runs(directory, night_files.read_rows(directory), night)
    measured = [item for _, record in runs for item in record.measurements]
    nodes = sorted({node for item in measured for node in nodes_of(item.node)})
    metrics = sorted({item.metric.name for item in measured})
    missing = [f"node {node} was not measured" for node in request.nodes if node not in nodes]
    missing += [
        f"no metric {pattern} was measured"
        for pattern in request.metrics
        if not any(classes.matches(pattern, name) for name in metrics)
    ]
    if missing or not measured:
        hint = f"nodes: {', '.join(nodes) or 'none'}; metrics: {', '.join(metrics[:8]) or 'none'}"
        raise UsageError(*(f"{directory.name}: {text}" for text in missing or ["nothing was measured"]), hint=hint)
    return levels.Level(
        bed=night.bed, night=night.number, nodes=request.nodes, metrics=request.metrics, because=" ".join(request.because.split()),
        by=audited.user(), at=audited.now(),
    )  # fmt: skip


def _accept_floors(session: Session, directories: Sequence[Path], request: AcceptFloorsRequest) -> tuple[Accepted, ...]:
    from .. import baselines as files
    from .. import classes, night_files
    from ..judging import evidence

    known = classes.read(request.baselines)
    share = _share(request.margin) if request.margin else None
    measured, notes = zip(*(evidence.read(directory, request.metrics, known) for directory in directories), strict=True)
    for note in dict.fromkeys(note for of_directory in notes for note in of_directory):
        session.terminal.warn(note)
    floors = files.accept(
        files.combine(measured), lambda metric: classes.of(metric, known).least if share is None else share,
        datetime.datetime.now(datetime.UTC).date(),
    )  # fmt: skip
    names = ", ".join(str(directory) for directory in directories)
    if not floors:
        raise UsageError(
            f"{names}: no metric of it can have a floor", *notes[-1], hint="see its report for the figures"
        )
    if request.output and len(floors) > 1:
        problem = f"{names}: has nodes of several hardware models: {'; '.join(floors)}"
        raise UsageError(problem, hint="without -o each has its file")
    chosen = {hardware: request.output or request.baselines / files.file_name(hardware) for hardware in floors}
    texts = {file: files.merge(file, hardware, floors[hardware]) for hardware, file in chosen.items()}
    for directory in filter(night_files.is_night, directories):
        _require_passed(directory, [files.parse(text, str(file)) for file, text in texts.items()])
    if not request.dry_run:
        for directory in directories:
            _keep(session, directory, list(texts))
        for file, text in texts.items():
            paths.write(file, text.encode(), durable=True)
            file.chmod(0o644)
    worst = {(entry.metric, entry.key): entry.worst for entry in measured[-1]}
    return tuple(
        Accepted(
            hardware=hardware, file=file, written=not request.dry_run, floors=floors[hardware],
            spare=tuple(
                _spare(floor, worst.get((floor.metric, files.Baseline(hardware=hardware, floors=()).key(floor)), floor.measured))
                for floor in floors[hardware]
            ),
        )
        for hardware, file in chosen.items()
    )  # fmt: skip


def _spare(floor: Floor, worst: float) -> float:
    """Return by what share the worst node is better than the floor."""
    ratio = worst / floor.floor if floor.better == "higher" else floor.floor / worst
    return ratio - 1


def _share(text: str) -> float:
    try:
        return written_values.share(text)
    except ValueError as error:
        raise UsageError(f"--margin: {error} (got {text!r})") from None


def _require_passed(night: Path, baselines: Sequence[Baseline]) -> None:
    """Raises UsageError where the night would fail its own baseline, by the floors that the files had before."""
    from ..judging import evidence

    if problems := evidence.refusals(night, baselines):
        raise UsageError(
            f"{night}: does not pass the baseline that would be written", *problems,
            hint="change those floors by hand, accept a better night, or write to another file with -o",
        )  # fmt: skip


def _keep(session: Session, directory: Path, files: Sequence[Path]) -> None:
    """Mark the evidence, so that `runs prune` keeps it wherever the baselines are."""
    from .. import retention

    try:
        retention.keep_for(directory, files)
    except (OSError, ValueError) as error:
        session.terminal.warn(
            f"{directory}: cannot be marked as evidence ({error}); prune it only with --baselines {files[0].parent}"
        )


def _resolve(handle: str, runs: Path) -> Path:
    """The directory of a night or of a run. Raises UsageError."""
    from .. import night_files

    try:
        return night_files.resolve(handle, runs)
    except UsageError:
        return index.resolve(handle, runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowFloorsRequest:
    """The request of `ccbed baseline show`. ``model``: a part of the hardware's name; None: all."""

    model: str | None = argument(None)
    baselines: Path = baselines_directory()


def known(request: ShowFloorsRequest) -> tuple[Baseline, ...]:
    """Return the baselines of a hardware model, or all. Raises UsageError where none is of that model."""
    from .. import baselines as files

    listed, model = files.read_all(request.baselines), request.model
    chosen = tuple(entry for entry in listed if model is None or model.lower() in entry.hardware.lower())
    if model is not None and not chosen:
        hint = "; ".join(entry.hardware for entry in listed) or "ccbed baseline accept RUN"
        raise UsageError(f"no baseline of {model} in {request.baselines}", hint=hint)
    return chosen
