"""The end of a run that nobody drives any more: healed, stopped, gathered, said in its history, sealed as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

from ...model.bed import BedSpec
from ...model.launch import Request
from ...model.provider import Provider
from ...run import abandon
from ...store import beds, bundle
from ..render import live
from .session import Session

#: Per node and path, what is fetched at most, in bytes.
_LIMIT = 256 * 1024**2


def settle(session: Session, bed: BedSpec) -> None:
    """Close or remove the run of an orchestrator that died, where nothing of it goes on; tell what was done."""
    workdir = Path(bed.workdir)
    left = beds.open_run(workdir)
    if left is None or left.driver:
        return
    from ...run import settling

    with beds.run_lock(workdir, left.run, Path(left.directory)):
        settling.settle(bed, session.provider(bed), session.catalogue, session.terminal.warn)


def give_up(session: Session, bed: BedSpec, provider: Provider, directory: Path) -> None:
    """Go on with the run only as far as an interruption goes, then close it. Raises InfrastructureError."""
    trial, plan = bundle.load_trial(directory), bundle.load_plan(directory)
    printer = live.Printer(terminal=session.terminal, trial=trial, slots=plan.slots)
    printer.replay(bundle.read_history(directory).events)
    request = Request(
        trial=trial,
        bed=bed,
        provider=provider,
        catalogue=session.catalogue,
        runs=str(directory.parent),
        state=str(session.state),
        command=shlex.join(["ccbed", *session.argv]),
        resume=str(directory),
        stop=True,
        told=printer.event,
    )
    session.launch(request)
    for name in plan.nodes if bundle.has_begun(directory) else ():
        provider.fetch(name, f"runs/{plan.run}", directory / "nodes" / name, _LIMIT)
        provider.fetch(name, "agent.log", directory / "nodes" / name / "agent.log", _LIMIT)
    if not bundle.is_sealed(directory):
        bundle.keep_keeper_events(directory, Path(bed.workdir))
        abandon.close(directory, "given up: ccbed heal")
