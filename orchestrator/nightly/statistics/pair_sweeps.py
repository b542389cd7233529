"""Finds who is slow in a sweep over all pairs of nodes, both directions: links, directions, nodes, switch groups, or all pairs together.

A pair's rate is that of the slowest part on its way. Each explanation is a set of pairs that are all slow by the same ratio; explanations
are compared by their likelihood with the Bayesian information criterion (Schwarz, Annals of Statistics 6, 1978), and the confidence is
the share of the posterior weights (Kass and Raftery, JASA 90, 1995). Least change, spread, limit and chance of a false warning are those
of the judge of nights, for the class of the metric. The usual rate of pairs without a reference is the middle of their shortest interval
(least median of squares, Rousseeuw, JASA 79, 1984), because two slow nodes of eight slow half of all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from ...model.frozen import dataclass, field
from ..records import Finding, Outcome
from . import night_statistics as engine
from . import robust

if TYPE_CHECKING:
    from ..classes import MetricClass
    from ..records import Flags, Floats

Kind = Literal["all", "direction", "link", "egress", "ingress", "node", "group egress", "group ingress", "group"]

#: A part is named from this share of the posterior weight on; none has more than the second, as other traffic has no weight at all.
CONFIDENCE, MOST_CONFIDENCE = 0.9, 0.99
#: By how much a part must raise the log-likelihood beyond what the best of as many explanations does by chance.
EVIDENCE = 4.0
MOST_PARTS = 2
#: From so many parts of a kind on their spread is known; a part stands out beyond so many sigmas of it.
LEAST_PARTS, PART_SIGMAS = 8, 4.0
#: Residuals count up to here, so that no single pair decides about a node.
CUT_SIGMAS = 8.0
#: Without a reference, fewer nodes have no majority that shows the usual rate.
LEAST_NODES = 4
#: The share of a class that is taken for its usual rate.
USUAL_SHARE = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """``parts``: two nodes of a link or direction (from, to), one node, the name of a group, or none. ``slowdown``: 0.2 is 20 %."""

    kind: Kind
    parts: tuple[str, ...]
    slowdown: float
    confidence: float

    @property
    def label(self) -> str:
        arrow = " -> " if self.kind == "direction" else " <-> "
        return f"{self.kind} {arrow.join(self.parts)}" if self.parts else "all pairs together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """``culprits``: the parts that explain it. ``alternatives``: explanations that fit alike; with any, the sweep cannot tell.

    ``common``: the slowdown against the reference that all pairs share, 0 if there is none. ``sigma``, ``limit``: how far pairs
    usually differ, and the excess beyond which one is slow; ``unexplained``: pairs beyond it that belong to no part. ``is_wide``: the
    pairs differ too much to see a slow one. ``missing``: directions that were not measured, and nodes without any measured pair.
    ``shared``: host -> its nodes, which have no links of their own, so that their pairs are not judged.
    """

    pairs: int
    has_baseline: bool
    culprits: tuple[Culprit, ...] = ()
    alternatives: tuple[Culprit, ...] = ()
    common: float = 0.0
    sigma: float = math.nan
    limit: float = math.nan
    unexplained: int = 0
    is_wide: bool = False
    missing: tuple[str, ...] = ()
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def solve(
    rates: Floats,
    nodes: tuple[str, ...],
    kind: MetricClass,
    groups: Mapping[str, str] | None = None,
    reference: Floats | None = None,
    hosts: Mapping[str, str] | None = None,
    expected: Flags | None = None,
) -> Sweep:
    """``rates``: from x to x repeats, NaN where there is no measurement; ``kind``: the class of the metric. ``groups``: node -> switch.

    ``hosts``: node -> host, of nodes that use the link of their host: two nodes of one host have no link between them.
    ``expected``: from x to, the pairs that should have been measured; all, if it is not given.

    ``reference``: usual rates (from x to). Without one, a pair is compared with the pairs of its class: within a group, or
    between groups, which are slower behind an oversubscribed leaf. The second-best of the repeats counts: a slow part is slow
    in all of them, other traffic only in some.
    """
    import numpy as np

    owners = np.array([(hosts or {}).get(node, node) for node in nodes])
    has_link = owners[:, None] != owners
    usable = np.where(np.isfinite(rates) & (rates > 0) & has_link[..., None], rates, np.nan)
    slowness = robust.quantile(np.moveaxis(-np.log(usable), -1, 0), 0.4)
    missing = _missing(has_link if expected is None else has_link & expected, ~np.isnan(slowness), nodes)
    slowness = slowness if reference is None else slowness + np.log(reference)
    count, shared = int(np.sum(~np.isnan(slowness))), shared_hosts(nodes, hosts or {})
    if count < 2 or (reference is None and len(set(owners)) < LEAST_NODES):
        return Sweep(pairs=count, has_baseline=False, missing=missing, shared=shared)
    group = np.array([(groups or {}).get(node, "") for node in nodes])
    excess, sigma = _standardise(slowness, group, kind, has_reference=reference is not None)
    least = engine.least_change(kind.least, "lower")
    wide = sigma * float(robust.student(engine.FALSE_WARNING / count, np.array(engine.CLASS_WEIGHT + count)))
    most = float(engine.most_that_passes(least))
    limit = max(least, min(wide, most))
    fabric = _Fabric(nodes=nodes, group=group, least=least, sigma=sigma, has_reference=reference is not None)
    slow, alternatives, common, rest = fabric.explain(excess)
    #: Without a reference the slow pairs may be the usual ones: those that are much faster are no less a finding.
    is_far = rest > limit if reference is not None else np.abs(rest) > limit
    return Sweep(
        pairs=count, has_baseline=True, culprits=slow, alternatives=alternatives, common=-math.expm1(-common), sigma=sigma, limit=limit,
        unexplained=int(np.sum(is_far)), is_wide=wide > most, missing=missing, shared=shared,
    )  # fmt: skip


def _missing(is_expected: Flags, is_measured: Flags, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes without any measured pair, and the directions between the others that were not measured."""
    import numpy as np

    silent = np.asarray(is_expected.any(axis=1) & ~(is_measured | is_measured.T).any(axis=1))
    directions = np.argwhere(is_expected & ~is_measured & ~silent[:, None] & ~silent)
    return (*(nodes[a] for a in np.flatnonzero(silent)), *(f"{nodes[a]} -> {nodes[b]}" for a, b in directions))


