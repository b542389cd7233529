"""Judge a run again from its bundle; needs no bed."""

from __future__ import annotations

from pathlib import Path

import click

from ...app import check
from ...store import index
from ..inputs import options
from ..inputs.session import Session
from ..render import summary


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
    result = check.judge_again(session, directory, accept_changed=accept_changed, keys=keys)
    return summary.show(session, result, as_json=as_json)
