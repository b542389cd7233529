"""Measures collectives on a rank: link probe, warm-up, then timed iterations after a barrier, each verified after its end.

Algorithms of one size alternate from iteration to iteration, so that disturbances of the machine affect them alike and the
iterations of one number are a pair. Collectives with gaps are replayed as a sequence instead (replay_sequence.py).
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ...model import algorithm as model
from ...model import ratio
from ...model.events import CollectiveAuto, CollectiveMeasured, CollectivePlan, LinkProbing
from ...model.schedule import Cost
from ...rank.checkpoint import tensor_digest
from ...rank.exchange import cases, operations, sizes
from ...rank.runtime import recorder, run_gaps
from . import (
    algorithm_choice,
    backend_support,
    expected_cost,
    link_fit,
    link_probe,
    measuring,
    memory_demand,
    mpi_names,
    mpi_peer,
    replay_pacing,
    replay_sequence,
    verify,
)

if TYPE_CHECKING:
    from ...rank.runtime import context

#: Bytes of the tensors whose summing or checking is timed, and how often.
COMBINED_BYTES, COMBINED_TIMES = 1 << 20, 5
#: Seconds in which auto measures algorithms for all cases together.
ALL_CHOICES_S = 15.0


def run(ctx: context.RankContext, items: Iterable[cases.Item], *, in_turn: bool = False) -> None:
    """Measure ``items`` on this rank as its Params (settings.Measuring) say.

    ``in_turn``: algorithms of one size alternate; otherwise the items run one after the other, as one sequence if they have gaps.
    """
    listed = tuple(items)
    backend_support.require(listed, ctx.gang.backend)
    needs_mpi = mpi_peer.is_needed(listed, ctx.gang.backend)
    ctx.connect()
    ctx.phase("restore")
    planned = cases.cases(listed, ctx.world, in_turn=in_turn)
    together = replay_pacing.concurrent(planned)
    spare = 2 * measuring.drain(ctx.params.drain, ctx.gang.link)
    memory_demand.require(together, ctx.rank, ctx.world, ctx.device, spare)
    peer = mpi_peer.connect(ctx) if needs_mpi else None
    meter = Meter(ctx, planned, peer)
    meter.resume()
    meter.prepare()
    meter.measure()
    if peer:
        peer.leave()
    ctx.result = {
        "steps": ctx.steps - meter.omitted,
        "loss": None,
        "digest": {},
        "metrics": {},
        "verified": meter.verified,
    }


class Meter:
    def __init__(
        self, ctx: context.RankContext, planned: tuple[cases.Case, ...], peer: mpi_peer.Peer | None = None
    ) -> None:
        self._ctx, self._cases, self._peer = ctx, planned, peer
        self._params: measuring.Measuring = ctx.params
        self._drain = measuring.drain(self._params.drain, ctx.gang.link)
        self._gaps = run_gaps.RunGaps()
        self._start = SynchronisedStart(ctx.rank, ctx.world, self._drain, ctx.device)
        self._memberships: dict[sizes.Groups, operations.Membership | None] = {}
        self._verifier = verify.Verifier(rank=ctx.rank, world=ctx.world, device=ctx.device, note=ctx.note)
        self._tiers: expected_cost.Uplinks | None = None
        self._link: link_fit.Fit | None = None
        self._combining = self._barrier_s = 0.0
        self._precision = measuring.parse(self._params.precision)
        self._over = ""
        #: The last step of the cases that an earlier attempt measured.
        self._done = 0
        #: Results that were verified, and iterations that precision made unnecessary.
        self.verified = self.omitted = 0
        ctx.steps = sum(case.item.trials for case in planned)

    def resume(self) -> None:
        """Begin behind the cases that an earlier attempt measured: with the algorithms that it chose, results and omissions."""
        progress = self._ctx.resume_progress()
        if progress:
            self._done = int(progress["step"])
            self.verified, self.omitted = int(progress["verified"]), int(progress["omitted"])
            self._cases = tuple(
                cases.chosen(case, name) if name != case.item.algorithm else case
                for case, name in zip(self._cases, progress["algorithms"], strict=True)
            )

    def _keep(self, among: tuple[cases.Case, ...]) -> None:
        """Keep that these cases are measured, unless the measurement ends with them."""
        last = max(case.last_step for case in among)
        if self._ctx.rank == 0 and last < max(case.last_step for case in self._cases):
            names = [case.item.algorithm for case in self._cases]
            self._ctx.save_progress(last, verified=self.verified, omitted=self.omitted, algorithms=names)

    def prepare(self) -> None:
        """Probe the links, create the groups, choose algorithms for auto, write the plan."""
        link = self._link = self._probe()
        gang = self._ctx.gang
        self._tiers = expected_cost.uplinks(gang.link, gang.leaves, link.beta if link else 0.0)
        self._combining = seconds_per_byte(self._ctx.device, torch.Tensor.add_)
        self._barrier_s = self._start.seconds()
        for groups in dict.fromkeys(case.groups for case in self._cases):
            self._memberships[groups] = operations.join_groups(groups, self._ctx.rank, self._ctx.world)
        self._cases = self._choose_algorithms()
        self._over = self._times_over()
        if self._ctx.rank == 0:
            self._ctx.note(self._plan())

    def measure(self) -> None:
        with self._gaps:
            for among in replay_pacing.concurrent(self._cases):
                if among[0].first_step <= self._done:
                    continue
                if replay_pacing.is_paced(among):
                    self._in_sequence(among)
                else:
                    self._in_turn(among)
                    self._keep(among)

    def _probe(self) -> link_fit.Fit | None:
        ctx, params = self._ctx, self._params
        if not params.probe:
            return None
        fabric = link_probe.fabric(ctx.gang, self._drain)
        if ctx.rank == 0 and ctx.world > 1:
            ctx.note(
                LinkProbing(
                    rank=0, directions=ctx.world * (ctx.world - 1), limit_s=params.probe_s, known=bool(ctx.gang.links)
                )
            )
        link = link_probe.probe(ctx.rank, ctx.device, fabric, limit_s=params.probe_s, known=ctx.gang.links)
        if link is None:
            return None
        link_probe.report(link, ctx.rank, ctx.note)
        return link.agreed

    def _choose_algorithms(self) -> tuple[cases.Case, ...]:
        """The cases, with an algorithm for each that has auto. Equal collectives of a sequence have the same one."""
        autos = {case.number: cases.once(case) for case in self._cases if case.item.algorithm == model.AUTO}
        limit_s = min(self._params.auto_s, ALL_CHOICES_S / max(1, len(set(autos.values()))))
        choices = {case: self._choose(case, limit_s) for case in dict.fromkeys(autos.values())}
        for number, choice in ((number, choices[case]) for number, case in autos.items() if self._ctx.rank == 0):
            self._ctx.note(
                CollectiveAuto(
                    rank=0, case=number, chosen=choice.name, seconds=choice.seconds, measured=choice.measured or None,
                    why=choice.why,
                )
            )  # fmt: skip
        return tuple(
            cases.chosen(case, choices[autos[case.number]].name) if case.number in autos else case
            for case in self._cases
        )

    def _choose(self, case: cases.Case, limit_s: float) -> algorithm_choice.Choice:
        """Choose by the model; measure those that it cannot tell apart, if that takes no longer than ``limit_s``.

        Rank 0 decides for all: ranks would differ by rounding.
        """
        among = algorithm_choice.candidates(case)
        busy_alpha = expected_cost.startup_s(case, self._barrier_s)
        choice = algorithm_choice.choose(case, among, self._link, self._tiers, self._combining, busy_alpha)
        names = [algorithm.name for algorithm in among]
        is_measured = algorithm_choice.can_measure(choice, limit_s)
        first, *rivals = self._of_rank_0(
            names.index(choice.name), *(is_measured and name in choice.rivals for name in names)
        )
        choice = replace(choice, name=names[first])
        if any(rivals):
            rival_names = [name for name, is_rival in zip(names, rivals, strict=True) if is_rival]
            choice = algorithm_choice.after_measurement(choice, self._measure_rivals(case, rival_names, limit_s))
            [first] = self._of_rank_0(names.index(choice.name))
        return replace(choice, name=names[first])

    def _measure_rivals(self, case: cases.Case, names: Sequence[str], limit_s: float) -> dict[str, list[float]]:
        ctx, member = self._ctx, self._memberships[case.groups]
        memories = operations.Memories(member.ranks, ctx.device) if member else None
        works = {
            name: self._work(cases.chosen(case, name), member, memories) if member and memories else None
            for name in names
        }
        end = time.monotonic() + limit_s

        def run_turn(rivals: Sequence[str]) -> list[float]:
            spans = [self._run_timed(works[name], 0, lambda: None) for name in rivals]
            if ctx.chunks:
                ctx.chunks.discard()
            slowest = torch.tensor([stop - start for start, stop in spans], dtype=torch.float64, device=ctx.device)
            if ctx.world > 1:
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
            return [float(seconds) for seconds in slowest.tolist()]

        return algorithm_choice.measure_in_turns(
            names, run_turn, lambda: bool(self._of_rank_0(time.monotonic() < end)[0])
        )

    def _of_rank_0(self, *values: int) -> list[int]:
        """The values that rank 0 has. A collective of all ranks."""
        chosen = torch.tensor(values, dtype=torch.int64, device=self._ctx.device)
        if self._ctx.world > 1:
            dist.broadcast(chosen, 0)
        return [int(value) for value in chosen.tolist()]

    def _plan(self) -> CollectivePlan:
        facts, costs = [], []
        for case in self._cases:
            algorithm = algorithm_choice.find(case.item.algorithm)
            cost = expected_cost.cost(case, algorithm, self._tiers, self._link, self._combining) if algorithm else None
            costs.append(cost)
            facts.append(case.facts(cost, **(self._traffic(case, algorithm) if algorithm else {})))
        params = self._params
        expected = self._expected(costs)
        return CollectivePlan(
            rank=self._ctx.rank, cases=tuple(facts), over=params.over, warmup=params.warmup, world=self._ctx.world,
            drain=self._drain, verify=params.verify, bandwidth="mean", precision=self._precision or None,
            least=measuring.LEAST if self._precision else None,
            precision_s=self._params.precision_s if self._precision else None,
            expected_s=expected.seconds, uncosted=expected.uncosted,
            cases_s=tuple(float(f"{seconds:.3g}") for seconds in expected.by_case) or None,
        )  # fmt: skip

    def _expected(self, costs: Sequence[Cost | None]) -> expected_cost.Duration:
        checking = seconds_per_byte(self._ctx.device, _check) if self._params.verify else 0.0
        drain_s = self._drain * self._link.beta if self._link else 0.0
        return expected_cost.duration(
            self._cases, costs, self._link,
            expected_cost.Overhead(warmup=self._params.warmup, barrier_s=self._barrier_s, drain_s=drain_s, check_s_per_byte=checking),
        )  # fmt: skip

    def _traffic(self, case: cases.Case, algorithm: model.Chosen) -> dict[str, int]:
        """Bytes on the busiest link of a node and, where there are several switches, on the busiest uplink."""
        gang, world = self._ctx.gang, self._ctx.world
        nodes = [rank * gang.nodes // world for rank in range(world)]
        traffic = {"port_bytes": expected_cost.port_bytes(case, algorithm, nodes)}
        if len(set(gang.leaves)) > 1:
            traffic["uplink_bytes"] = expected_cost.port_bytes(case, algorithm, gang.leaves)
        return traffic

    def _in_turn(self, among: tuple[cases.Case, ...]) -> None:
        """Measure cases that differ only in the algorithm: all are warmed up before the first timed iteration."""
        ctx, member = self._ctx, self._memberships[among[0].groups]
        memories = operations.Memories(member.ranks, ctx.device) if member else None
        works = [self._work(case, member, memories) if member and memories else None for case in among]
        for _ in range(max(1, self._params.warmup)):
            for work in works:
                self._run_timed(work, 0, lambda: None)
                if ctx.chunks:
                    ctx.chunks.discard()
        trials = among[0].item.trials
        check_counts = measuring.check_counts(trials) if self._precision else frozenset()
        times: list[list[tuple[float, float]]] = [[] for _ in among]
        reason, begin = "all", time.monotonic()
        for iteration in range(trials):
            for case, work, own in zip(among, works, times, strict=True):
                own.append(self._iterate(case, work, case.first_step + iteration * case.stride))
            if iteration + 1 in check_counts and (reason := self._end_reason(among, times, begin)) != "all":
                break
        self._report_measured(among, self._seconds(among, times), reason, time.monotonic() - begin)

    def _end_reason(
        self, among: Sequence[cases.Case], times: Sequence[Sequence[tuple[float, float]]], begin: float
    ) -> str:
        """Return why no more iterations are needed: ``precision`` or ``time``; else ``all``. The same on all ranks."""
        if measuring.is_reached(map(ratio.median, self._seconds(among, times)), self._precision):
            return "precision"
        return "time" if self._of_rank_0(time.monotonic() >= begin + self._params.precision_s)[0] else "all"

    def _seconds(
        self, among: Sequence[cases.Case], times: Sequence[Sequence[tuple[float, float]]]
    ) -> list[list[float]]:
        """The time of each iteration by ``over``, the same on all ranks. A collective, outside of the timed part.

        Of ranks that have no part in it only the others count.
        """
        spans = torch.tensor(times, dtype=torch.float64, device=self._ctx.device)
        is_cct, is_mean = self._over == "cct", self._over == "mean_rank"
        seconds = torch.stack((spans[..., 1], -spans[..., 0])) if is_cct else spans[..., 1] - spans[..., 0]
        if not self._memberships[among[0].groups]:
            seconds.fill_(0.0 if is_mean else -math.inf)
        if self._ctx.world > 1:
            dist.all_reduce(seconds, dist.ReduceOp.SUM if is_mean else dist.ReduceOp.MAX)
        if is_mean:
            seconds /= len({rank for group in among[0].groups for rank in group})
        result: list[list[float]] = (seconds.sum(0) if is_cct else seconds).tolist()
        return result

    def _times_over(self) -> str:
        """The kind of times that reports are over; the slowest rank's where ranks cannot know it: of chunks, and of several clocks."""
        if self._params.over != "cct" or self._ctx.world < 2:
            return "max_rank" if self._params.over == "chunk" else self._params.over
        boot = zlib.crc32(recorder.boot_id().encode())
        ends = torch.tensor([boot, -boot], dtype=torch.int64, device=self._ctx.device)
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        return "cct" if int(ends.sum()) == 0 else "max_rank"

    def _report_measured(
        self, among: Sequence[cases.Case], times: Sequence[Sequence[float]], reason: str, seconds: float
    ) -> None:
        self.omitted += (among[0].item.trials - len(times[0])) * len(among)
        for case, samples in zip(among, times, strict=True) if self._ctx.rank == 0 else ():
            median = ratio.median(samples)
            self._ctx.note(
                CollectiveMeasured(
                    rank=0, case=case.number, iterations=len(samples), median_s=statistics.median_low(samples),
                    low_s=median.low if median else None, high_s=median.high if median else None, reason=reason,
                    over=self._over, seconds=seconds,
                )
            )  # fmt: skip

    def _in_sequence(self, among: tuple[cases.Case, ...]) -> None:
        """Replay cases with gaps."""
        memories = {
            groups: operations.Memories(member.ranks, self._ctx.device)
            for groups, member in self._memberships.items()
            if member
        }
        works: dict[int, operations.Work | None] = {}
        for case in among:
            member, shared = self._memberships[case.groups], memories.get(case.groups)
            works[case.number] = self._work(case, member, shared) if member and shared else None
        made = replay_sequence.Sequence(
            ctx=self._ctx, planned=among, works=works, verifier=self._verifier, settle=self._settle, run_gaps=self._gaps
        )
        self.verified += made.run(lambda work: self._run_timed(work, 0, lambda: None), self._synchronise)

    def _iterate(self, case: cases.Case, work: operations.Work | None, step: int) -> tuple[float, float]:
        """Start and end on this rank."""
        ctx = self._ctx
        ctx.begin_step(step)
        pass_phase = ctx.phase_once("collective")
        timed = self._run_timed(work, step, pass_phase)
        pass_phase()
        if self._ctx.world > 1:
            dist.barrier()  # what verifies a result would take the processor from ranks that still receive
        if self._params.verify:
            self._verifier.check(case, step, work)
            self.verified += 1
        ctx.end_step(None, timed=timed, gaps=self._gaps.take(ctx.begun, timed[1]))
        return timed

    def _work(self, case: cases.Case, member: operations.Membership, memories: operations.Memories) -> operations.Work:
        algorithm, peer = (
            algorithm_choice.find(case.item.algorithm),
            self._peer if mpi_names.is_open_mpi(case.item.algorithm) else None,
        )
        return operations.Work(case, member, algorithm, memories, self._ctx.chunks, peer)

    def _run_timed(self, work: operations.Work | None, step: int, first: Callable[[], None]) -> tuple[float, float]:
        """Fill the inputs and synchronise the start; then time the call until its result is there."""
        if work is not None:
            work.fill()
        self._synchronise()
        start = time.monotonic()
        if work is not None:
            work.begin(step, first)()
            self._settle()
        return start, time.monotonic()

    def _synchronise(self) -> None:
        self._start.wait()
        self._settle()

    def _settle(self) -> None:
        if self._ctx.device.type == "cuda":
            torch.cuda.synchronize()