def describe_shared(shared: Mapping[str, tuple[str, ...]]) -> str:
    """Return why directions between nodes of one host are not judged; empty where no host is shared."""
    return "; ".join(
        f"{', '.join(nodes[:-1])} and {nodes[-1]} share host {host} and have no link of their own"
        for host, nodes in shared.items()
    )


def shared_hosts(nodes: tuple[str, ...], hosts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Host -> those of ``nodes`` that share it, where there are several."""
    names = sorted({hosts[node] for node in nodes if node in hosts})
    members = {name: tuple(node for node in nodes if hosts.get(node) == name) for name in names}
    return {name: inside for name, inside in members.items() if len(inside) > 1}


def judge(sweep: Sweep, metric: str) -> Finding:
    """A suspect on one night: peers alone never fail a part. A sweep without one passes only if it could have shown one."""
    outcome, text = _say(sweep)
    if sweep.missing:
        names, more = sweep.missing[:6], len(sweep.missing) - 6
        text += f"; not measured: {', '.join(names)}{f' and {more} more' if more > 0 else ''}"
        outcome = "unknown" if outcome == "pass" else outcome
    labels = tuple(part.label for part in sweep.culprits)
    return Finding(gate="pairs", outcome=outcome, metric=metric, text=f"{metric}: {text}", culprits=labels)


def _say(sweep: Sweep) -> tuple[Outcome, str]:
    if sweep.shared and not sweep.pairs:
        return "unknown", f"not judged: {describe_shared(sweep.shared)}"
    if not sweep.has_baseline:
        return "unknown", f"{sweep.pairs} pairs, too few to know the usual rate without a reference"
    texts = [
        f"{part.label} is {part.slowdown:.0%} slower (confidence {part.confidence:.0%})" for part in sweep.culprits
    ]
    if sweep.common:
        texts.append(
            f"the {sweep.pairs} pairs together are {sweep.common:.0%} slower than usual, by a cause that they share"
        )
    if sweep.alternatives:
        texts.append(f"cannot tell: {' or '.join(part.label for part in sweep.alternatives[:4])} fit alike")
    if sweep.unexplained and not sweep.is_wide:
        texts.append(
            f"{sweep.unexplained} {'other ' if texts else ''}of {sweep.pairs} pairs are beyond the limit,"
            f" {-math.expm1(-sweep.limit):.1%}, and no part explains them"
        )
    if texts:
        return "warn", "; ".join(texts)
    text = f"no part is slow in {sweep.pairs} pairs; they differ by {sweep.sigma:.1%}"
    return ("unknown", f"{text}, too much to see a slow part") if sweep.is_wide else ("pass", text)


def _standardise(slowness: Floats, group: Any, kind: MetricClass, *, has_reference: bool) -> tuple[Floats, float]:
    """The excess over the reference, or over the usual slowness of the class of pairs, and the sigma of all that is usual."""
    import numpy as np

    is_inside = group[:, None] == group
    classes = [np.ones(slowness.shape, dtype=bool)] if has_reference else [is_inside, ~is_inside]
    excess, usual = slowness.copy(), []
    for pairs in classes:
        values = np.sort(slowness[pairs & ~np.isnan(slowness)])
        if len(values):
            near = _usual(values, kind.least)
            excess[pairs] -= 0.0 if has_reference else np.median(near)
            usual.append(near - np.median(near))
    flat, weight = np.concatenate(usual), engine.CLASS_WEIGHT
    spread = kind.spread if has_reference else kind.peers
    return excess, float(np.sqrt((weight * spread**2 + np.sum(flat**2)) / (weight + len(flat))))


def _usual(ordered: Floats, least: float) -> Floats:
    """The values about the fastest of the shortest intervals with a share of them, up to 3.5 sigma. ``ordered`` grows.

    A slow node of four slows half of all pairs: of two narrow halves the faster one is usual.
    """
    import numpy as np

    size = min(len(ordered), max(2, math.ceil(USUAL_SHARE * len(ordered))))
    widths = ordered[size - 1 :] - ordered[: len(ordered) - size + 1]
    start = int(np.flatnonzero(widths <= max(1.5 * widths.min(), least / 2) + 1e-12)[0])
    near = ordered[start : start + size]
    # A share of 0.4 of normal values lies within 0.524 sigma of their middle.
    sigma = float(near[-1] - near[0]) / (2 * 0.524)
    for _ in range(5):
        near = ordered[np.abs(ordered - np.median(near)) <= 3.5 * sigma + 1e-12]
        sigma = max(float(np.std(near)), sigma / 2)
    return near


#: Kind and parts -> the gain of log-likelihood, less the penalty, and the excess of the pairs.
_Fits = dict[tuple[Kind, tuple[str, ...]], tuple[float, float]]
_Choices = list[tuple[tuple[str, ...], Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Fabric:
    """Nodes and their groups; ``least``: the least excess of a part; ``sigma``: of a pair."""

    nodes: tuple[str, ...]
    group: Any
    least: float
    sigma: float
    has_reference: bool

    def explain(self, excess: Floats) -> tuple[tuple[Culprit, ...], tuple[Culprit, ...], float, Floats]:
        """Up to MOST_PARTS parts, each the best explanation of the pairs that those before it leave; explanations that fit alike; what
        all pairs share; and the excess that is left."""
        import numpy as np

        fits: list[tuple[Culprit, float]] = []
        common, rivals = 0.0, []
        while len(fits) < MOST_PARTS and not np.isnan(excess).all():
            rivals = self._rank(excess)
            if not rivals or rivals[0][0].confidence < CONFIDENCE:
                break
            best, shift = rivals[0]
            if best.kind == "all":
                excess, common = excess - shift, common + shift
                # Parts that were found before it are slow beside what all share.
                fits = [(part, slow - shift) for part, slow in fits]
            else:
                excess = np.where(self._mask(best.kind, best.parts), np.nan, excess)
                fits.append((best, shift))
            rivals = []
        slow = tuple(
            Culprit(kind=part.kind, parts=part.parts, slowdown=-math.expm1(-shift), confidence=part.confidence)
            for part, shift in fits
        )
        return (
            slow,
            tuple(part for part, _ in rivals if part.confidence > (1 - CONFIDENCE) / 4),
            common,
            excess,
        )

    def _rank(self, excess: Floats) -> list[tuple[Culprit, float]]:
        """The best explanation and its rivals, with their shares of the posterior weight and their excess.

        An explanation that beats chance as well without the pairs of the best one is another part, and no rival.
        """
        import numpy as np

        fits = self._fit(excess)
        if not fits:
            return []
        (kind, parts), (most, _) = max(fits.items(), key=lambda fit: fit[1])
        others = self._fit(np.where(self._mask(kind, parts), np.nan, excess))
        rivals = sorted((fit for fit in fits.items() if fit[0] not in others), key=lambda fit: -fit[1][0])
        weights = [math.exp(gain - most) for _, (gain, _) in rivals]
        total = sum(weights) + math.exp(-most)  # chance has the gain 0
        return [
            (Culprit(kind=kind, parts=parts, slowdown=-math.expm1(-shift), confidence=min(weight / total, MOST_CONFIDENCE)), shift)
            for weight, ((kind, parts), (_, shift)) in zip(weights, rivals, strict=True)
        ]  # fmt: skip

    def _fit(self, excess: Floats) -> _Fits:
        """The explanations that beat chance."""
        import numpy as np

        fits: _Fits = {}
        least = self._least(excess)
        for kind, choices, count in self._explanations(excess):
            for parts, mask in choices:
                measured = excess[mask][~np.isnan(excess[mask])]
                shift = float(np.median(measured)) if len(measured) else 0.0
                if shift > least[kind]:
                    gain = (
                        self._loss(measured)
                        - self._loss(measured - shift)
                        - math.log(count)
                        - math.log(len(measured)) / 2
                    )
                    fits |= {(kind, parts): (gain, shift)} if gain > EVIDENCE else {}
        return fits

    def _least(self, excess: Floats) -> dict[Kind, float]:
        """Return by kind a part's least excess. A share of the class's least change is enough for a part of several pairs, as for several
        nights, where most parts of its kind differ by much less.
        """
        import numpy as np

        shares: dict[Kind, float] = dict.fromkeys(get_args(Kind), self.least)
        rows, columns = (robust.median(excess, axis=axis) for axis in (1, 0))
        sides: dict[Kind, Floats] = {"egress": rows, "ingress": columns, "node": (rows + columns) / 2}
        for kind, values in sides.items():
            known = values[~np.isnan(values)]
            spread = (
                robust.MAD_TO_SIGMA * float(np.median(np.abs(known - np.median(known))))
                if len(known) >= LEAST_PARTS
                else 1.0
            )
            shares[kind] = min(self.least, max(engine.LASTING_SHARE * self.least, PART_SIGMAS * spread))
        shares["link"] = min(
            self.least, max(engine.LASTING_SHARE * self.least, PART_SIGMAS * self.sigma / math.sqrt(2))
        )
        return shares

    def _loss(self, residuals: Floats) -> float:
        """Minus the log-likelihood: a parabola up to the cut."""
        import numpy as np

        return float(np.sum(np.minimum((residuals / self.sigma) ** 2, CUT_SIGMAS**2)) / 2)

    def _explanations(self, excess: Floats) -> Iterator[tuple[Kind, _Choices, int]]:
        """Yield by kind the parts with the pairs that they slow, and how many there are to choose from."""
        import numpy as np

        if self.has_reference:
            yield "all", [((), self._mask("all", ()))], 1
        names = sorted(set(self.group.tolist()))
        kinds: tuple[Kind, ...] = ("egress", "ingress", "node", "group egress", "group ingress", "group")
        for kind in kinds[: None if len(names) > 1 else 3]:
            choices = names if kind.startswith("group") else self.nodes
            yield kind, [((name,), self._mask(kind, (name,))) for name in choices], len(choices)
        # Of single directions and links, only those that are slow at all; the others count as choices.
        slow = [(self.nodes[a], self.nodes[b]) for a, b in np.argwhere(excess > engine.LASTING_SHARE * self.least)]
        count = len(self.nodes) * (len(self.nodes) - 1)
        yield "direction", [(pair, self._mask("direction", pair)) for pair in slow], count
        links = sorted({(min(pair), max(pair)) for pair in slow})
        masks = [(pair, self._mask("link", pair)) for pair in links]
        yield "link", [(pair, mask) for pair, mask in masks if not np.isnan(excess[mask]).any()], count // 2

    def _mask(self, kind: Kind, parts: tuple[str, ...]) -> Any:
        """Return (from x to) the pairs that a part slows. Traffic within a group does not cross its uplink."""
        import numpy as np

        if kind == "all":
            return np.ones((len(self.nodes), len(self.nodes)), dtype=bool)
        if kind in ("direction", "link"):
            first, second = (np.array(self.nodes) == part for part in parts)
            mask = first[:, None] & second
            return mask | mask.T if kind == "link" else mask
        is_part = (self.group if kind.startswith("group") else np.array(self.nodes)) == parts[0]
        leaves, enters = is_part[:, None] & ~is_part, ~is_part[:, None] & is_part
        if kind.endswith("egress"):
            return leaves
        return enters if kind.endswith("ingress") else leaves | enters
