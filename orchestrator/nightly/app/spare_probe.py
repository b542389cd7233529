"""Probe the spares of a bed before they may join a run: those that are too slow are left out."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...app import audited, beds, trials
from ...app import run as run_one
from ...app.requests import RunRequest
from ...app.session import Session
from ...core.spec import parse_trial, slots, trial_draft
from ...model.bed import BedSpec
from ...model.errors import EXIT_FINDING, EXIT_INTERRUPTED, EXIT_UNKNOWN, CcbedError, Interrupted
from ...model.frozen import dataclass, replace
from ...model.launch import Result
from ...model.plan import Placement
from ...store import bundle

if TYPE_CHECKING:
    from ..baselines import Baseline
    from ..culprits.spares import Fitness

TRIAL = "spare-probe"
#: Seconds of one repeat of all figures, measured on two cores, and the least repeats whose median means something.
REPEAT_S, LEAST_REPEATS = 2.5, 3


@dataclass(frozen=True, kw_only=True)
class SpareProbe:
    """``limit_s``: about how long it takes; ``runs``: the directory of its bundle; ``reason``: why it is made."""

    session: Session
    bed: BedSpec
    limit_s: float
    runs: Path
    baselines: tuple[Baseline, ...]
    command: str
    reason: str

    def extend(self, placement: Placement) -> Placement:
        """The placement without the spares that are too slow. All warm ones are probed at the same time, beside nothing else.

        Raises Interrupted. Any other error is a note: the spare concerned then joins, and is not known to be healthy.
        """
        names = self.find_spares(placement)
        if not names:
            return replace(placement, notes=("no spare was probed: none is ready and may be used",))
        probed = self._probe(names)
        unfit = {
            item.fitness.node: f"does not join: {item.fitness.text} ({item.run})"
            for item in probed
            if not item.fitness.is_fit
        }
        notes = tuple(
            f"{item.fitness.text} ({item.run})" if item.directory else item.fitness.text
            for item in probed
            if item.fitness.is_fit
        )
        decisive = [item.directory for item in probed if item.directory]
        decisive = [item.directory for item in probed if not item.fitness.is_fit] or decisive
        return replace(placement, unfit=unfit, spare_probe=decisive[0] if decisive else "", notes=notes)

    def find_spares(self, placement: Placement) -> list[str]:
        status = self.session.provider(self.bed).observe(self.bed, memory=False)
        candidates = [
            node.name for node in self.bed.nodes if node.role == "spare" and node.name not in placement.excluded
        ]
        return [name for name in candidates if status.node(name).state == "warm"]

    def _probe(self, names: Sequence[str]) -> list[_Probed]:
        """Return what the probe says of each spare.
        A spare that is too slow is probed a second time, alone, and that decides: what disturbed
        it once does not leave it out. If a common run fails or does not end, each spare is probed alone: whose failure it is is not
        known. Raises Interrupted."""
        from ..culprits import spares

        try:
            result = self._launch(names)
            judged = None if result.code == EXIT_FINDING and len(names) > 1 else self._judge(result, names)
        except Interrupted:
            raise
        except CcbedError as error:
            if len(names) == 1:
                text = f"{names[0]} not probed, and may join: {'; '.join(error.problems)}"
                return [_Probed(directory="", fitness=spares.Fitness(node=names[0], is_fit=True, text=text))]
            judged = None
        if judged is None:
            return [probed for name in names for probed in self._probe([name])]
        return [
            _Probed(directory=result.directory, fitness=fitness) if fitness.is_fit else self._confirm(result, fitness)
            for fitness in judged
        ]

    def _confirm(self, first: Result, fitness: Fitness) -> _Probed:
        """The second probe of a spare that the first one found too slow. If it does not end, the first one stands. Raises Interrupted."""
        try:
            second = self._launch([fitness.node])
            return _Probed(directory=second.directory, fitness=self._judge(second, [fitness.node], first)[0])
        except Interrupted:
            raise
        except CcbedError as error:
            text = f"{fitness.text}; its second probe did not end: {'; '.join(error.problems)}"
            return _Probed(directory=first.directory, fitness=replace(fitness, text=text))

    def _judge(self, result: Result, names: Sequence[str], first: Result | None = None) -> list[Fitness]:
        """``first``: the earlier probe, whose other spares are the peers. Raises TornBundleError."""
        from .. import bundle_records
        from ..culprits import spares

        if result.code != EXIT_FINDING:
            record = bundle_records.read(Path(result.directory))
            if first and first.code != EXIT_FINDING:
                record = spares.replace_figures(bundle_records.read(Path(first.directory)), names, record)
            return list(spares.judge(record, names, self.baselines))
        bad = next((verdict for verdict in result.verdicts if verdict.outcome == "fail"), None)
        text = f"{bad.check}: {bad.text}" if bad else "its probe failed"
        return [spares.Fitness(node=name, is_fit=False, text=text) for name in names]

    def _launch(self, names: Sequence[str]) -> Result:
        """Raises CcbedError where the probe cannot run, or did not end."""
        source = trials.open_source(TRIAL, (), self.session.catalogue)
        result = audited.launch(
            self.session,
            self.session.request(
                parse_trial.build(source.document, self.session.catalogue, self._overrides(names), None),
                self.bed,
                self.runs,
                command=self.command,
                reason=f"probe of {', '.join(names)} {self.reason}",
                twin=False,
                inputs=source.inputs,
                placement=Placement(members=tuple(names)),
            ),
        )
        if result.code == EXIT_INTERRUPTED:
            self._close_run()
            raise Interrupted("interrupted in the probe of the spares", hint=f"run it again: {self.command}")
        if result.code not in (0, EXIT_FINDING, EXIT_UNKNOWN):
            bad = next((verdict.text for verdict in result.verdicts if verdict.outcome != "pass"), "it is broken")
            raise CcbedError(f"the probe did not end: {bad}")
        return result

    def _overrides(self, names: Sequence[str]) -> list[trial_draft.Override]:
        """Spares of one host are probed in turn, so that each has its share of the time. A spare that hangs is ended."""
        most = max(Counter(self.bed.node(name).host for name in names).values())
        repeats = max(LEAST_REPEATS, round(self.limit_s / REPEAT_S / most))
        wall_s = 60 + 6 * max(self.limit_s, LEAST_REPEATS * REPEAT_S * most)
        changes = {("world", "nodes"): len(names), ("params", "repeats"): repeats, ("liveness", "wall_s"): wall_s}
        return [
            trial_draft.Override(path=path, content=value, source="--probe-spares") for path, value in changes.items()
        ]

    def _close_run(self) -> None:
        """Close the probe's run, which an interruption leaves open. What fails here is an error of the next run."""
        from ...app import heal

        silent = replace(self.session, terminal=self.session.terminal.silent())
        with suppress(CcbedError, OSError):
            heal.heal(silent, self.bed)


