"""Judge a run again from its bundle; needs no bed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from ...model.errors import InfrastructureError
from ...model.events import RunEnd
from ...model.launch import Result
from ...run import judging
from ...store import bundle, index, paths, seal, signing
from ..inputs import options
from ..inputs.session import Session
from ..render import summary
from ..render.terminal import short_path


@options.command()
@options.of_run(default="latest")
@options.runs_dir
@options.as_json
@click.option(
    "--accept-changed",
    is_flag=True,
    help="Use a check of --plugins even if its file has changed since the run was planned.",
)
@options.bed_keys
@click.pass_obj
def command(
    session: Session, run: str, runs_dir: Path, as_json: bool, accept_changed: bool, keys: tuple[Path, ...]
) -> int:
    """Verify the seal of RUN (a directory, `latest`, or the end of its name), judge it again, print the verdicts.

    The report is written again only if a verdict has changed; `ccbed report` always does it.

    The sealed plan lists the checks. Code of the bundle is loaded only where you ask for it:

    \b
    ccbed --plugins runs/latest/inputs/plugins check
    """
    directory = index.resolve(run, runs_dir)
    result = judge_again(session, directory, accept_changed=accept_changed, keys=keys)
    return summary.show(session, result, as_json=as_json)


def judge_again(
    session: Session, directory: Path, *, accept_changed: bool = False, keys: Sequence[Path] = ()
) -> Result:
    """Verify the seal, and the signatures of ``keys``, and judge the run. Raises TornBundleError, InfrastructureError."""
    verify(directory)
    if keys and (problems := signing.unsigned(directory, keys)):
        raise paths.TornBundleError(
            *problems, hint=f"without --bed-key it is judged: ccbed check {short_path(directory)}"
        )
    return judging.conclude(
        session.catalogue, directory, accept_changed=accept_changed, is_signed=bool(keys), read_only=True,
        redraw=False, on_stage=session.terminal.status,
    )  # fmt: skip


def verify(directory: Path) -> None:
    """Raises TornBundleError when the evidence does not match its seal, InfrastructureError when it has none."""
    if not bundle.is_sealed(directory):
        _unsealed(directory)
    problems = seal.verify_evidence(directory)
    if problems:
        hint = "changed evidence proves nothing: copy the bundle again from where it was made"
        raise paths.TornBundleError(*problems, hint=hint)


def _unsealed(directory: Path) -> NoReturn:
    """Raises InfrastructureError for a run that has not ended, TornBundleError for one whose seal is missing."""
    where = short_path(directory)
    if bundle.read_history(directory).last(RunEnd):
        hint = f"if it was interrupted while it sealed: ccbed resume {where}; else copy the bundle again from where it was made"
        raise paths.TornBundleError(f"{where}: not sealed: it has no {seal.MANIFEST}", hint=hint)
    hint = f"wait for it: ccbed watch {where}; or, if its orchestrator is gone: ccbed resume {where}"
    raise InfrastructureError(f"{where}: the run has not ended", hint=hint)
