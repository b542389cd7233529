"""Place no node on a host: `up`, runs and nights leave it alone until it is undrained."""

from __future__ import annotations

from ...app.hosts import drains
from ...app.hosts.drains import DrainRequest
from ...app.places import short_list
from ..inputs import options
from ..inputs.session import Session


@options.shows(DrainRequest, drains.drain)
def command(session: Session, drained: drains.Drained) -> None:
    """Place no node on HOST: `up`, `run` and `nightly` leave it alone until `ccbed undrain HOST`.

    Nodes that are there stay as they are, and get no rank; `ccbed down --limit HOST` ends containers. The host may be switched off.
    """
    terminal = session.terminal
    if drained.open_run:
        terminal.warn(
            f"run {drained.open_run} is open on bed {drained.bed}, and keeps its ranks; the drain holds for runs that begin later "
            "(repeats of --repeat and of a cell of a night keep their nodes)"
        )
    if drained.added:
        terminal.line(f"drained {short_list(drained.added)}: {drained.effect}")
