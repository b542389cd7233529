"""The twin of a run: taken from the cache, resumed, or run now; and the cache of twins by their key, with checksums."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from ..core.verdict import twin as twins
from ..model import codec
from ..model.errors import Interrupted
from ..model.event import History
from ..model.events import FaultInjected, RankStep, RunEnd, RunInterrupted, RunResumed
from ..model.launch import Request
from ..model.plan import Plan
from ..model.run import SHORT_S, Control, Twin
from ..store import bed_files, bundle, durable, paths
from ..store.journal import JournalError
from ..views import training
from . import abandon, drive, judging, preparation

#: The variable by which a rank's watcher knows at how many steps it records the state. The user's own value stays.
INTERVAL = "CCBED_WATCH_EVERY"
#: Saves of a reference run whose files stay until the run passes: for whoever looks into a difference. Records judge.
KEPT_SAVES = 2
#: The one by which the ranks of a restart control put their random states back.
PUT_BACK = "CCBED_PUT_RANDOM_STATES_BACK"


def provide(request: Request, directory: Path) -> bool:
    """Store the twin with the run, where it needs one. Returns whether a twin was run, which takes time."""
    if (directory / bundle.TWIN).exists() or not _is_needed(request, directory):
        return False
    key = twins.twin_key(request.trial, paths.document(directory, bundle.FINGERPRINT))
    cached = None if twins.is_script(request.trial) else _from_cache(request, key)
    twin = cached or _make(request, directory)
    _store(twin, directory)
    bed_files.end_twin(Path(request.bed.workdir))
    return cached is None


def provide_after(request: Request, directory: Path) -> bool:
    """Run the twin of a short run that has finished, if that is planned. Returns whether it was interrupted, which only ends the twin."""
    work, is_interrupted = directory / paths.WORK, False
    if not request.twin_after or request.stop or not _is_open(request, directory) or bundle.stage(directory) != "ended":
        return False
    is_refused = not bundle.is_sealed(directory) and not _use_again(request, directory)
    is_complete = (directory / bundle.TWIN).exists() or bundle.is_sealed(directory)  # by an orchestrator that died then
    is_comparable = not is_complete and work.is_dir() and _is_comparable(request, directory)
    if is_comparable:
        try:
            from . import kept_references

            if is_refused:
                request.on_note("the reference runs are made anew: only PASS rests on those of an earlier run")
            hidden = _outside_files(request, directory)
            twin = _make(request, directory, hidden)
            _store(twin, directory)
            kept_references.keep_if_possible(request, directory, twin, _restart(directory), hidden)
        except preparation.NotComparable as error:
            request.on_note(f"no reference run follows: {error.problems[0]}")
            bundle.keep_reason(directory, error.problems[0])
        except Interrupted as interruption:
            is_interrupted = True
            request.on_note(
                f"{interruption.problems[0]}; the run itself is complete and is judged without a reference run"
            )
            bundle.keep_reason(directory, interruption.problems[0])
        bed_files.end_twin(Path(request.bed.workdir))
    shutil.rmtree(work, ignore_errors=True)
    return is_interrupted


def _use_again(request: Request, directory: Path) -> bool:
    """Store the reference runs that were chosen as the run began. Return False if it does not pass with them: they count no more."""
    from . import kept_references

    chosen, twin = directory / bundle.CHOSEN_TWIN, directory / bundle.TWIN
    if bundle.is_twin_reused(directory):
        twin.rename(chosen)  # an orchestrator died before it knew whether the run passes
    if not chosen.exists():
        return True
    chosen.rename(twin)
    request.on_stage("judging by the reference run that is used again")
    is_alike = kept_references.is_restarted_alike(request, _restart(directory))
    if not (is_alike and judging.passes(request.catalogue, directory, Path(request.bed.workdir))):
        twin.unlink()
    return twin.exists()


def _restart(origin: Path) -> list[object]:
    """Return what the restarted reference of a run depends on beside its trial."""
    return [sorted(twins.restarting(bundle.read_history(origin))), _kept_random_states(origin)]


def _outside_files(request: Request, directory: Path) -> tuple[str, ...]:
    """Return what a run created outside of its project and of mapped paths. Raises NotComparable where it changed other files."""
    from . import outside_files

    plan, params = bundle.load_plan(directory), request.trial.params
    own = [directory.parent, request.state, request.bed.workdir, *plan.paths.values()]
    own += [plan.work_dir.root] if plan.work_dir else []
    own += [text.partition("=")[0] for text in params.get("map") or ()]
    began = (directory / bundle.TRIAL).stat().st_mtime
    changes = outside_files.changes(bundle.load(directory), began, params, map(str, own))
    if changes.lost:
        raise preparation.NotComparable(
            f"the run changed {min(changes.lost)}, which was there before it: "
            "--reference makes the reference run first, or use {out} in its arguments"
        )
    return tuple(sorted(changes.created))


def remove_copies(directory: Path) -> None:
    """Remove the copies of the project in which the twin and the control of a run that passed have worked."""
    document = paths.document(directory, bundle.TWIN) if (directory / bundle.TWIN).exists() else {}
    if document.get("reused"):
        return
    control = document.get("control") or {}
    for run in filter(None, (document.get("run"), control.get("run"))):
        for name in (paths.WORK, paths.OUT):
            shutil.rmtree(directory.parent / Path(run).name / name, ignore_errors=True)


def keep_newest_saves(directory: Path) -> None:
    """Remove the files of all but the newest saves of a reference run that has ended, within its own copy of the project."""
    plan, saves = bundle.load_plan(directory), dict[tuple[int, int], set[str]]()
    for attempt in training.lineage_of(bundle.load(directory)).attempts:
        for write in training.saves_of(attempt):
            saves.setdefault((attempt.index, write.n), set()).add(write.path)
    kept = set[str]().union(*(saves[moment] for moment in sorted(saves)[-KEPT_SAVES:]))
    own = directory.resolve()
    moved = {own / paths.WORK: own / paths.WORK, own / paths.OUT: own / paths.OUT}
    if plan.work_dir:
        moved[Path(plan.work_dir.root).resolve()] = own / paths.WORK
    for path in sorted(set[str]().union(*saves.values()) - kept):
        for root, target in moved.items():
            if Path(path).is_relative_to(root) and not any(Path(other).is_relative_to(path) for other in kept):
                _remove_below(target, target / Path(path).relative_to(root))


def _remove_below(directory: Path, path: Path) -> None:
    """Remove a file or a directory unless a link leads it out of ``directory``."""
    if path.resolve().is_relative_to(directory) and path.resolve() != directory:
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_comparable(request: Request, directory: Path) -> bool:
    """Return whether the run finished in time; without a fault that was injected there is nothing to compare."""
    history = bundle.read_history(directory)
    end = history.last(RunEnd)
    injected = history.last(FaultInjected) is not None
    return (
        injected and end is not None and end.data.outcome == "finished" and _fits(request, history, 2, "reference run")
    )


def _fits(request: Request, history: History, runs: int, name: str) -> bool:
    """Return whether a reference run ends within the budget, if each run takes as long as the first;
    without one, whether the run was short.
    """
    took_s = (history.events[-1].t if history.events else 0.0) - _pause_s(history)
    if request.budget_s is None:
        return took_s < SHORT_S
    if fits := runs * took_s <= request.budget_s:
        return fits
    request.on_note(f"no {name}: {runs} runs take about {runs * took_s:.0f} s, the budget is {request.budget_s:g} s")
    return False


def _pause_s(history: History) -> float:
    """Seconds in which no event shows that the run went on while it had no orchestrator."""
    times, pause_s = sorted(event.t for event in history.events), 0.0
    for resumed in history.of(RunResumed):
        pause_s += resumed.t - max((t for t in times if t < resumed.t), default=resumed.t)
    return pause_s


def _store(twin: Twin | None, directory: Path) -> None:
    if twin is not None:
        durable.perform(durable.file(directory / bundle.TWIN, paths.as_json(codec.plain(twin))))


def with_interval(request: Request, origin: Path) -> Request:
    """A request whose ranks record states at the same steps as the run ``origin``, or its twin if that was first, did."""
    for name in (bundle.TWIN, bundle.CHOSEN_TWIN):
        if (origin / name).exists():
            return _at_interval(request, paths.document(origin, name).get("every"))
    if not bundle.has_ended(origin):
        return request
    return _at_interval(request, training.checkpoint_cost.state_interval(training.lineage_of(bundle.load(origin))))


def _at_interval(request: Request, every: int | None) -> Request:
    return request if every is None else replace(request, exports={INTERVAL: str(every), **request.exports})


def abandon_open(request: Request, origin: Path) -> None:
    """End the twin that followed a run, if its orchestrator died in it: ``provide_after`` makes another one."""
    if _is_open(request, origin):
        resume(replace(request, stop=True), origin)


def _is_open(request: Request, origin: Path) -> bool:
    open_run = bed_files.open_run(Path(request.bed.workdir))
    return open_run is not None and open_run.run == origin.name


def resume(request: Request, origin: Path) -> None:
    """Resume the twin of an orchestrator that died, and cache it. A twin that was interrupted is closed."""
    workdir = Path(request.bed.workdir)
    open_run = bed_files.open_run(workdir)
    if open_run is None or not open_run.twin:
        return
    directory, request = Path(open_run.twin), with_interval(_without_faults(request), origin)
    stage = bundle.stage(directory)
    if stage != "none":  # a restart control has faults of its own
        request = replace(request, trial=bundle.load_trial(directory))
    if stage == "none":
        preparation.discard(request.provider, request.bed, directory)
    elif stage == "open" and (
        request.stop or bundle.read_history(directory).last(RunInterrupted) or _has_view(directory)
    ):
        _abandon(request, directory)
    elif stage == "open":
        request.on_begin(str(directory))
        _drive(request, preparation.read_plan(directory, request.bed), directory, origin)
        _judge_and_cache(request, directory)
    else:
        _judge_and_cache(request, directory)
    bed_files.end_twin(workdir)


def _from_cache(request: Request, key: str) -> Twin | None:
    """Return the cached twin, if there is one. A damaged one is reported, and run again."""
    try:
        twin = read_cached(Path(request.state), key, request.trial.world.size)
    except DamagedTwinError as error:
        request.on_note(f"the cached reference run is damaged and is run again: {error}")
        return None
    if twin is not None:
        request.on_cached_twin(twin.run)
    return twin


def _is_needed(request: Request, directory: Path) -> bool:
    return bool(paths.document(directory, bundle.BUNDLE)["twin"]) and preparation.needs_twin(request)


def _without_faults(request: Request) -> Request:
    """Return a request for the same trial without faults and checks."""
    trial = replace(request.trial, faults=(), checks=())
    reason = f"reference run of trial {request.trial.id}"
    return replace(request, trial=trial, twin=False, twin_after=False, reason=reason, on_event=lambda event: None)


def _has_view(directory: Path) -> bool:
    """Return whether the view of its files has ended with the orchestrator that made it."""
    isolation = bundle.load_plan(directory).isolation
    return isolation is not None and isolation.view is not None


def _make(request: Request, origin: Path, hidden: Sequence[str] = ()) -> Twin | None:
    """Run the twin, and the restart control of a script; None where the twin did not finish as planned. ``hidden``: from both."""
    request = with_interval(request, origin)
    twin = _run_twin(_without_faults(request), origin, hidden)
    history = bundle.read_history(origin)
    is_in_time = request.budget_s is None or _fits(request, history, 3, "restarted reference")
    if twin is not None and twins.is_script(request.trial) and is_in_time:
        return replace(twin, control=_run_control(_at_interval(request, twin.every), origin, hidden))
    return twin


def _run_twin(request: Request, origin: Path, hidden: Sequence[str]) -> Twin | None:
    directory = _run(request, origin, "twin", hidden)
    twin = _judge_and_cache(request, directory)
    if twin is None:
        bundle.keep_reason(origin, twins.unfit(bundle.load(directory)))
    return twin


def _run_control(request: Request, origin: Path, hidden: Sequence[str]) -> Control | None:
    """Run the restart control: the trial with a restart where its faults act. None where none of them makes the job restart."""
    trial = twins.control_trial(request.trial, twins.restarting(bundle.read_history(origin)))
    if trial is None:
        return None
    bed_files.end_twin(Path(request.bed.workdir))
    request = replace(_without_faults(request), trial=trial, reason=f"restarted reference of trial {request.trial.id}")
    directory = _run(request, origin, "twin-control", hidden)
    result = judging.finish(request.catalogue, directory, Path(request.bed.workdir), judging.signer(request))
    _free(request, directory, result.code)
    return twins.make_control(bundle.load(directory))


def _run(request: Request, origin: Path, kind: str, hidden: Sequence[str]) -> Path:
    directory = bundle.new(origin.parent, f"{request.trial.name}-{kind}")
    with ExitStack() as views:
        draft = preparation.Draft(request=request, origin=origin, hidden=hidden, views=views)
        plan = preparation.begin(draft, directory)
        request.on_begin(str(directory))
        made = bundle.read_history(origin).of(RankStep)
        steps = max((event.data.step + (event.data.offset or 0) for event in made), default=0)
        report = functools.partial(request.on_reference, steps)
        _drive(replace(request, on_event=report), plan, directory, origin)
    return directory


def _drive(request: Request, plan: Plan, directory: Path, origin: Path) -> None:
    """Drive the twin or the control to its end. Raises Interrupted: the run itself stays open and makes others."""
    command = f"ccbed resume {origin}"
    if request.trial.faults and not _kept_random_states(origin):  # a restart control
        request = replace(request, exports={PUT_BACK: "1", **request.exports})
    try:
        drive.drive(request, request.trial, plan, directory)
    except (JournalError, drive.CutOffError) as error:
        first = "free space, then " if isinstance(error, JournalError) else ""
        raise type(error)(*error.problems, hint=f"{first}{command}") from error
    if not bundle.has_ended(directory):
        abandon.collect_and_close(request, directory, "interrupted")
        bed_files.end_twin(Path(request.bed.workdir))
        raise Interrupted(f"interrupted in the reference run, {plan.run}", hint=command)


def _kept_random_states(origin: Path) -> bool:
    """Return whether a run is known to have lost no random state that counts.

    To put them back would change what its job draws as it starts.
    """
    return bundle.has_ended(origin) and training.saved_state.kept_random_states(
        training.lineage_of(bundle.load(origin))
    )


def _abandon(request: Request, directory: Path) -> None:
    """Heal the bed and stop the gang of a twin that is not needed any more, then close it."""
    if bundle.has_begun(directory):
        drive.drive(
            replace(request, stop=True), request.trial, preparation.read_plan(directory, request.bed), directory
        )
    if not bundle.has_ended(directory):
        abandon.collect_and_close(request, directory, "interrupted")


def _judge_and_cache(request: Request, directory: Path) -> Twin | None:
    """Judge a twin run that has ended, and cache it where it can serve as a twin."""
    result = judging.finish(request.catalogue, directory, Path(request.bed.workdir), judging.signer(request))
    twin = twins.make_twin(bundle.load(directory))
    if twin is None and not request.trial.faults:
        request.on_note(f"the run is compared with no reference run: {twins.unfit(bundle.load(directory))}")
    if twin is not None and not twins.is_script(request.trial):
        write_cached(Path(request.state), twin)
    _free(request, directory, result.code)
    return twin


def _free(request: Request, directory: Path, code: int) -> None:
    """Free the disk of a reference run that was judged."""
    if twins.is_script(request.trial):
        keep_newest_saves(directory)
    judging.forget(request, directory, code)


class DamagedTwinError(Exception):
    """The cached file of a twin cannot be used; the message names the file and the reason."""


def read_cached(state: Path, key: str, ranks: int) -> Twin | None:
    """The twin of ``ranks`` ranks with this key; None if there is none. Raises DamagedTwinError."""
    file = _cache_file(state, key)
    try:
        twin = _read_document(file.read_bytes(), key, ranks)
        with suppress(OSError):
            os.utime(file)  # it is in use: its age counts from now
        return twin
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedTwinError(f"{file}: {error}") from None


def write_cached(state: Path, twin: Twin) -> None:
    content = codec.plain(twin)
    paths.write_json(_cache_file(state, twin.key), {"sha256": codec.digest(content), "twin": content})


def _read_document(data: bytes, key: str, ranks: int) -> Twin:
    """Raises ValueError with the reason, or another error for damaged data."""
    document = json.loads(data)
    content = document.get("twin")
    if content is None or "sha256" not in document:
        raise ValueError("it has no checksum")
    if document["sha256"] != codec.digest(content):
        raise ValueError("its content does not match its checksum")
    twin = codec.build(Twin, content)
    reason = twins.incomplete(twin, ranks) if twin.key == key else f"it is the reference run of key {twin.key}"
    if reason:
        raise ValueError(reason)
    return twin


def _cache_file(state: Path, key: str) -> Path:
    return state / "twins" / f"{key}.json"
