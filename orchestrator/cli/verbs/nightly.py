"""Run a suite of trials as a night: compare it with earlier nights, report, and say what got slower."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...model.errors import UsageError
from ..inputs import completions, options
from ..inputs.session import Session


class Target(click.ParamType[str]):
    """A URL or a command. CCBED_NOTIFY has several as words of a shell: a command with arguments is quoted."""

    name = "target"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        try:
            return shlex.split(rv)
        except ValueError as error:
            raise UsageError(f"CCBED_NOTIFY: cannot be split into words: {error}") from None


@options.command()
@click.argument("suite", required=False, metavar="SUITE|FILE.yml", shell_complete=completions.suites)
@options.bed
@click.option("-i", "--inventory", type=click.Path(path_type=Path), help="Bring this bed up first, if it is not up.")
@click.option("--record", is_flag=True, help="Record the night: later nights are compared with it.")
@click.option(
    "--repeat", type=click.IntRange(min=1), metavar="N", help="Run each cell N times, whatever the suite says."
)
@click.option(
    "--budget", metavar="TIME", help="The time for all cells, such as 30m; cells that do not fit are skipped."
)
@click.option(
    "--only", multiple=True, metavar="CELL", help="Only this cell, all cells of this trial, or gemm*. Repeatable."
)
@click.option("--resume", metavar="NIGHT", help="Resume a night that was interrupted, or whose orchestrator died.")
@click.option(
    "--resume-open",
    is_flag=True,
    help="First end the nights on this bed whose process died: resume those of the last 12 hours, close older ones.",
)
@click.option(
    "--notify",
    type=Target(),
    multiple=True,
    metavar="URL|COMMAND",
    help="Post the result to a webhook, or run a command with it. Repeatable.",
)
@options.include_quarantined
@click.option(
    "--probe-spares",
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long spares are probed, once, before the first trial that may need one; one that is too slow does not join. 0s: not at all.",
)
@options.baselines
@click.option(
    "--on-culprit",
    metavar="COMMAND",
    default="",
    help="Print the call of COMMAND for every node that failed; {node}, {host}, {reason}, {night}, {evidence} are replaced.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["fail", "warn"]),
    show_default="fail",
    help="The least finding that fails the night (exit 1): with warn also a warning.",
)
@click.option("--apply", is_flag=True, help="With --on-culprit: call the command.")
@click.option(
    "--install-timer",
    metavar="WHEN",
    help="Print a systemd service and timer that run this night at WHEN, such as 02:00.",
)
@click.option("--system", is_flag=True, help="With --install-timer: for the whole system, not for this user.")
@click.option("--yes", is_flag=True, help="With --install-timer: write the units and start the timer.")
@click.option("--dry-run", is_flag=True, help="Print the cells in their order, and stop.")
@options.slurm_job
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, /, **values: Any) -> int:
    """Run SUITE, a built-in one (quick, standard) or a file, on a bed; then compare, report, and exit by the verdict.

    \b
    ccbed nightly quick
    ccbed nightly suites/lab.yml --bed lab --record
    """
    from ...app import ephemeral_bed
    from .. import nightly_run

    if values["suite"] and values["resume"]:
        raise UsageError("--resume takes the suite of its night", hint=f"ccbed nightly --resume {values['resume']}")
    if not values["install_timer"] and (values["yes"] or values["system"]):
        raise UsageError("--yes and --system are for --install-timer", hint="--install-timer 02:00 --yes")
    if values["resume"]:
        return nightly_run.resume(session, values["resume"], values)
    if not values["suite"]:
        raise UsageError("no suite is named", hint="ccbed nightly quick; the others: ccbed list suites")
    if values["install_timer"]:
        from .. import install_timer

        return install_timer.run(session, values["suite"], values)
    with ephemeral_bed.of_inventory(session, values["inventory"], quiet=values["as_json"]):
        return nightly_run.run(session, values["suite"], values)
