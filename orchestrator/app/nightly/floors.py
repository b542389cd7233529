"""Accept floors of a hardware model from runs that passed, and read the baselines that hold them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.spec import values
from ...model.errors import UsageError
from ...model.frozen import dataclass
from ...store import index, paths
from ..requests import argument, baselines_directory, named_run, option, runs_directory
from ..session import Session

if TYPE_CHECKING:
    from ...nightly.baselines import Baseline, Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptFloorsRequest:
    """The request of `ccbed baseline accept`. ``handle``: of a run or a night."""

    handle: str = named_run(metavar="RUN|NIGHT")
    margin: str = option("10%", "From the worst node to the floor, towards worse.")
    metrics: tuple[str, ...] = option(
        (), "Only these metrics; words of a name, or *. Repeatable.", metavar="NAME", flags=("--metric",)
    )
    output: Path | None = option(
        None, "The file; default: by the hardware model.", flags=("-o", "--output"), is_file=True
    )
    dry_run: bool = option(False, "Print the floors, and write nothing.")
    baselines: Path = baselines_directory()
    runs_dir: Path = runs_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The floors of a hardware model; ``written``: into the file, or only shown."""

    hardware: str
    file: Path
    written: bool
    floors: tuple[Floor, ...]


def accept(session: Session, request: AcceptFloorsRequest) -> tuple[Accepted, ...]:
    """Write the floors of a run or night into the baselines of its hardware. Raises UsageError, TornBundleError."""
    from ...nightly import baselines as files
    from ...nightly import night_files
    from ...nightly.judging import evidence

    margin = _share(request.margin)
    directory = _resolve(request.handle, request.runs_dir)
    measured, notes = evidence.read(directory, request.metrics)
    for note in notes:
        session.terminal.warn(note)
    floors = files.accept(measured, margin, datetime.datetime.now(datetime.UTC).date())
    if not floors:
        hint = "see its report for the figures"
        raise UsageError(f"{directory}: no metric of it can have a floor", *notes, hint=hint)
    if request.output and len(floors) > 1:
        problem = f"{directory}: has nodes of several hardware models: {'; '.join(floors)}"
        raise UsageError(problem, hint="without -o each has its file")
    chosen = {hardware: request.output or request.baselines / files.file_name(hardware) for hardware in floors}
    texts = {file: files.merge(file, hardware, floors[hardware]) for hardware, file in chosen.items()}
    if night_files.is_night(directory):
        _require_passed(directory, [files.parse(text, str(file)) for file, text in texts.items()])
    if not request.dry_run:
        _keep(session, directory, list(texts))
        for file, text in texts.items():
            paths.write(file, text.encode(), durable=True)
            file.chmod(0o644)
    return tuple(
        Accepted(hardware=hardware, file=file, written=not request.dry_run, floors=floors[hardware])
        for hardware, file in chosen.items()
    )


def _share(text: str) -> float:
    try:
        return values.share(text)
    except ValueError as error:
        raise UsageError(f"--margin: {error} (got {text!r})") from None


def _require_passed(night: Path, baselines: Sequence[Baseline]) -> None:
    """Raises UsageError where the night would fail its own baseline, by the floors that the files had before."""
    from ...nightly.judging import evidence

    if problems := evidence.refusals(night, baselines):
        raise UsageError(
            f"{night}: does not pass the baseline that would be written", *problems,
            hint="change those floors by hand, accept a better night, or write to another file with -o",
        )  # fmt: skip


def _keep(session: Session, directory: Path, files: Sequence[Path]) -> None:
    """Mark the evidence, so that `runs prune` keeps it wherever the baselines are."""
    from ...nightly.index import retention

    try:
        retention.keep_for(directory, files)
    except (OSError, ValueError) as error:
        session.terminal.warn(
            f"{directory}: cannot be marked as evidence ({error}); prune it only with --baselines {files[0].parent}"
        )


def _resolve(handle: str, runs: Path) -> Path:
    """The directory of a night or of a run. Raises UsageError."""
    from ...nightly import night_files

    for path in (Path(handle), runs / handle):
        if night_files.is_night(path):
            return path.resolve()
    nights = [path for path in night_files.nights(runs) if handle and path.name.rpartition("-")[2].startswith(handle)]
    return nights[0].resolve() if len(nights) == 1 else index.resolve(handle, runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowFloorsRequest:
    """The request of `ccbed baseline show`. ``model``: a part of the hardware's name; None: all."""

    model: str | None = argument(None)
    baselines: Path = baselines_directory()


def known(request: ShowFloorsRequest) -> tuple[Baseline, ...]:
    """Return the baselines of a hardware model, or all. Raises UsageError where none is of that model."""
    from ...nightly import baselines as files

    listed, model = files.read_all(request.baselines), request.model
    chosen = tuple(entry for entry in listed if model is None or model.lower() in entry.hardware.lower())
    if model is not None and not chosen:
        hint = "; ".join(entry.hardware for entry in listed) or "ccbed baseline accept RUN"
        raise UsageError(f"no baseline of {model} in {request.baselines}", hint=hint)
    return chosen
