"""Carry a run's bundle elsewhere, and verify it there."""

from __future__ import annotations

from pathlib import Path

import click

from ..model.errors import EXIT_UNKNOWN
from ..store import bundle as store
from ..store import export as archives
from ..store import index, seal
from . import beds, options
from .session import Session


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "CCBED"})
def command() -> None:
    """Carry a run's bundle elsewhere, and verify it there."""


@command.command(context_settings={"auto_envvar_prefix": "CCBED"})
@click.argument("run")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The archive; default RUN.tar.gz."
)
@options.runs_dir
@click.pass_obj
def export(session: Session, run: str, output: Path | None, runs_dir: Path) -> int:
    """Write RUN as one archive."""
    directory = index.resolve(run, runs_dir)
    target = output or Path(f"{directory.name}.tar.gz")
    count = archives.export(directory, target)
    size = target.stat().st_size / 1024**2
    sealed = "" if store.is_sealed(directory) else "; the run has not ended, so it is not sealed"
    session.terminal.line(
        f"{beds.shown(target)}: {count} files, {size:.1f} MiB{sealed}     verify: ccbed bundle verify {target}"
    )
    return 0


@command.command(context_settings={"auto_envvar_prefix": "CCBED"})
@click.argument("run", metavar="RUN|ARCHIVE")
@options.runs_dir
@options.as_json
@click.pass_obj
def verify(session: Session, run: str, runs_dir: Path, as_json: bool) -> int:
    """Compare every file of RUN, or of an exported archive, with its seal."""
    if Path(run).is_file():
        with archives.unpacked(Path(run)) as directory:
            found = tuple(problem.replace(f"{directory.parent}/", "") for problem in seal.verify(directory))
    else:
        found = seal.verify(index.resolve(run, runs_dir))
    if as_json:
        session.terminal.json({"run": run, "ok": not found, "problems": list(found)})
    elif found:
        session.terminal.error(found, "take the bundle from where it was made")
    else:
        session.terminal.line(f"{run}: every file is as it was sealed")
    return EXIT_UNKNOWN if found else 0
