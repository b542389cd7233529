"""Write a commented inventory, trial or file of settings to begin with; never overwrites a file."""

from __future__ import annotations

from ...app.places import short_path
from ...app.project import starters
from ...app.project.starters import InitRequest
from ..inputs import options
from ..inputs.session import Session


@options.verb(InitRequest)
def command(session: Session, request: InitRequest) -> int:
    """Write a commented inventory, trial or config (settings of this project) to FILE; a file that exists stays as it is.

    \b
    ccbed init inventory cluster.yml --like slurm
    ccbed init trial drill.yml --like ddp --fault slow-node
    ccbed init config
    """
    file, follow = starters.write(session, request)
    if session.is_json:
        session.terminal.json({"file": str(file), "next": follow})
    else:
        session.terminal.line(f"{short_path(file)} written     next: {follow}")
    return 0
