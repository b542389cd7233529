"""Resume a run whose orchestrator was interrupted or died."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ...app import resume
from ...app.places import short_path
from ...model.errors import UsageError
from ...store import index
from ..inputs import options
from ..inputs.session import Session
from ..render import summary


@options.command()
@options.of_run(required=False)
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, run: str | None, runs_dir: Path, as_json: bool) -> int:
    """Resume RUN where its history ends; its gang may still be training. A run that has ended is judged again.

    Without RUN, the run of the last `ccbed run` or `ccbed sweep` of this shell; if none began, the error that ended it, exit 3.
    In a shell without one, the only open run. RUN may be the directory of `ccbed run --repeat` or `ccbed sweep`: the runs that
    are missing follow.
    """
    run = run or resume.last_run(session, runs_dir)
    if night := index.night(run, runs_dir):
        return _resume_several(session, night, as_json=as_json)
    return summary.show(session, resume.run(session, run, runs_dir), as_json=as_json)


def _resume_several(session: Session, directory: Path, *, as_json: bool) -> int:
    """Resume repeated runs. Raises UsageError for a night."""
    from ...app import repeats
    from ..render import repeats_view

    words = repeats.resumed_command(directory)
    if not words:
        hint = f"ccbed nightly --resume {short_path(directory)}"
        raise UsageError(f"{short_path(directory)}: a night, not a run", hint=hint)
    if repeats.has_ended(directory):
        return repeats_view.show_ended(session.terminal, directory, as_json=as_json)
    return _repeat(session, [*words[:1], "--json", *words[1:]] if as_json and "--json" not in words else words)


def _repeat(session: Session, words: Sequence[str]) -> int:
    """Execute the recorded command line of repeated runs."""
    session.argv = tuple(words)
    code: int = (
        click.get_current_context()
        .find_root()
        .command.main(list(words), prog_name="ccbed", standalone_mode=False, obj=session)
    )
    return code
