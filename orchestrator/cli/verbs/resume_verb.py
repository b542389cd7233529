"""Resume a run whose orchestrator was interrupted or died."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ...app import nights, resume
from ...app.resume import ResumeRequest
from ..inputs import options
from ..inputs.terminal_session import Session
from ..render import summary_lines


@options.verb(ResumeRequest)
def command(session: Session, request: ResumeRequest) -> int:
    """Resume RUN where its history ends; its worker group may still be training. A run that has ended is judged again.

    Without RUN, the run of the last `ccbed run`, `sweep`, `nightly` or `accept` of this shell; if none began, the error that
    ended it, exit 3. In a shell without one, the only open run. RUN may be the directory of `ccbed run --repeat` or `ccbed
    sweep`: the runs that are missing follow.
    """
    resumed = resume.run(session, request)
    if isinstance(resumed, Path):
        return _resume_several(session, resumed, as_json=session.is_json)
    return summary_lines.show(session, resumed, as_json=session.is_json)


def _resume_several(session: Session, directory: Path, *, as_json: bool) -> int:
    """Resume repeated runs. Raises UsageError for a night."""
    product = nights.product()
    words = product.resumed_words(directory)
    if not words:
        return product.show_ended(session, directory)
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
