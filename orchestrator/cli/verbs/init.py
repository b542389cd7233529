"""Write a commented inventory, trial or file of settings to begin with; never overwrites a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from ...app.places import short_path
from ...model.errors import UsageError
from ..inputs import completions, options, settings_files, starters
from ..inputs.session import Session

_FILES = {"inventory": "my-bed.yml", "trial": "my-trial.yml", "config": settings_files.PROJECT}


@options.command()
@click.argument("what", required=False, default="inventory", type=click.Choice(tuple(_FILES)))
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--like",
    metavar="NAME",
    help="Begin with this inventory or trial that ccbed ships.  [default: local, dp-ring]",
    shell_complete=completions.trials,
)
@click.option(
    "--fault", "faults", multiple=True, metavar="NAME", help="Of a trial: inject this fault. Repeatable.",
    shell_complete=completions.faults,
)  # fmt: skip
@options.as_json
@click.pass_obj
def command(
    session: Session, what: str, file: Path | None, like: str | None, faults: tuple[str, ...], as_json: bool
) -> int:
    """Write a commented inventory, trial or config (settings of this project) to FILE; a file that exists stays as it is.

    \b
    ccbed init inventory cluster.yml --like slurm
    ccbed init trial drill.yml --like ddp --fault slow-node
    ccbed init config
    """
    if faults and what != "trial":
        raise UsageError("--fault needs a trial", hint=f"ccbed init trial --fault {faults[0]}")
    file = file or Path(_FILES[what])
    texts: dict[str, Callable[[], str]] = {
        "inventory": lambda: starters.inventory(like or "local"),
        "trial": lambda: starters.trial(session.catalogue, like or "dp-ring", file.stem, faults),
        "config": starters.config,
    }
    _write(session, file, texts[what]())
    follow = {
        "inventory": f"ccbed up {short_path(file)}",
        "trial": f"ccbed run {short_path(file)} --dry-run",
        "config": "ccbed config show",
    }[what]
    if as_json:
        session.terminal.json({"file": str(file), "next": follow})
    else:
        session.terminal.line(f"{short_path(file)} written     next: {follow}")
    return 0


def _write(session: Session, file: Path, text: str) -> None:
    """Raises UsageError for a file that exists or cannot be written."""
    try:
        with file.open("x") as target:
            target.write(text)
            os.fchmod(target.fileno(), 0o666 & ~session.umask)
    except FileExistsError:
        raise UsageError(f"{short_path(file)}: exists, and stays as it is", hint="give another FILE") from None
    except OSError as error:
        raise UsageError(f"{short_path(file)}: cannot be written: {error.strerror}", hint="give another FILE") from None