@dataclass(frozen=True, kw_only=True)
class _Probed:
    """The result of a spare's probe. ``directory``: of the run that decided; empty if none did."""

    directory: str
    fitness: Fitness

    @property
    def run(self) -> str:
        return Path(self.directory).name


def place(
    session: Session, request: RunRequest, checked: run_one.CheckedTrial, placement: Placement, limit_s: float
) -> Placement:
    """Probe the spares on the bed as it is brought up. Raises InfrastructureError if too few are fit."""
    if request.resume:
        return recorded(request.resume) or placement
    from .. import baselines

    trial, bed = checked.trial, checked.bed
    if request.bed.inventory:
        run_one.bring_up(session, bed)
    probe = SpareProbe(
        session=session, bed=beds.usable(bed), limit_s=limit_s, runs=request.output.runs_dir.resolve(),
        command=shlex.join(["ccbed", *session.argv]), baselines=baselines.read_all(request.spares.baselines), reason=f"before {trial.name}",
    )  # fmt: skip
    if not session.is_json:
        session.terminal.line(f"probe  spares {' '.join(probe.find_spares(placement)) or 'none'}, about {limit_s:g} s")
    placement = probe.extend(placement)
    slots.assign(trial, bed, placement)
    return placement


def recorded(directory: Path) -> Placement | None:
    """The placement of repeated runs that are resumed: that of their last run; None if none was planned."""
    from ..suite import RUNS

    for run in sorted((directory / RUNS).glob(f"*/{bundle.PLAN}"), reverse=True):
        placement = bundle.load_plan(run.parent).placement
        probe = str((run.parent / placement.spare_probe).resolve()) if placement.spare_probe else ""
        return replace(placement, spare_probe=probe)
    return None
