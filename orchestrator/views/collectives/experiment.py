"""What a collective run has set out to measure: its cases, its links, and where its ranks are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...model.event import Event, History
from ...model.events import CaseFacts, CollectiveAuto, CollectivePlan, CollectiveWrong, LinkFit, LinkPair
from ...model.run import Run
from ..clock import listing, mapping, number, whole
from ..gangs import gangs

#: Operations whose size is the total over all ranks, and whose bus bandwidth leaves out the share that stays (p - 1)/p.
_TOTAL = ("all-gather", "reduce-scatter", "all-to-all", "gather", "scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One (operation, algorithm, size, type, operator, groups). ``bytes``: the size S that bandwidths are computed from.

    ``steps`` are its trials, every ``stride``-th one from ``first_step`` on: those between are of algorithms that took turns
    with it. ``cost``: (rounds, volume) of the model, or None. ``port_bytes``, ``uplink_bytes``: payload that the schedule sends
    through the busiest link of a node and the busiest uplink, in one direction; 0: not known.
    """

    number: int
    operation: str
    algorithm: str
    bytes: int
    first_step: int
    iterations: int
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
    asked: str = ""
    shares: tuple[float, ...] = ()
    port_bytes: int = 0
    uplink_bytes: int = 0

    @property
    def steps(self) -> range:
        return range(self.first_step, self.first_step + self.iterations * self.stride, self.stride)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({rank for group in self.groups for rank in group}))

    @property
    def world(self) -> int:
        """Ranks of a group; of the largest where they differ."""
        return max((len(group) for group in self.groups), default=0)

    @property
    def kind(self) -> tuple[object, ...]:
        """What cases must share to be compared size by size."""
        about = self.operation, self.dtype, self.operator, self.groups, self.root
        return *about, self.asynchronous, self.gap_ms, self.shares

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes two cases of different runs the same; ``auto`` is what it chose."""
        return (*self.kind, self.bytes, self.algorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What the probe found between two ranks. ``samples``: (bytes, median one-way seconds, how many).

    ``spread``: of half of the repetitions, in units of their median; ``off``: how far a quarter of the sizes are off the
    line, as a share of their time; ``sure``: no, where the line tells little of the pair.
    """

    a: int
    b: int
    alpha_s: float
    beta: float
    r2: float | None = None
    samples: tuple[tuple[int, float, int], ...] = ()
    spread: float | None = None
    off: float | None = None
    sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """``alpha_s`` and ``beta`` (seconds, seconds per byte) as models use them; ``rate``: the line's, bits/s per direction.

    ``alpha_s``, ``beta`` and ``worst`` leave out pairs that are unsure, unless all are.
    """

    alpha_s: float | None = None
    beta: float | None = None
    worst: tuple[int, int, float] | None = None
    pairs: tuple[Pair, ...] = ()
    rate: float | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unsure(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if not pair.sure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """What ``auto`` chose for a case, and why."""

    case: int
    chosen: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The run's plan. ``nodes``: rank -> node; ``hosts``: rank -> host;
    ``clocks``: rank -> (seconds to add to its clock, how uncertain they are).

    ``verify``: whether results were looked at. ``bandwidth``: the time that algorithm bandwidth is computed from: the ``mean``
    time from first start to last end, or, in older bundles, the ``median`` of the slowest rank.
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

    def node(self, rank: int) -> str:
        """The node of a rank; with the rank where a node has several."""
        name = self.nodes.get(rank)
        if name is None:
            return f"rank {rank}"
        shared = sum(1 for other in self.nodes.values() if other == name) > 1
        return f"{name} (rank {rank})" if shared else name


def factor(operation: str, world: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
    if world < 1:
        return 1.0
    if operation == "all-reduce":
        return 2 * (world - 1) / world
    return (world - 1) / world if operation in _TOTAL else 1.0


def setting(run: Run) -> Setting | None:
    """None where the run measured no collectives."""
    event = run.history.last(CollectivePlan)
    if event is None:
        return None
    plan = event.data
    nodes = _nodes(run)
    return Setting(
        cases=tuple(map(_case, plan.cases or ())),
        over=plan.over or "max_rank",
        warmup=plan.warmup or 0,
        world=plan.world or len(nodes),
        nodes=nodes,
        hosts={rank: _host(run, node) for rank, node in nodes.items()},
        clocks=_clocks(run, nodes),
        link=_link(run),
        verify=plan.verify is not False,
        bandwidth=plan.bandwidth or "median",
        autos=tuple(_autos(run.history)),
    )


def wrongs(history: History) -> list[Event[CollectiveWrong]]:
    """The wrong results that were found; where a gang was started again, those of the last one that found any."""
    found = list(history.of(CollectiveWrong))
    last = max((event.epoch or 0 for event in found), default=0)
    return [event for event in found if (event.epoch or 0) == last]


def wrong(history: History) -> Mapping[int, int]:
    """Case -> how many wrong results were found."""
    found: dict[int, int] = {}
    for event in wrongs(history):
        case = event.data.case
        if case is not None:
            found[case] = found.get(case, 0) + 1
    return found


def _case(facts: CaseFacts) -> Case:
    cost = facts.cost or {}
    rounds, volume = number(cost.get("rounds")), number(cost.get("volume"))
    return Case(
        number=facts.case or 0,
        operation=facts.operation or "",
        algorithm=facts.algorithm or "",
        bytes=facts.bytes or 0,
        dtype=facts.dtype or "",
        operator=facts.operator or "",
        groups=facts.groups or (),
        first_step=facts.first_step or 1,
        iterations=facts.iterations or 0,
        stride=facts.stride or 1,
        cost=(rounds, volume) if rounds is not None and volume is not None else None,
        asynchronous=bool(facts.asynchronous),
        gap_ms=facts.gap_ms or 0.0,
        asked=facts.asked or "",
        shares=facts.shares or (),
        per_rank=facts.per_rank or 0,
        total=facts.total or 0,
        count=facts.count or 0,
        root=facts.root or 0,
        port_bytes=facts.port_bytes or 0,
        uplink_bytes=facts.uplink_bytes or 0,
    )


def _autos(history: History) -> list[Auto]:
    """The last word on each case, in order."""
    found: dict[int, Auto] = {}
    for event in history.of(CollectiveAuto):
        case = event.data.case
        if case is not None:
            found[case] = Auto(case=case, chosen=event.data.chosen or "", why=str(event.data.why or ""))
    return [found[case] for case in sorted(found)]


def _link(run: Run) -> Link:
    fit = run.history.last(LinkFit)
    line = fit.data if fit else LinkFit()
    spec = mapping(_document(run, "plan.json").get("link"))
    rate = number(spec.get("rate"))
    return Link(
        alpha_s=number(line.alpha_s),
        beta=number(line.beta_s_per_byte),
        worst=_worst(line.worst),
        pairs=tuple(_pairs(run.history)),
        rate=rate or None,
        spec=spec,
    )


def _worst(told: Any) -> tuple[int, int, float] | None:
    """(rank, rank, seconds per byte); None where it is something else."""
    worst = listing(told)
    if len(worst) != 3:
        return None
    a, b, beta = whole(worst[0]), whole(worst[1]), number(worst[2])
    return (a, b, beta) if a is not None and b is not None and beta is not None else None


def _sample(told: Any) -> tuple[int, float, int] | None:
    """(bytes, seconds, how many); None where it is something else."""
    one = listing(told)
    if len(one) != 3:
        return None
    size, seconds, count = whole(one[0]), number(one[1]), whole(one[2])
    return (size, seconds, count) if size is not None and seconds is not None and count is not None else None


def _pairs(history: History) -> list[Pair]:
    """The last word on each pair, in order."""
    found: dict[tuple[int, int], Pair] = {}
    for event in history.of(LinkPair):
        pair = event.data
        a, b, alpha, beta = pair.rank, pair.peer, pair.alpha_s, pair.beta_s_per_byte
        if a is None or b is None or alpha is None or beta is None:
            continue
        samples = tuple(one for one in map(_sample, pair.samples or ()) if one is not None)
        found[a, b] = Pair(
            a=a, b=b, alpha_s=alpha, beta=beta, r2=pair.r2, samples=samples,
            spread=number(pair.spread), off=number(pair.off), sure=pair.sure is not False,
        )  # fmt: skip
    return [found[key] for key in sorted(found)]


def _nodes(run: Run) -> dict[int, str]:
    """By the last gang that joined; else the first slots of the plan."""
    known = gangs(run.history)
    if known and known[-1].ranks:
        return dict(known[-1].ranks)
    slots = tuple(map(str, listing(_document(run, "plan.json").get("slots"))))
    each = max(run.trial.world.ranks_per_node, 1)
    return {rank: slots[rank // each] for rank in range(len(slots) * each)}


def _clocks(run: Run, nodes: Mapping[int, str]) -> dict[int, tuple[float, float]]:
    """Rank -> what to add to its clock for the orchestrator's; nothing where nobody measured it, or it is the same."""
    plan = _document(run, "plan.json")
    measured = {str(one.get("host")): one for one in map(mapping, mapping(plan.get("clocks")).values())}
    found = {}
    for rank, node in nodes.items():
        clock = measured.get(_host(run, node))
        if clock is not None:
            found[rank] = (number(clock.get("offset_s")) or 0.0, number(clock.get("uncertainty_s")) or 0.0)
    return found


def _host(run: Run, node: str) -> str:
    """Empty where the plan does not say."""
    return str(mapping(mapping(_document(run, "plan.json").get("nodes")).get(node)).get("host") or "")


def _document(run: Run, name: str) -> Mapping[str, Any]:
    return mapping(run.extras.get(name))
