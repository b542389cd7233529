"""Run a night: plan it, run its cells, and bring it to its report and its exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ... import __version__
from ...app import bed_job, beds
from ...app import run as run_one
from ...app.hosts import quarantine
from ...app.places import short_path
from ...app.requests import BedRef
from ...app.session import Session
from ...app.up import up
from ...core.bed import selection
from ...core.spec import redact
from ...model.bed import BedSpec
from ...model.errors import CcbedError, Interrupted, UsageError
from ...store import bed_files as store
from ...store import bundle
from .. import baselines, night_files, notify, runner, selector
from ..culprits import hook
from ..suite import Night, Row, Suite
from . import night_end, night_trials, suites
from .night_requests import AcceptRequest, NightRequest
from .night_results import Acceptance, Finished

#: Earlier nights that are read for the order of the cells and the remaining time.
EARLIER = 30
#: How old a night is resumed by --resume-open. The figures of an older one belong to another day than its first ones, and under a
#: daily timer the new night measures the same.
RESUMED = datetime.timedelta(hours=12)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NightPlan:
    """The cells of a night in the ``order`` in which they would run, and what they did in earlier nights."""

    suite: Suite
    order: tuple[str, ...]
    past: Mapping[str, selector.Past]


def plan(session: Session, request: NightRequest) -> NightPlan:
    """Return what a night would run; nothing is started. Raises UsageError."""
    bed, suite, _ = _checked(session, request)
    past = _past(session, request.runs_dir, bed, suite)
    beds.without_drained_hosts(session, bed)
    return NightPlan(suite=suite, order=selector.order(suite, past), past=past)


def run(session: Session, request: NightRequest) -> Finished:
    """Run the night, or what is missing of the one that is resumed, and judge it.

    Raises UsageError, InfrastructureError, Interrupted.
    """
    if request.suite and request.resume:
        raise UsageError("--resume takes the suite of its night", hint=f"ccbed nightly --resume {request.resume}")
    if request.resume:
        return resume(session, request.resume, request)
    _suite(request)
    with bed_job.of_inventory(session, request.bed.inventory, quiet=session.is_json):
        return begin(session, request)


def _suite(request: NightRequest) -> str:
    """Raises UsageError where none is named."""
    if not request.suite:
        raise UsageError("no suite is named", hint="ccbed nightly quick; the others: ccbed list suites")
    return request.suite


def _checked(session: Session, request: NightRequest) -> tuple[BedSpec, Suite, float]:
    """The bed, the suite as the request wants it, and how long spares are probed. Raises UsageError for anything that is wrong."""
    name, bed = _suite(request), beds.meant(session, request.bed)
    suite = suites.as_asked(suites.open_suite(session, name, bed), request)
    baselines.read_all(request.baselines)
    hook.check(request.on_culprit)
    return bed, suite, run_one.parse_probe_limit(request.probe_spares)


def begin(session: Session, request: NightRequest) -> Finished:
    """Start a night, and run it to its end. Raises UsageError, InfrastructureError, Interrupted."""
    bed, suite, probe_spares_s = _checked(session, request)
    runs = request.runs_dir
    past = _past(session, runs, bed, suite)
    if not request.bed.inventory:
        bed_job.of(bed).refuse_ended(bed)
    bed_job.of(bed).refuse_longer(bed, selector.expected_s(suite, past), "the night")
    if request.resume_open:
        _end_open_nights(session, bed, request)
    if request.bed.inventory:
        up(session, bed, quiet=session.is_json)
    drained = beds.drained_nodes(bed)
    bed = beds.without_drained_hosts(session, bed)
    _require_free(session, bed)
    nodes = beds.identify_nodes(session, bed)
    quarantined = quarantine.reasons(Path(bed.workdir), nodes)
    _name_open_nights(session, runs, bed)
    now = datetime.datetime.now(datetime.UTC)
    directory = night_files.new(runs, suite.name, now)
    session.announce(directory)
    with store.night_lock(Path(bed.workdir), directory.name):
        night = Night(
            name=directory.name,
            suite=suite,
            bed=bed.name,
            provider=bed.provider,
            hosts={node.name: nodes.hosts[node.name] for node in bed.nodes if node.role == "node"},
            number=_next_number(runs, bed) if request.record else 0,
            started=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
            order=selector.order(suite, past),
            command=redact.command_line(["ccbed", *notify.without_targets(session.argv)]),
            ccbed=__version__,
            spares={node.name: nodes.hosts[node.name] for node in bed.nodes if node.role == "spare"},
            quarantined=quarantined,
            includes_quarantined=request.include_quarantined,
            drained=drained,
            probe_spares_s=probe_spares_s,
            fail_on=request.fail_on or "fail",
        )
        night_files.write_night(directory, night)
        bundle.link_latest(directory.parent, directory.name, bundle.LATEST_NIGHT)
        return _run(session, bed, directory, night, past, request)


def resume(session: Session, handle: str, request: NightRequest) -> Finished:
    """Go on with a night where its rows end. A night that has ended is judged and reported again."""
    directory = night_files.resolve(handle, request.runs_dir)
    session.announce(directory)
    night = night_files.read_night(directory)
    if request.fail_on not in (None, night.fail_on):
        raise UsageError(
            f"{directory}: was begun with --fail-on {night.fail_on}",
            hint="resume it without --fail-on: a night keeps its own",
        )
    if night_files.is_closed(directory):
        return night_end.finish(session, directory, night, night_files.read_rows(directory), request)
    ref = request.bed
    bed = beds.meant(session, dataclasses.replace(ref, bed=ref.bed or (None if ref.inventory else night.bed)))
    if bed.name != night.bed:
        raise UsageError(f"{directory}: was begun on bed {night.bed}, not on {bed.name}", hint=f"--bed {night.bed}")
    store.refuse_night(Path(bed.workdir))
    named = {"is_named": bool(request.bed.inventory), "quiet": session.is_json}
    with bed_job.of(bed).of_resumed_run(session, bed, **named):
        if bed_job.of(bed).has_ended(bed):
            _replace_job(session, bed, request)
        elif request.bed.inventory and store.read(session.state, bed.name) is None:
            up(session, bed, quiet=session.is_json)
        bed = _as_begun(session, bed, night)
        _require_free(session, bed, resumed=directory)
        with store.night_lock(Path(bed.workdir), night.name):
            return _run(session, bed, directory, night, _past(session, directory.parent, bed, night.suite), request)


def _replace_job(session: Session, bed: BedSpec, request: NightRequest) -> None:
    """Bring up a bed whose job has ended. The run that was open is closed and run anew: on other nodes it would be judged by
    its ranks, which the end of the job has ended.
    """
    from ...run import abandon

    with contextlib.suppress(CcbedError):  # one that had ended when its orchestrator died is judged, not run anew
        beds.settle(session, bed)
    workdir, run = Path(bed.workdir), store.open_run(Path(bed.workdir))
    if run is not None and not run.driver and run.begun:
        with store.run_lock(workdir, run.run, Path(run.directory)):
            abandon.close(Path(run.directory), workdir, "its Slurm job has ended")
            store.end_run(workdir, run.run)
    up(session, bed, quiet=session.is_json, force=True)


def _as_begun(session: Session, bed: BedSpec, night: Night) -> BedSpec:
    """The bed without its drained hosts, and without those that were drained when the night began: all its rows have the
    same nodes. Raises UsageError where no host is left.
    """
    undrained = selection.hosts_of(bed, night.drained) - beds.drains(bed).keys()
    usable = beds.without_drained_hosts(session, bed)
    for host in sorted(undrained):
        session.terminal.warn(
            f"host {host} was set aside when {night.name} began: it takes part from the next night on"
        )
    hosts = [host for host in selection.host_names(usable) if host not in undrained]
    if not hosts:
        raise UsageError(
            f"no host is left of those with which {night.name} began",
            hint="ccbed set-aside HOST --end, or begin another night",
        )
    return selection.on_hosts(usable, hosts) if undrained else usable


def _run(
    session: Session,
    bed: BedSpec,
    directory: Path,
    night: Night,
    past: Mapping[str, selector.Past],
    request: NightRequest,
) -> Finished:
    observer = session.follow.night(session)
    observer.begin(night, past, directory, sum(node.role == "node" for node in bed.nodes))
    history: list[night_end.History] = []

    def suspects(ended: Sequence[Row]) -> Iterator[tuple[str, str]]:
        history.append(night_end.read_history(session, directory, night))
        return night_end.suspects(directory, ended, history[0], request.baselines)

    rows = runner.Runner(
        directory=directory,
        night=night,
        trials=night_trials.NightTrials(
            session=session,
            bed=bed,
            directory=directory,
            night=night,
            floors=baselines.read_all(request.baselines),
            past=past,
        ),
        now=time.monotonic,
        past=past,
        suspects=suspects,
        on_start=observer.start,
        on_node=observer.node,
        on_cell=observer.cell,
    ).run()
    return night_end.finish(session, directory, night, rows, request, *history)


def _end_open_nights(session: Session, bed: BedSpec, request: NightRequest) -> None:
    """End the nights of any suite on the bed whose process died, and print a line for each. Raises UsageError, Interrupted."""
    store.refuse_night(Path(bed.workdir))  # a night that is running holds the lock: every other open night is dead
    observer = session.follow.night(session)
    _close_stale_run(session, bed)
    nights = _open_nights(session, request.runs_dir, bed)
    for directory, night in nights:
        with store.night_lock(Path(bed.workdir), night.name):
            if bed_job.of(bed).has_ended(bed):
                _replace_job(session, bed, request)
            done, code = _end_open_night(session, bed, directory, night, request)
        observer.closed(night, done, code)


def _close_stale_run(session: Session, bed: BedSpec) -> None:
    """Close the run that is open on the bed, if its directory is gone or its night has ended: nothing could resume it."""
    open_run, night = store.open_run(Path(bed.workdir)), _night_of_open_run(bed)
    if open_run is None or open_run.driver or not open_run.begun:
        return
    reason = f"its directory is gone: {open_run.directory}" if not Path(open_run.directory).is_dir() else ""
    reason = reason or (f"night {night.name} has ended" if night and night_files.is_closed(night) else "")
    if reason:
        from ...app import heal

        session.terminal.warn(f"run {open_run.run} is abandoned: {reason}")
        heal.heal(dataclasses.replace(session, terminal=session.terminal.silent()), bed)


def _open_nights(session: Session, runs: Path, bed: BedSpec) -> list[tuple[Path, Night]]:
    """The nights of the bed without a judgement, oldest first; that of the run that is open on the bed may lie in another directory."""
    nights = [item for item in _nights(session, runs, bed) if not night_files.is_judged(item[0])]
    other = _night_of_open_run(bed)
    if other and other not in [directory.resolve() for directory, _ in nights] and not night_files.is_judged(other):
        nights.append((other, night_files.read_night(other)))
    return sorted(nights, key=lambda item: item[1].started)


def _night_of_open_run(bed: BedSpec) -> Path | None:
    """The night to which the run that is open on the bed belongs; None without such a run."""
    open_run = store.open_run(Path(bed.workdir))
    night = Path(open_run.directory).parent.parent if open_run else None
    return night.resolve() if night and night_files.is_night(night) else None


def _name_open_nights(session: Session, runs: Path, bed: BedSpec) -> None:
    """A night that was killed between two runs does not block the bed, but has no report until it is resumed."""
    for directory, night in _open_nights(session, runs, bed):
        session.terminal.warn(
            f"night {night.name} has not ended, and its process is gone; end it: ccbed nightly --resume {short_path(directory)}"
        )


def _end_open_night(
    session: Session, bed: BedSpec, directory: Path, night: Night, request: NightRequest
) -> tuple[str, int]:
    """Return what was done, and the exit code of the night. Raises Interrupted."""
    if night_files.is_closed(directory):
        return "judged", night_end.finish(
            session, directory, night, night_files.read_rows(directory), request
        ).judgement.exit
    if (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(night.started)) < RESUMED:
        try:
            past = _past(session, directory.parent, bed, night.suite)
            return "resumed", _run(
                session, _as_begun(session, bed, night), directory, night, past, request
            ).judgement.exit
        except Interrupted:
            raise
        except CcbedError as error:
            if night_files.is_closed(directory):
                raise
            reason = f"it cannot be resumed: {'; '.join(error.problems)}"
    else:
        reason = f"it began more than {RESUMED.total_seconds() / 3600:g} h ago"
    trials = night_trials.NightTrials(session=session, bed=bed, directory=directory, night=night)
    trials.close_open_run()
    rows = runner.Runner(directory=directory, night=night, trials=trials, now=time.monotonic).give_up(
        f"the process of the night died, and {reason}"
    )
    return f"closed ({reason})", night_end.finish(session, directory, night, rows, request).judgement.exit


def _require_free(session: Session, bed: BedSpec, resumed: Path | None = None) -> None:
    """Raises UsageError while a night, or a run that is not of the night ``resumed``, is open on the bed.

    Another run that has ended is closed first.
    """
    store.refuse_night(Path(bed.workdir))
    _close_stale_run(session, bed)
    if resumed is None or _night_of_open_run(bed) != resumed:
        beds.settle(session, bed)
    open_run, night = store.open_run(Path(bed.workdir)), _night_of_open_run(bed)
    if open_run is None and store.driver(Path(bed.workdir)):  # it is judged, or its reference run follows
        raise store.busy(Path(bed.workdir))
    if open_run is None or (night and night == resumed and not open_run.driver):
        return
    if night is None or open_run.driver:
        raise store.busy(Path(bed.workdir), driven=bool(open_run.driver))
    raise UsageError(
        f"bed {bed.name} has an open night, {night.name}, whose orchestrator is gone",
        hint=f"end it: ccbed nightly --resume {short_path(night)}; or begin the new night with --resume-open,"
        f" which ends it first; or abandon its run: ccbed heal {bed.name}",
    )


def _past(session: Session, runs: Path, bed: BedSpec, suite: Suite) -> dict[str, selector.Past]:
    """Return what the cells of a suite did in its earlier nights on the bed. Nights that cannot be read are left out, with a warning."""
    earlier: list[selector.PastNight] = []
    for directory, night in _nights(session, runs, bed):
        if night.suite.name == suite.name and night_files.is_closed(directory) and len(earlier) < EARLIER:
            with contextlib.suppress(CcbedError, OSError):
                judgement = night_files.read_judgement(directory)
                findings: dict[str, int] = {}
                for judged in judgement.findings if judgement else ():
                    findings[judged.cell] = findings.get(judged.cell, 0) + (judged.state in ("warn", "fail", "xpass"))
                earlier.append(selector.PastNight(rows=night_files.read_rows(directory), findings=findings))
    return selector.past(earlier, [cell.name for cell in suite.cells])


def _next_number(runs: Path, bed: BedSpec) -> int:
    """Recorded nights of a bed are counted in the order of recording, whatever the clock says, and in whatever directory they are."""
    numbers = [night.number for _, night in _nights(None, runs, bed)]
    return quarantine.assign_number(Path(bed.workdir), least=max(numbers, default=0) + 1)


def _nights(session: Session | None, runs: Path, bed: BedSpec) -> Iterator[tuple[Path, Night]]:
    for directory in reversed(night_files.nights(runs)):
        try:
            night = night_files.read_night(directory)
        except (CcbedError, OSError) as error:
            if session is not None:
                session.terminal.warn(f"left out of the history: {error}")
            continue
        if night.bed == bed.name:
            yield directory, night


def accept(session: Session, request: AcceptRequest) -> Acceptance:
    """Run the suite as a night that is not recorded, and certify the bed. Raises UsageError, InfrastructureError, Interrupted."""
    from ..reports import certificate

    if request.inventory and request.bed:
        raise UsageError("INVENTORY and --bed exclude each other; give one of them")
    night = NightRequest(
        suite=request.suite, bed=BedRef(bed=request.bed, inventory=request.inventory), baselines=request.baselines,
        include_quarantined=request.include_quarantined, runs_dir=request.runs_dir,
    )  # fmt: skip
    directory = begin(session, night).directory
    return Acceptance(
        directory=directory, certificate=certificate.write(directory), summary=directory / certificate.SUMMARY
    )
