"""Judge a run again from its bundle, anywhere, without its bed."""

from __future__ import annotations

from pathlib import Path

import click

from .. import run as life
from ..model.errors import InfrastructureError
from ..store import bundle, index, paths, seal
from . import options, summary
from .session import Session


@options.command()
@click.argument("run", default="latest")
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, run: str, runs_dir: Path, as_json: bool) -> int:
    """Verify the seal of RUN (a directory, `latest`, or the end of its name), judge it again, print the verdicts."""
    directory = index.resolve(run, runs_dir)
    verify(directory)
    result = life.conclude(session.catalogue, directory)
    return summary.show(session, directory, result.code, as_json=as_json)


def verify(directory: Path) -> None:
    """Raises TornBundleError when the evidence is not as it was sealed, InfrastructureError when it never was."""
    if not bundle.is_sealed(directory):
        raise InfrastructureError(
            f"{directory}: the run has not ended: it has no {seal.MANIFEST}", hint=f"ccbed resume {directory}"
        )
    problems = seal.verify_evidence(directory)
    if problems:
        raise paths.TornBundleError(*problems)
