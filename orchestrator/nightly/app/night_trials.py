"""Run the trials of a night on its bed, with deadlines, and bring the bed back between them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import statistics
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from ...app import audited, bed_job, places, trials
from ...app import beds as bed_inputs
from ...app import run as run_trial
from ...app.session import Session
from ...core.spec import parse_trial, planning, redact, slots, trial_draft
from ...model import errors
from ...model.bed import BedSpec, NodeStatus
from ...model.events import RunEnd
from ...model.frozen import dataclass, field
from ...model.launch import Result
from ...model.plan import Placement
from ...model.trial import Trial
from ...store import bed_files, bundle, paths, secrets
from .. import bundle_records, night_files, parse_suite, selector, sweeps
from ..baselines import Baseline
from ..runner import Attempt
from ..suite import ALL, RUNS, Cell, Night
from . import repeats, spare_probe

#: The engine ends a run at its deadline, with the stacks of its ranks. After twice that time, as a run may have a twin, and this
#: many seconds, the process interrupts itself.
GRACE_S = 30.0
#: States of a node that need nothing.
_READY = ("warm", "busy")


class TooFewNodesError(errors.UsageError):
    """``nodes: all`` are fewer than the trial can have."""


@dataclass(kw_only=True)
class NightTrials:
    """The trials of the night in ``directory``. ``bed``: all of it; a trial gets the nodes of ``_bed``, those that are up.

    ``members``: the nodes that are measured alone, in the order of their ranks; empty: all.
    """

    session: Session
    bed: BedSpec
    directory: Path
    night: Night
    floors: tuple[Baseline, ...] = ()
    past: Mapping[str, selector.Past] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    #: What was lost and did not come back -> its state: a node, or the keeper of a host.
    _away: Mapping[str, str] = field(default_factory=dict)
    _built: dict[str, tuple[trials.Source, Trial, redact.Redaction]] = field(default_factory=dict)
    _probed: Placement | None = None
    #: How the Slurm job of the bed was cancelled, or that its time is over; empty while the night may have another one.
    _job_end: str = ""

    def obstacle(self, cell: Cell) -> str:
        """A trial that was removed or broken since the night began is no obstacle, but an error."""
        missing = selector.missing(cell.needs, self._bed)
        if missing:
            return self._explained(missing)
        try:
            self._trial(cell)
        except TooFewNodesError as error:
            return self._explained("; ".join(error.problems))
        try:
            self._probe_spares(cell)
            source, trial, _ = self._trial(cell)
            trials.require_nodes(source, trial, self._bed, self.session.catalogue)
            bed_job.of(self.bed).refuse_short(self.bed, trial)
            bed_job.of(self.bed).refuse_longer(
                self.bed, self.past.get(cell.name, selector.NEVER).duration_s or 0.0, "the cell"
            )
            provider = self.session.provider(self._bed)
            planning.plan(
                trial, self._bed, provider.observe(self._bed, memory=False), self.session.catalogue, run="(plan)", payload="",
                capabilities={node.host: provider.capabilities(node.host) for node in self._bed.all_nodes},
                data_dir=self._bed.data_dir, placement=self._placement(trial),
            )  # fmt: skip
        except errors.UsageError as error:
            return self._explained("; ".join(error.problems))
        return self._missing_spare(trial)

    def _explained(self, reason: str) -> str:
        """The reason, with what is lost of the bed."""
        return "; ".join((reason, *(f"{name} is {state}" for name, state in self._away.items())))

    @property
    def _bed(self) -> BedSpec:
        """The bed without the nodes that are lost, and without hosts that have no other. A bed that lost all of them stays as it is."""
        hosts = {host.name for host in self.bed.hosts if _keeper(host.name) in self._away}
        present = tuple(node for node in self.bed.nodes if node.name not in self._away and node.host not in hosts)
        if len(present) == len(self.bed.nodes):
            return self.bed
        if not any(node.role == "node" for node in present):
            drained = bed_inputs.drained_nodes(self.bed)  # these get no rank, whatever else is lost
            present = tuple(node for node in self.bed.nodes if node.name not in drained)
        used = {node.host for node in present}
        return dataclasses.replace(
            self.bed, nodes=present, hosts=tuple(host for host in self.bed.hosts if host.name in used)
        )

    def _placement(self, trial: Trial) -> Placement:
        """Probes measure nodes in quarantine too: else no night could show that they are healthy again."""
        if self.members:
            return Placement(members=self.members)
        if is_probe(trial):
            return Placement()
        if self._probed is None:
            self._probed = night_files.read_spares(self.directory)
        quarantined = {} if self.night.includes_quarantined else self._quarantined
        return dataclasses.replace(self._probed or Placement(), quarantined=quarantined)

    @property
    def _quarantined(self) -> Mapping[str, str]:
        """That of the night's start; in another Slurm job, the nodes that those hosts have now."""
        if self.bed.slurm is None or not self.night.quarantined:
            return self.night.quarantined
        names = bed_inputs.identify_nodes(self.session, self.bed).names(self.night.all_hosts)
        renamed = {names.get(node, node): reason for node, reason in self.night.quarantined.items()}
        return {node.name: renamed[node.name] for node in self.bed.nodes if node.name in renamed}

    def _probe_spares(self, cell: Cell) -> None:
        """Probe spares once a night, before the first trial that may give them ranks. A failover waits for no probe. Raises CcbedError."""
        _, trial, _ = self._trial(cell)
        placement = self._placement(trial)
        if self._probed is not None or self.members or not self.night.probe_spares_s or is_probe(trial):
            return
        substitutes = slots.assign(trial, self._bed, placement).substitutes.values()
        if not (_recovers_with_spare(trial) or set(substitutes) & set(self.night.spares)):
            return
        if set(self.night.spares) <= set(placement.excluded):
            return
        runs = (self.directory / RUNS).resolve()
        probe = spare_probe.SpareProbe(
            session=self.session, bed=self._bed, limit_s=self.night.probe_spares_s, runs=runs, baselines=self.floors,
            command=self.night.command, reason=f"in {self.directory.name}",
        )  # fmt: skip
        self._probed = run_trial.relative_to(dataclasses.replace(probe.extend(placement), quarantined={}), runs)
        night_files.write_spares(self.directory, self._probed)
        self._built.clear()

    def _missing_spare(self, trial: Trial) -> str:
        """Return why a failover has no spare although the bed has: the time to recover by a restart is another figure."""
        placement = self._placement(trial)
        assigned = slots.assign(trial, self._bed, placement)
        if assigned.spares or not _recovers_with_spare(trial) or not self.night.spares:
            return ""
        reasons = [*slots.describe_excluded(self._bed, placement, assigned.substitutes)]
        reasons += [f"{name} is {state}" for name, state in self._away.items()]
        return f"no spare is left to recover with: {'; '.join(reasons)}" if reasons else ""

    def launch(self, cell: Cell, repeat: int, open_run: str, again: str = "") -> Attempt:
        if again not in ("", ALL) and not self.members:
            alone = dataclasses.replace(self, members=tuple(again.split(",")), _built={})
            return alone.launch(cell, repeat, open_run, again)
        self._probe_spares(cell)
        deadline = _Deadline(cell.deadline_s * 2 + GRACE_S)
        begun: list[str] = []
        try:
            with deadline:
                result = self._launch(cell, repeat, open_run, begun, again)
        except errors.InfrastructureError as error:
            if reason := self.obstacle_to_all():
                raise errors.InfrastructureError(reason) from error
            raise
        except (KeyboardInterrupt, errors.Interrupted):
            if not deadline.has_passed:
                raise
            result = None
        if deadline.has_passed and (result is None or result.code == errors.EXIT_INTERRUPTED):
            self._heal()
            run = Path(begun[-1]).name if begun else ""
            reason = (
                f"hung: not ended {GRACE_S:g} s after twice its deadline of {cell.deadline_s:g} s, and was abandoned"
            )
            return Attempt(run=run, exit=errors.EXIT_FINDING, is_overdue=True, reason=reason)
        if result is None:
            raise KeyboardInterrupt
        return self._attempt(cell, result)

    def figure(self, run: str, metric: str) -> float | None:
        try:
            record = bundle_records.read(self.directory / RUNS / run)
        except paths.TornBundleError:
            return None
        name = metric or next((item.metric.name for item in record.measurements), "")
        medians = [
            statistics.median(item.values) for item in record.measurements if item.metric.name == name and item.values
        ]
        return statistics.median(medians) if medians else None

    def obstacle_to_all(self) -> str:
        """The night does not bring up a bed that a person has taken down, nor one whose job was cancelled or has had its time."""
        if self._job_end:
            return self._job_end
        if bed_files.read(self.session.state, self.bed.name) is None:
            return f"bed {self.bed.name} was taken down during the night (ccbed down)"
        if len(bed_inputs.drained_nodes(self.bed)) == len(self.bed.nodes):
            return f"every host of bed {self.bed.name} was set aside during the night (ccbed set-aside)"
        return ""

    def restore(self) -> Mapping[str, str]:
        """Close the night's run that is still open on the bed, and bring nodes back that are not warm."""
        self.close_open_run()
        lost = self._lost()
        if lost == self._away:
            return {}
        if lost and (end := bed_job.of(self.bed).deliberate_end(self.bed)):
            self._job_end = end
            return {}
        reason = self._bring_up() if lost else ""
        away = self._lost() if lost else {}
        if away != self._away:
            self._away = away
            self._built.clear()
        ending = f"cannot be brought up again: {reason}" if reason else "is still not ready"
        endings = dict.fromkeys(away, ending) | dict.fromkeys(bed_inputs.drained_nodes(self.bed), "it gets no rank")
        back = {name: f"was {state}; brought up again" for name, state in lost.items() if name not in away}
        return {**back, **{name: f"is {state}; {endings[name]}" for name, state in away.items()}}

    def _bring_up(self) -> str:
        """Empty, or why not all of the bed is up."""
        from ...app.up import up

        try:
            up(self._silent, self._wanted, quiet=True, force=True)
        except errors.CcbedError as error:
            return "; ".join(error.problems)
        except OSError as error:
            return str(error)
        return ""

    @property
    def _wanted(self) -> BedSpec:
        """The whole bed: that of the night lacks drained hosts."""
        return bed_files.read(self.session.state, self.bed.name) or self.bed

    def close_open_run(self) -> None:
        """Close the night's run that is still open on the bed, if its process is dead."""
        open_run = bed_files.open_run(Path(self.bed.workdir))
        if open_run and not open_run.driver and Path(open_run.directory).parent == (self.directory / RUNS).resolve():
            self._heal()

    def _lost(self) -> dict[str, str]:
        """The states of nodes that are not warm, and of keepers that have ended: without its keeper a host starts no trial.
        So are nodes on a host that was drained since the night began; it is not contacted."""
        drained, reached = bed_inputs.drained_nodes(self.bed), bed_inputs.usable(self.bed)
        try:
            status = self.session.provider(reached).observe(reached, memory=False)
        except errors.UnreachedError as error:
            status = error.status
        nodes = [status.node(node.name) for node in self.bed.nodes if node.name not in drained]
        keepers = [_keeper(host.name) for host in status.hosts if not host.keeper_pid]
        if not (status.keeper_pid or status.hosts or any(node.state == "unreachable" for node in nodes)):
            keepers = [_keeper()]
        return {
            **dict.fromkeys(keepers, "dead (its process has ended)"),
            **{node.name: _state(node) for node in nodes if node.state not in _READY},
            **{name: reason.removeprefix("is ") for name, reason in drained.items()},
        }

    def _trial(self, cell: Cell) -> tuple[trials.Source, Trial, redact.Redaction]:
        """The cell's trial; its run ends at the deadline of the cell, unless its own comes first."""
        if cell.name not in self._built:
            source = trials.open_source(cell.trial, (), self.session.catalogue)
            redaction = redact.Redaction(mask=secrets.mask(self.session.state), names=source.secret_names)
            trial = self._build(cell, source, Placement())
            if (placement := self._placement(trial)).excluded:
                trial = self._build(cell, source, placement)
            wall_s = min(trial.liveness.wall_s, cell.deadline_s)
            trial = dataclasses.replace(trial, liveness=dataclasses.replace(trial.liveness, wall_s=wall_s))
            self._built[cell.name] = (source, run_trial.redacted(source, redaction, trial), redaction)
        return self._built[cell.name]

    def _build(self, cell: Cell, source: trials.Source, placement: Placement) -> Trial:
        """``nodes: all`` are those that the trial may use. Raises UsageError, TooFewNodesError."""
        usable = len(self.members) or max(1, slots.count_usable(self._bed, placement))
        overrides: list[trial_draft.Override] = parse_suite.overrides(cell, self._bed, nodes=usable)
        more = trials.absolute_paths(source, {})
        if source.is_script and "world.nodes" not in cell.overrides:
            more.append(run_trial.all_nodes(source, self._bed, placement))
        build = functools.partial(parse_trial.build, source.document, self.session.catalogue)
        try:
            return build([*overrides, *more], self.bed.data_dir)
        except errors.UsageError as error:
            if cell.overrides.get("world.nodes") != parse_suite.ALL:
                raise
            build([*parse_suite.overrides(cell, None), *more], self.bed.data_dir)  # raises what is wrong on any bed
            raise TooFewNodesError(*error.problems) from None

    def _launch(self, cell: Cell, repeat: int, open_run: str, begun: list[str], again: str) -> Result:
        """A run that cannot be resumed, because its bed was brought up again, is healed and run anew."""
        opened = self.directory / RUNS / open_run if open_run else None
        return repeats.finish_or_run(
            self.session, opened, lambda resumed: self._run(cell, repeat, resumed, begun, again), self._heal
        )

    def _run(self, cell: Cell, repeat: int, resume: Path | None, begun: list[str], again: str) -> Result:
        session, bed = self.session, self._bed
        source, trial, redaction = self._trial(cell)
        trial = trials.without_missing_libraries(session.terminal, trial, bed, session.catalogue)
        is_local_script = source.is_script and bed.shares_file_system

        def on_begin(directory: str) -> None:
            if not places.is_twin(directory):
                begun.append(directory)

        return audited.launch(
            session,
            session.request(
                trial,
                bed,
                self.directory / RUNS,
                command=self.night.command,
                reason=night_files.reason(self.directory.name, cell.name, repeat, again),
                data_dir=bed.data_dir,
                resume=str(resume) if resume else "",
                twin=run_trial.has_twin(source, trial, None),
                inputs=source.inputs,
                secrets=dict(redaction.secrets),
                secret_names=tuple(redaction.names),
                environment=dict(os.environ) if is_local_script else None,
                placement=self._placement(trial),
                on_begin=on_begin,
            ),
        )

    def _attempt(self, cell: Cell, result: Result) -> Attempt:
        """Overdue is a run that the engine ended at the cell's deadline."""
        reason, is_overdue = "", False
        if result.code not in (errors.EXIT_PASS, errors.EXIT_INTERRUPTED):
            end = bundle.read_history(Path(result.directory)).last(RunEnd)
            ending = str(end.data.reason or "") if end and end.data.outcome != "finished" else ""
            is_overdue = "(liveness.wall_s)" in ending and self._trial(cell)[1].liveness.wall_s >= cell.deadline_s
            bad = next((verdict for verdict in result.verdicts if verdict.outcome in ("fail", "unknown")), None)
            reason = ending or (f"{bad.check}: {bad.text}" if bad else "")
        return Attempt(run=result.run, exit=result.code, reason=reason, is_overdue=is_overdue)

    def _heal(self) -> None:
        """Close the run that is open on the bed. An error is one of the next trial, or of ``restore``."""
        from ...app import heal

        with contextlib.suppress(errors.CcbedError, OSError):
            heal.heal(self._silent, self._bed)

    @cached_property
    def _silent(self) -> Session:
        """The session without the output of verbs that a night calls."""
        return dataclasses.replace(self.session, terminal=self.session.terminal.silent())


def is_probe(trial: Trial) -> bool:
    """Return whether the trial measures the hardware of every node, or the links between all of them."""
    return trial.workload == sweeps.PROBING or (
        trial.workload == sweeps.LINKING and bool(trial.params.get("fresh_probe"))
    )


def _recovers_with_spare(trial: Trial) -> bool:
    return bool(trial.faults) and bool({"auto", "spare"} & set(trial.recovery.policy))


def _keeper(host: str = "") -> str:
    return f"(host agent of {host})" if host else "(host agent)"


def _state(node: NodeStatus) -> str:
    return f"{node.state} ({node.reason})" if node.reason else node.state


class _Deadline:
    """Interrupt this process, as Ctrl-C does, after a time. ``has_passed``: whether it did."""

    def __init__(self, limit_s: float) -> None:
        self.has_passed = False
        self._timer = threading.Timer(limit_s, self._interrupt)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        """Ignore a signal that the timer sends now: the previous handler never receives it."""
        try:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._timer.cancel()
            self._timer.join()
        finally:
            signal.signal(signal.SIGTERM, self._previous)

    def _interrupt(self) -> None:
        self.has_passed = True
        os.kill(os.getpid(), signal.SIGTERM)
