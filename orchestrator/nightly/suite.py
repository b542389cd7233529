"""The nouns of a suite: its cells, what was planned for a night, and what became of each repeat. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..model.frozen import dataclass, field

#: Of a repeat. ``failed``, ``unknown``: by the run's verdicts. ``error``: no run, or one that could not be judged.
#: ``unfinished``: over its deadline, or the orchestrator died. ``skipped``: a requirement is missing, or the budget is spent.
State = Literal["passed", "failed", "unknown", "error", "unfinished", "skipped"]
#: Of a second measurement that needs all nodes of its cell, such as that of a collective.
ALL = "all"
#: The least finding that fails a night.
FailOn = Literal["fail", "warn"]

FORMAT = 1
#: Files of a night's directory. A directory with NIGHT is a night. The bundles of its runs are in RUNS. SPARES: see night_files.
NIGHT, JOURNAL, FINDINGS, RUNS, SPARES = "night.json", "night.jsonl", "findings.json", "runs", "spares.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRule:
    """The demands of a suite on a metric. ``floor`` and ``minimum_absolute`` in its unit; ``xfail``: the ticket of a known defect, of
    ``xfail_nodes`` if it names nodes.
    """

    metric: str
    floor: float | None = None
    minimum_absolute: float = 0.0
    xfail: str = ""
    xfail_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One trial of a suite with one choice of its matrix.

    ``name``: unique in its suite, such as ``gemm[dtype=float32]``. ``overrides``: dotted path in the trial's document -> value.
    ``precision``: relative width at which the repeats stop, None: all ``repeats`` run. ``deadline_s``: of each repeat.
    """

    name: str
    trial: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    repeats: int = 1
    precision: float | None = None
    priority: int = 0
    deadline_s: float = 600.0
    needs: tuple[str, ...] = ()
    rules: tuple[MetricRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite as its file says. ``text``: the file. ``budget_s``: None without a limit."""

    name: str
    cells: tuple[Cell, ...]
    seed: int = 0
    budget_s: float | None = None
    text: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """``night.json``: what was planned, written before the first run. ``order``: names of cells, as shuffled and selected.

    ``number``: of the recorded nights of this bed in the order of recording, from 1; 0 for a casual night. ``started``: ISO 8601,
    UTC, by the clock of the controller. ``hosts``: node -> host, of a Slurm job the node of the cluster; ``spares``: spare -> host.
    ``quarantined``: node -> why it was in quarantine when the night began; ``includes_quarantined``: such nodes get ranks all the
    same. ``drained``: node or spare on a host that was drained then -> why it takes no part; it is in neither ``hosts`` nor ``spares``.
    ``probe_spares_s``: about how long spares are probed before the first trial that may need one, 0: not at all. ``fail_on``: whether
    warnings fail the night.
    """

    name: str
    suite: Suite
    bed: str
    provider: str
    hosts: Mapping[str, str]
    number: int
    started: str
    order: tuple[str, ...]
    command: str
    ccbed: str
    format: int = FORMAT
    spares: Mapping[str, str] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    includes_quarantined: bool = False
    drained: Mapping[str, str] = field(default_factory=dict)
    probe_spares_s: float = 0.0
    fail_on: FailOn = "fail"

    @property
    def recorded(self) -> bool:
        return self.number > 0

    @property
    def all_hosts(self) -> Mapping[str, str]:
        """Return the hosts of nodes and spares: a spare may take the slot of a node."""
        return {**self.spares, **self.hosts}

    def host_of(self, node: str) -> str:
        """Empty where it is not known. ``n1@h1``: a node that a new Slurm job moved to h1 during the night."""
        return self.all_hosts.get(node) or node.partition("@")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The outcome of a repeat of a cell: a line of ``night.jsonl``. ``run``: the name of its bundle in RUNS, empty without one.

    ``reason``: one sentence where it did not pass. ``repeat``: from 0, the pass of the night. ``exit``: the code that `ccbed run`
    would have had. ``again``: of a second measurement, which is compared with the passes of the night and is none of them: the suspect
    node, or both nodes of a link (n0,n1), which run alone; ALL: the whole cell; else empty.
    """

    cell: str
    repeat: int
    state: State
    run: str = ""
    exit: int | None = None
    duration_s: float = 0.0
    reason: str = ""
    again: str = ""
