"""The plan of a measurement of collectives: its cases, its links, and the nodes of its ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

from ...model import events, schedule
from ...model.event import Event, History
from ...model.events import CaseFacts, CollectiveWrong
from ...model.frozen import dataclass, field
from ...model.run import Run
from ...views.gangs import gangs
from ...views.json_values import listing, mapping, number, whole
from ...views.progress import omitted_steps, relative_width
from .directions import Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One (operation, algorithm, size, type, operator, groups). ``bytes``: the size S that bandwidths are computed from.

    ``steps`` are its iterations, every ``stride``-th step from ``first_step`` on; algorithms that take turns with it have the
    steps between. ``requested``: the algorithm as the user gave it. ``cost``: (rounds, volume) of the model, or None.
    ``port_bytes``, ``uplink_bytes``: payload that the schedule sends through the busiest link of a node and the busiest
    uplink, in one direction; 0: not known.
    """

    number: int
    operation: str
    algorithm: str
    bytes: int
    first_step: int
    iterations: int
    planned: int = 0
    stride: int = 1
    groups: tuple[tuple[int, ...], ...]
    dtype: str = "float32"
    operator: str = "sum"
    per_rank: int = 0
    total: int = 0
    count: int = 0
    root: int = 0
    cost: tuple[float, float] | None = None
    asynchronous: bool = False
    gap_ms: float = 0.0
    gaps_ms: tuple[float, ...] = ()
    gap_from: str = "end"
    after: tuple[tuple[int, float], ...] = ()
    requested: str = ""
    shares: tuple[float, ...] = ()
    port_bytes: int = 0
    uplink_bytes: int = 0

    @property
    def steps(self) -> range:
        return range(self.first_step, self.first_step + self.iterations * self.stride, self.stride)

    @property
    def is_paced(self) -> bool:
        return bool(self.gap_ms or any(self.gaps_ms) or self.after)

    @property
    def mean_gap_ms(self) -> float:
        return sum(self.gaps_ms) / len(self.gaps_ms) if self.gaps_ms else self.gap_ms

    def gap_s(self, index: int) -> float:
        """Seconds before the iteration ``index``, from 0."""
        return (self.gaps_ms[index] if index < len(self.gaps_ms) else self.gap_ms) / 1e3

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({rank for group in self.groups for rank in group}))

    @property
    def world(self) -> int:
        """Ranks of a group; of the largest where they differ."""
        return max((len(group) for group in self.groups), default=0)

    @property
    def kind(self) -> tuple[object, ...]:
        """Cases with an equal kind are compared size by size."""
        about = self.operation, self.dtype, self.operator, self.groups, self.root
        return *about, self.asynchronous, self.gap_ms, self.gaps_ms, self.gap_from, self.after, self.shares

    @property
    def identity(self) -> tuple[object, ...]:
        """Cases of two runs with an equal identity are compared; for ``auto`` it has the chosen algorithm."""
        return (*self.kind, self.bytes, self.algorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """``alpha_s`` and ``beta`` (seconds, seconds per byte) as models use them; ``rate``: the line's, bits/s per direction.

    ``reused``: the earlier run that measured them and the time; ``changed``: why such a measurement was not reused.
    """

    alpha_s: float | None = None
    beta: float | None = None
    directions: tuple[Direction, ...] = ()
    reused: str = ""
    changed: str = ""
    rate: float | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """The choice of ``auto`` for a case, with its reason."""

    case: int
    chosen: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The run's plan. ``nodes``: rank -> node; ``hosts``: rank -> host;
    ``clocks``: rank -> (seconds to add to its clock, uncertainty).

    ``verify``: whether results were verified. ``bandwidth``: the time that algorithm bandwidth is computed from: the ``mean``
    time from first start to last end, or, in older bundles, the ``median`` of the slowest rank. ``unverified``: iterations of
    sequences whose gaps leave no time for verification. ``widths``: case -> its interval of 95 % as a share of its median, where a
    ``precision`` was to be reached in ``precision_s`` seconds a size.
    """

    cases: tuple[Case, ...]
    over: str = "max_rank"
    warmup: int = 0
    world: int = 0
    nodes: Mapping[int, str] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    clocks: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    link: Link = Link()
    verify: bool = True
    bandwidth: str = "median"
    autos: tuple[Auto, ...] = ()
    unverified: int = 0
    precision: float | None = None
    precision_s: float = 0.0
    widths: Mapping[int, float] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        return max((case.steps[-1] for case in self.cases if case.iterations), default=0)

    def node(self, rank: int) -> str:
        """The node of a rank; with the rank where a node has several."""
        name = self.nodes.get(rank)
        if name is None:
            return f"rank {rank}"
        shared = sum(1 for other in self.nodes.values() if other == name) > 1
        return f"{name} (rank {rank})" if shared else name


#: Fields of a case that the plan has under the same name.
_SAME = (
    "operation", "algorithm", "dtype", "operator", "asynchronous", "gap_ms", "gaps_ms", "gap_from", "after", "shares", "bytes",
    "per_rank", "total", "count", "root", "port_bytes", "uplink_bytes",
)  # fmt: skip


def factor(operation: str, world: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
    if world < 1:
        return 1.0
    if operation == "all-reduce":
        return 2 * (world - 1) / world
    return (world - 1) / world if operation in schedule.IN_BLOCKS else 1.0  # a rank keeps its own block


def setting(run: Run) -> Setting | None:
    """None where the run measured no collectives."""
    reported = run.history.last(events.CollectivePlan)
    if reported is None:
        return None
    plan, nodes, omitted = reported.data, _nodes(run), omitted_steps(run.history)
    return Setting(
        cases=tuple(_case(case, omitted) for case in plan.cases or ()),
        over=plan.over or "max_rank",
        warmup=plan.warmup or 0,
        world=plan.world or len(nodes),
        nodes=nodes,
        hosts={rank: _host(run, node) for rank, node in nodes.items()},
        clocks=_clocks(run, nodes),
        link=_link(run, nodes),
        verify=plan.verify is not False,
        bandwidth=plan.bandwidth or "median",
        autos=tuple(_autos(run.history)),
        precision=plan.precision,
        precision_s=plan.precision_s or 0.0,
        widths={
            event.data.case or 0: relative_width(event.data) for event in run.history.of(events.CollectiveMeasured)
        },
        unverified=sum(
            (event.data.iterations or 0) - len(event.data.verified or ())
            for event in run.history.of(events.CollectiveSequence)
            if event.epoch == reported.epoch and event.data.rank == plan.rank
        ),
    )


def wrong_results(history: History) -> list[Event[CollectiveWrong]]:
    """The wrong results; where a gang was started again, those of the last attempt that had any."""
    wrong = history.of(events.CollectiveWrong)
    last = max((event.epoch or 0 for event in wrong), default=0)
    return [event for event in wrong if (event.epoch or 0) == last]


def wrong_by_case(history: History) -> Mapping[int, int]:
    """Case -> its number of wrong results."""
    return Counter(event.data.case for event in wrong_results(history) if event.data.case is not None)


def _case(case: CaseFacts, omitted: Set[int]) -> Case:
    """``omitted``: steps that a precision made unnecessary."""
    cost, planned = case.cost or {}, case.iterations or 0
    first, stride = case.first_step or 1, max(1, case.stride or 1)
    steps = range(first, first + planned * stride, stride) if omitted else ()
    rounds, volume = _figure(cost.get("rounds")), _figure(cost.get("volume"))
    known = {name: getattr(case, name) for name in _SAME if getattr(case, name) is not None}
    return Case(
        **{"operation": "", "algorithm": "", "dtype": "", "operator": "", "bytes": 0, **known},
        number=case.case or 0, groups=tuple(map(tuple, case.groups or ())), first_step=first, stride=stride, planned=planned,
        iterations=planned - sum(step in omitted for step in steps), requested=case.asked or "",
        cost=(rounds, volume) if rounds is not None and volume is not None else None,
    )  # fmt: skip


def _autos(history: History) -> list[Auto]:
    """The last choice for each case, in order."""
    autos: dict[int, Auto] = {}
    for event in history.of(events.CollectiveAuto):
        choice = event.data
        if choice.case is not None:
            autos[choice.case] = Auto(case=choice.case, chosen=choice.chosen or "", why=str(choice.why or ""))
    return [autos[case] for case in sorted(autos)]


def _link(run: Run, nodes: Mapping[int, str]) -> Link:
    reported = run.history.last(events.LinkFit)
    fit = reported.data if reported else None
    spec = mapping(_document(run, "plan.json").get("link"))
    return Link(
        alpha_s=_figure(fit.alpha_s) if fit else None,
        beta=_figure(fit.beta_s_per_byte) or None if fit else None,
        directions=tuple(_directions(run.history, nodes)),
        reused=f"{fit.reused_from}, {fit.measured_at}" if fit and fit.reused_from else "",
        changed=fit.changed or "" if fit else "",
        rate=number(spec.get("rate")) or None,
        spec=spec,
    )


def _figure(reported: Any) -> float | None:
    """A finite number that is not negative; None for anything else."""
    value = number(reported)
    return value if value is not None and 0 <= value < math.inf else None


def _interval(reported: Any) -> tuple[float, float] | None:
    """(least, greatest) above 0; None for anything else."""
    ends = [number(end) for end in listing(reported)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        return None
    return (ends[0], ends[1]) if 0 < ends[0] <= ends[1] < math.inf else None


def _sample(reported: Any) -> tuple[int, float, int] | None:
    """(bytes, seconds, repetitions); None for anything else."""
    sample = listing(reported)
    if len(sample) != 3:
        return None
    size, seconds, count = whole(sample[0]), _figure(sample[1]), whole(sample[2])
    return (size, seconds, count) if size is not None and seconds is not None and count is not None else None


def _directions(history: History, nodes: Mapping[int, str]) -> list[Direction]:
    """The last report on each direction, in order. Older records have one direction of each pair, without an interval."""
    directions: dict[tuple[int, int], Direction] = {}
    for event in history.of(events.LinkPair):
        pair = event.data
        sender, receiver = pair.rank, pair.peer
        alpha, beta = _figure(pair.alpha_s), _figure(pair.beta_s_per_byte)
        if sender is None or receiver is None or alpha is None:
            continue
        directions[sender, receiver] = Direction(
            sender=sender, receiver=receiver, alpha_s=alpha, beta=beta or None,
            interval=_interval(pair.interval), reason=pair.reason or "",
            samples=tuple(sample for sample in map(_sample, pair.samples or ()) if sample is not None),
            is_internal=sender in nodes and nodes[sender] == nodes.get(receiver),
        )  # fmt: skip
    return [directions[key] for key in sorted(directions)]


def _nodes(run: Run) -> dict[int, str]:
    """Read the nodes of the ranks from the last gang that was started; else from the first slots of the plan."""
    known = gangs(run.history)
    if known and known[-1].ranks:
        return dict(known[-1].ranks)
    slots = tuple(map(str, listing(_document(run, "plan.json").get("slots"))))
    per_node = max(run.trial.world.ranks_per_node, 1)
    return {rank: slots[rank // per_node] for rank in range(len(slots) * per_node)}


def _clocks(run: Run, nodes: Mapping[int, str]) -> dict[int, tuple[float, float]]:
    """Rank -> (seconds to add to its clock, uncertainty); empty for ranks whose clock is the controller's or not measured."""
    plan = _document(run, "plan.json")
    measured = {str(clock.get("host")): clock for clock in map(mapping, mapping(plan.get("clocks")).values())}
    clocks = {}
    for rank, node in nodes.items():
        clock = measured.get(_host(run, node))
        if clock is not None:
            clocks[rank] = (number(clock.get("offset_s")) or 0.0, number(clock.get("uncertainty_s")) or 0.0)
    return clocks


def _host(run: Run, node: str) -> str:
    """Empty where the plan does not say."""
    return str(mapping(mapping(_document(run, "plan.json").get("nodes")).get(node)).get("host") or "")


def _document(run: Run, name: str) -> Mapping[str, Any]:
    return mapping(run.extras.get(name))
