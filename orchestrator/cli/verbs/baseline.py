"""Accept floors of a hardware model from runs that passed, and show them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...app.places import short_path
from ...model import codec
from ...model.errors import UsageError
from ...store import index, paths
from ..inputs import options
from ..inputs.session import Session

if TYPE_CHECKING:
    from ...nightly.baselines import Baseline, Floor


def _share(_ctx: click.Context, _param: click.Parameter, text: str) -> float:
    from ...core.spec import values

    try:
        return values.share(text)
    except ValueError as error:
        raise UsageError(f"--margin: {error} (got {text!r})") from None


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "CCBED"})
def command() -> None:
    """Accept floors of a hardware model from runs that passed, and show them.

    \b
    ccbed baseline accept runs/2026-11-23T02-00-07Z-night-standard-3f9c --margin 8%
    ccbed baseline show
    """


@command.command(
    context_settings={"auto_envvar_prefix": "CCBED"},
    short_help="Write the floors of RUN or NIGHT into the baseline, for review.",
)
@options.of_run("handle", metavar="RUN|NIGHT")
@click.option(
    "--margin",
    default="10%",
    show_default=True,
    callback=_share,
    help="From the worst node to the floor, towards worse.",
)
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Only these metrics; words of a name, or *. Repeatable."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file; default: by the hardware model."
)
@click.option("--dry-run", is_flag=True, help="Print the floors, and write nothing.")
@options.baselines
@options.runs_dir
@options.as_json
@click.pass_obj
def accept(
    session: Session, handle: str, margin: float, metrics: tuple[str, ...], output: Path | None, dry_run: bool,
    baselines: Path, runs_dir: Path, as_json: bool,
) -> int:  # fmt: skip
    """Write the floors of RUN or NIGHT into the baseline of its hardware model, for review. Comments in it are kept."""
    from ...nightly import baselines as files
    from ...nightly import night_files
    from ...nightly.judging import evidence

    directory = _resolve(handle, runs_dir)
    measured, notes = evidence.read(directory, metrics)
    for note in notes:
        session.terminal.warn(note)
    accepted = files.accept(measured, margin, datetime.datetime.now(datetime.UTC).date())
    if not accepted:
        raise UsageError(
            f"{directory}: no metric of it can have a floor", *notes, hint="see its report for the figures"
        )
    if output and len(accepted) > 1:
        models = "; ".join(accepted)
        raise UsageError(
            f"{directory}: has nodes of several hardware models: {models}", hint="without -o each has its file"
        )
    texts = {
        file: files.merge(file, hardware, floors)
        for hardware, floors in accepted.items() for file in [output or baselines / files.file_name(hardware)]
    }  # fmt: skip
    if night_files.is_night(directory):
        _require_passed(directory, [files.parse(text, str(file)) for file, text in texts.items()])
    if not dry_run:
        _keep(session, directory, list(texts))
    for (hardware, floors), (file, text) in zip(accepted.items(), texts.items(), strict=True):
        if not dry_run:
            paths.write(file, text.encode(), durable=True)
            file.chmod(0o644)
        if not as_json:
            verb = "would be in" if dry_run else "in"
            session.terminal.line(
                f"{hardware}: {len(floors)} floor{'s' * (len(floors) > 1)} {verb} {short_path(file)}; review them before you commit it"
            )
            _table(session, floors)
    if as_json:
        written = zip(accepted.items(), texts, strict=True)
        session.terminal.json(
            [
                {"hardware": hardware, "file": str(file), "written": not dry_run, "floors": codec.plain(list(floors))}
                for (hardware, floors), file in written
            ]
        )
    return 0


def _require_passed(night: Path, baselines: list[Baseline]) -> None:
    """Raises UsageError where the night would fail its own baseline, by the floors that the files had before."""
    from ...nightly.judging import evidence

    if problems := evidence.refusals(night, baselines):
        raise UsageError(
            f"{night}: does not pass the baseline that would be written", *problems,
            hint="change those floors by hand, accept a better night, or write to another file with -o",
        )  # fmt: skip


def _keep(session: Session, directory: Path, files: list[Path]) -> None:
    """Wherever the baselines are, `runs prune` keeps what they rest on."""
    from ...nightly.index import retention

    try:
        retention.keep_for(directory, files)
    except (OSError, ValueError) as error:
        session.terminal.warn(
            f"{directory}: cannot be marked as evidence ({error}); prune it only with --baselines {files[0].parent}"
        )


@command.command(context_settings={"auto_envvar_prefix": "CCBED"}, short_help="Print the floors of every baseline.")
@click.argument("model", required=False)
@options.baselines
@options.as_json
@click.pass_obj
def show(session: Session, model: str | None, baselines: Path, as_json: bool) -> int:
    """Print the floors of every baseline, or of those whose hardware contains MODEL."""
    from ...nightly import baselines as files

    known = files.read_all(baselines)
    chosen = [baseline for baseline in known if model is None or model.lower() in baseline.hardware.lower()]
    if model is not None and not chosen:
        raise UsageError(
            f"no baseline of {model} in {baselines}",
            hint="; ".join(entry.hardware for entry in known) or "ccbed baseline accept RUN",
        )
    if as_json:
        session.terminal.json([codec.plain(baseline) for baseline in chosen])
        return 0
    if not chosen:
        session.terminal.line(f"no baseline in {baselines}     accept one: ccbed baseline accept RUN|NIGHT")
    for baseline in chosen:
        _show(session, baseline)
    return 0


def _show(session: Session, baseline: Baseline) -> None:
    session.terminal.line(f"{baseline.hardware}     {short_path(baseline.file)}")
    _table(session, baseline.floors)


def _table(session: Session, floors: tuple[Floor, ...]) -> None:
    rows = [
        (
            floor.metric, f"{'≥' if floor.better == 'higher' else '≤'} {floor.floor:g}", floor.unit, f"{floor.measured:g}",
            f"{floor.margin:.0%}", floor.n, floor.accepted, floor.evidence[0] if floor.evidence else "",
        )
        for floor in floors
    ]  # fmt: skip
    session.terminal.table(("METRIC", "FLOOR", "UNIT", "MEASURED", "MARGIN", "N", "ACCEPTED", "EVIDENCE"), rows)


def _resolve(handle: str, runs: Path) -> Path:
    """The directory of a night or of a run. Raises UsageError."""
    from ...nightly import night_files

    for path in (Path(handle), runs / handle):
        if night_files.is_night(path):
            return path.resolve()
    nights = [path for path in night_files.nights(runs) if handle and path.name.rpartition("-")[2].startswith(handle)]
    return nights[0].resolve() if len(nights) == 1 else index.resolve(handle, runs)
