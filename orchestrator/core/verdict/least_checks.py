"""The least checks that judge a run, whatever its bundle lists: by the format and the version of ccbed that wrote it.

**Rows are only appended.** A checker that is deleted keeps its name here, and is unknown from then on. A bundle whose format and version
have no row is judged by all rows together, and at most unknown, so that no other number in it chooses weaker rules. If the bed's
keepers signed it, version and plan are as they were written, and its plan judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ... import views
from ...model import codec
from ...model.frozen import dataclass, field, replace
from ...model.plan import PlannedCheck
from ...model.run import Run
from ...model.trial import Trial

_TRAINING = (
    "no-step-lost", "same-resume-step", "resumed-newest", "replay-equal", "no-hang", "bit-exact", "baseline-clean",
    "spare-warm", "traffic-as-predicted",
)  # fmt: skip
_COLLECTIVE = ("results-exact", "times-possible", "no-step-lost", "no-hang")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The checks of every run, those of a workload, and those of a workload with planned faults. ``twin``: what needs a reference run."""

    always: tuple[str, ...]
    workloads: Mapping[str, tuple[str, ...]]
    faults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    twin: tuple[str, ...] = ()


ROWS: Mapping[tuple[int, str], Row] = {
    (2, "0.1.0"): Row(
        always=(
            "bundle-complete", "evidence-agrees", "fault-verified", "finished", "history-replays", "membership", "no-orphans",
            "planned-faults-only",
        ),
        workloads={
            "collective": _COLLECTIVE,
            "emulate": (*_COLLECTIVE, "gaps-kept"),
            "infer-dp": (
                "no-step-lost", "weights-received", "replicas-identical", "no-hang", "equals-reference", "traffic-as-predicted",
                "spare-warm",
            ),
            "moe-a2a": _TRAINING,
            "node-probe": ("no-step-lost", "no-hang", "hardware-probed", "same-bits"),
            "script": ("no-hang",),
            "train-ddp": (*_TRAINING, "replicas-identical"),
            "train-dp": (*_TRAINING, "replicas-identical"),
            "train-fsdp": _TRAINING,
            "train-pp": (*_TRAINING, "equals-reference"),
            "train-tp": (*_TRAINING, "equals-reference"),
        },
        faults={
            "script": (
                "resumed-from", "resumed-newest", "resume-complete", "no-step-lost", "replay-equal", "replicas-identical",
                "bit-exact",
            ),
        },
        twin=("baseline-clean", "bit-exact"),
    ),
}  # fmt: skip


def missing(run: Run, checks: Iterable[PlannedCheck]) -> Iterator[tuple[PlannedCheck, str]]:
    """(the check as it must judge, what the plan says instead) for every check that the plan lacks or weakens."""
    listed = {check.name: check for check in checks}
    own = {spec.name: spec.params for spec in run.trial.checks}
    if run.is_signed and writer(run) not in ROWS:
        return
    rows = [ROWS[writer(run)]] if writer(run) in ROWS else list(ROWS.values())
    comparing = {name for row in rows for name in row.twin}
    for name in dict.fromkeys((*own, *(name for row in rows for name in _of_row(row, run.trial)), *listed)):
        check = listed.get(name, PlannedCheck(name=name))
        may_skip = name in comparing and name not in own and run.twin is None
        right = replace(check, params=own.get(name, {}), skipped=check.skipped if may_skip else "")
        if name not in listed:
            yield right, f"plan.json lists no {name}, which its trial implies"
        elif check.params != right.params:
            yield right, f"plan.json gives {name} {dict(check.params)}, where its trial implies {dict(right.params)}"
        elif check.skipped != right.skipped:
            yield right, f"plan.json skips {name}, which its trial implies"


def _of_row(row: Row, trial: Trial) -> tuple[str, ...]:
    faults = row.faults.get(trial.workload, ()) if trial.faults else ()
    return (*row.always, *row.workloads.get(trial.workload, ()), *faults)


def writer(run: Run) -> tuple[int, str]:
    """The format of the bundle of a run, and the version of ccbed that wrote it."""
    return run.format, str(views.mapping(run.extras.get("bundle.json")).get("ccbed"))


def findings(run: Run) -> tuple[str, ...]:
    """Return what the plan of a run says in place of the checks that its trial implies. Raises TypeError or ValueError for another list."""
    items = views.mapping(run.extras.get("plan.json")).get("checks")
    return tuple(text for _, text in missing(run, codec.build(tuple[PlannedCheck, ...], items)))


def doubt(run: Run) -> str:
    """Return why a bundle can be unknown at most; empty where its format and version have a row."""
    number, version = writer(run)
    if (number, version) in ROWS or run.is_signed:
        return ""
    return f"which checks format {number} of ccbed {version} implies is not known; ccbed check --bed-key FILE judges as planned"