def seconds_per_byte(device: torch.device, process: Callable[[torch.Tensor, torch.Tensor], object]) -> float:
    """Seconds that this rank needs per byte to ``process`` two tensors, such as to add one: the fastest of a few mebibytes."""
    own, received = (torch.zeros(COMBINED_BYTES // 4, device=device) for _ in range(2))
    times = []
    for _ in range(COMBINED_TIMES):
        begin = time.monotonic()
        process(own, received)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic() - begin)
    return min(times) / COMBINED_BYTES


def _check(own: torch.Tensor, received: torch.Tensor) -> object:
    """Return what filling and verifying do with a buffer."""
    own.zero_().copy_(received)
    return torch.equal(own, received), zlib.crc32(tensor_digest.raw(own))


class SynchronisedStart:
    """Synchronises the start of a timed iteration. ``drain``: bytes that empty the bucket of a link; 0: links are not shaped.

    The barrier comes before the transfer that empties the buckets, because buckets fill up while ranks wait for each other.
    That transfer ends at a different time on each rank, and an early rank would count its wait for the others as time of the
    collective. So it is the first round of a dissemination barrier (each rank sends to the rank at distance 1, 2, 4, …), whose
    other rounds have one byte. They take as long as a few small messages, in which the buckets fill up only a little.
    """

    def __init__(self, rank: int, world: int, drain: int, device: torch.device) -> None:
        self._rank, self._world = rank, world
        self._rounds = rounds(world, drain)
        self._buffers = torch.zeros(2, max(drain, 1), dtype=torch.uint8, device=device)

    def seconds(self) -> float:
        """The median of a few barriers, as the machine runs them now."""
        if self._world < 2:
            return 0.0
        times = [time.monotonic()]
        for _ in range(COMBINED_TIMES):
            dist.barrier()
            times.append(time.monotonic())
        return statistics.median(after - before for before, after in itertools.pairwise(times))

    def wait(self) -> None:
        """Return on all ranks at nearly the same time."""
        if self._world < 2:
            return
        dist.barrier()
        for distance, size in self._rounds:
            target, source = (self._rank + distance) % self._world, (self._rank - distance) % self._world
            sent, received = self._buffers[0, :size], self._buffers[1, :size]
            pair = [dist.P2POp(dist.irecv, received, source), dist.P2POp(dist.isend, sent, target)]
            for work in dist.batch_isend_irecv(pair):
                work.wait()


def rounds(world: int, drain: int) -> list[tuple[int, int]]:
    """Distance and bytes of every round; no rounds if ``drain`` is 0."""
    if not drain:
        return []
    distances = [1 << bit for bit in range((world - 1).bit_length())]
    return [(distance, drain if distance == 1 else 1) for distance in distances]
