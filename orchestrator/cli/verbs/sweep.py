"""Find the slow node or link today, without history: every node beside its peers, or the links between all pairs of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...model.errors import UsageError
from ..inputs import completions, options
from ..inputs.session import Session


@options.command()
@click.argument("trial", metavar="TRIAL|FILE.yml", shell_complete=completions.trials)
@click.option("--each-node", is_flag=True, help="Compare the figures of every node with those of its peers.")
@click.option("--each-pair", is_flag=True, help="Compare the links of all pairs of nodes, in both directions.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Run the trial N times, and once more to confirm a suspect.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Resume the sweep in DIR that was interrupted; the rest of the line is as before. `ccbed resume DIR` does the same.",
)
@options.bed
@click.option("-i", "--inventory", type=click.Path(path_type=Path), help="Bring this bed up first, if it is not up.")
@options.slurm_job
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, /, **values: Any) -> int:
    """Run TRIAL on all nodes of a bed, and name the node, link, direction or switch that is slow beside the others.

    \b
    ccbed sweep gemm --each-node
    ccbed sweep links --each-pair

    Exit 0: nothing is odd. 1: a check of a run fails, such as different bits. 2: a suspect, or nothing could be judged.
    """
    if values["each_node"] == values["each_pair"]:
        raise UsageError(
            "sweep takes either --each-node or --each-pair",
            hint="ccbed sweep gemm --each-node, or ccbed sweep links --each-pair",
        )
    from .. import ephemeral_bed, sweep_run

    with ephemeral_bed.of_inventory(session, values["inventory"], quiet=values["as_json"]):
        return sweep_run.run(session, values)
