"""The twin of a run, made within its life: from the cache, gone on with, or run now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..core.verdict import judge
from ..core.verdict import twin as twins
from ..model import codec
from ..model.errors import EXIT_PASS, Interrupted
from ..model.launch import Request
from ..model.plan import Plan
from ..model.run import Twin
from ..store import beds, bundle, durable, paths
from ..store import twins as cache
from ..store.journal import JournalError
from . import abandon, drive, judging, preparation


def provide(request: Request, directory: Path) -> bool:
    """Give the run its twin, where it needs one. Returns whether one was run, so that time has passed."""
    if (directory / bundle.TWIN).exists() or not _is_needed(request, directory):
        return False
    key = twins.twin_key(request.trial, paths.document(directory, bundle.FINGERPRINT))
    known = _known(request, key)
    twin = known or _make(_undisturbed(request), directory)
    if twin is not None:
        durable.perform(durable.file(directory / bundle.TWIN, paths.as_json(codec.plain(twin))))
    beds.end_twin(Path(request.bed.workdir))
    return known is None


def settle(request: Request, origin: Path) -> None:
    """Go on with the twin that an orchestrator left when it died, and cache it; one that was interrupted is closed."""
    workdir = Path(request.bed.workdir)
    open_run = beds.open_run(workdir)
    if open_run is None or not open_run.twin:
        return
    directory, request = Path(open_run.twin), _undisturbed(request)
    stage = bundle.stage(directory)
    if stage == "none":
        preparation.discard(request.provider, request.bed, directory)
    elif stage == "open" and (request.stop or bundle.read_history(directory).last("run.interrupted")):
        _end(request, directory)
    elif stage == "open":
        request.began(str(directory))
        _drive(request, preparation.read_plan(directory, request.bed), directory, origin)
    else:
        _cached(request, directory)
    beds.end_twin(workdir)


def _known(request: Request, key: str) -> Twin | None:
    """The twin that was made before. A damaged one is reported, and made again."""
    try:
        twin = cache.get(Path(request.state), key, request.trial.world.size)
    except cache.DamagedTwinError as error:
        request.note(f"the cached run to compare with is damaged and made again: {error}")
        return None
    if twin is not None:
        request.known(twin.run)
    return twin


def _is_needed(request: Request, directory: Path) -> bool:
    chosen = judge.specs(request.trial, request.catalogue)
    return bool(paths.document(directory, bundle.BUNDLE)["twin"]) and judge.needs_twin(chosen, request.catalogue)


def _undisturbed(request: Request) -> Request:
    """The same trial without what disturbs or judges it."""
    trial = replace(request.trial, faults=(), checks=())
    reason = f"twin of trial {request.trial.id}"
    return replace(request, trial=trial, twin=False, reason=reason, told=lambda event: None)


def _make(request: Request, origin: Path) -> Twin | None:
    """None if something disturbed it."""
    directory = bundle.new(origin.parent, f"{request.trial.name}-twin")
    plan = preparation.begin(preparation.Draft(request=request, origin=origin), directory)
    request.began(str(directory))
    return _drive(request, plan, directory, origin)


def _drive(request: Request, plan: Plan, directory: Path, origin: Path) -> Twin | None:
    """To its end, and into the cache. Raises Interrupted: the run that was asked for stays open and makes another twin."""
    again = f"ccbed resume {origin}"
    try:
        drive.drive(request, request.trial, plan, directory)
    except (JournalError, drive.CutOffError) as error:
        first = "free space, then " if isinstance(error, JournalError) else ""
        raise type(error)(*error.problems, hint=f"{first}{again}") from error
    if not bundle.has_ended(directory):
        abandon.close(directory, "interrupted")
        beds.end_twin(Path(request.bed.workdir))
        raise Interrupted(f"interrupted in the run to compare with, {plan.run}", hint=again)
    return _cached(request, directory)


def _end(request: Request, directory: Path) -> None:
    """Heal the bed and stop the gang of a twin that counts no more, then close it."""
    if bundle.has_begun(directory):
        drive.drive(
            replace(request, stop=True), request.trial, preparation.read_plan(directory, request.bed), directory
        )
    if not bundle.has_ended(directory):
        abandon.close(directory, "interrupted")


def _cached(request: Request, directory: Path) -> Twin | None:
    """The twin that a run which has ended can be, in the cache from now on."""
    result = judging.finish(request.catalogue, directory, Path(request.bed.workdir))
    twin = twins.make_twin(bundle.load(directory))
    if twin is not None:
        cache.put(Path(request.state), twin)
    if result.code == EXIT_PASS:
        request.provider.forget(request.bed, directory.name)
    return twin
