"""Write a commented inventory, trial or file of settings to begin with; never overwrites a file."""

from __future__ import annotations

from ...app import starters
from ...app.places import short_path
from ...app.starters import InitRequest
from ..inputs import options
from ..inputs.terminal_session import Session


@options.shows(InitRequest, starters.write)
def command(session: Session, begun: starters.Begun) -> None:
    """Write a commented inventory, trial or config (settings of this project) to FILE; a file that exists stays as it is.

    \b
    ccbed init inventory cluster.yml --like slurm
    ccbed init trial drill.yml --like ddp --fault slow-node
    ccbed init config
    """
    session.terminal.line(f"{short_path(begun.file)} written     next: {begun.next}")
