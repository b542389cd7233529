"""Who is slow in a sweep over all pairs of nodes, both directions: links, directions, nodes, switch groups; up to two at once.

A pair's rate is that of the slowest part on its way, so its excess over the usual is the largest of its culprits'. Each
explanation is a set of pairs that are all slow by the same ratio. Explanations are compared by their likelihood with the
Bayesian information criterion (Schwarz, Annals of Statistics 6, 1978), which asks a smaller set for the same evidence per
part; the confidence is the best one's share of the posterior weights (Kass and Raftery, JASA 90, 1995), chance included, and
at most 99 %: what none of the explanations describes, such as other traffic in one sweep, has no weight. Residuals count up to
8 sigma, so that no single pair decides about a node. The usual rate of a class of pairs is the middle of its shortest interval
(least median of squares, Rousseeuw, JASA 79, 1984), because two slow nodes of eight slow half of all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from . import robust
from .finding import Finding

if TYPE_CHECKING:
    from .nights import Floats

Kind = Literal["direction", "link", "egress", "ingress", "node", "group egress", "group ingress", "group"]

#: Below this slowdown, and below this share of the posterior weight, no part is named.
MINIMUM_RATIO, CONFIDENCE, MOST_CONFIDENCE = 0.03, 0.9, 0.99
#: By how much a culprit must raise the log-likelihood beyond what the best of as many explanations does by chance.
EVIDENCE = 4.0
MOST_CULPRITS = 2
CUT_SIGMAS = 8.0
#: Without a reference, fewer nodes have no majority that shows the usual rate.
LEAST_NODES = 4
#: The share of a class that is taken for its usual rate.
USUAL_SHARE = 0.4
#: Without a culprit, a sweep does not pass if this share of its pairs is far from usual.
UNEXPLAINED_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """``parts``: two nodes of a link or direction (from, to), one node, or the name of a group. ``slowdown``: 0.2 is 20 %."""

    kind: Kind
    parts: tuple[str, ...]
    slowdown: float
    confidence: float

    @property
    def label(self) -> str:
        arrow = " -> " if self.kind == "direction" else " <-> "
        return f"{self.kind} {arrow.join(self.parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """``culprits``: the explanation. ``alternatives``: explanations that fit alike; with any, the sweep cannot tell.

    ``unexplained``: pairs that are far from usual, faster or slower, and belong to no culprit. ``shared``: host -> its nodes,
    which have no links of their own, so that their pairs are not judged.
    """

    culprits: tuple[Culprit, ...]
    alternatives: tuple[Culprit, ...]
    sigma: float
    pairs: int
    has_baseline: bool
    unexplained: int = 0
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def solve(
    rates: Floats,
    nodes: tuple[str, ...],
    groups: Mapping[str, str] | None = None,
    reference: Floats | None = None,
    hosts: Mapping[str, str] | None = None,
) -> Sweep:
    """``rates``: from x to x repeats, NaN where there is no measurement. ``groups``: node -> switch group.

    ``hosts``: node -> host, of nodes that use the link of their host: two nodes of one host have no link between them.

    ``reference``: usual rates (from x to). Without one, a pair is compared with the pairs of its class: within a group, or
    between groups, which are slower behind an oversubscribed leaf. The second-best of the repeats counts: a slow part is slow
    in all of them, other traffic only in some.
    """
    import numpy as np

    owners = np.array([(hosts or {}).get(node, node) for node in nodes])
    has_link = (owners[:, None] != owners)[..., None]
    usable = np.where(np.isfinite(rates) & (rates > 0) & has_link, rates, np.nan)
    slowness = robust.quantile(np.moveaxis(-np.log(usable), -1, 0), 0.4)
    membership = [(groups or {}).get(node, "") for node in nodes]
    if reference is not None:
        slowness = slowness + np.log(reference)
        classes = [np.ones(slowness.shape, dtype=bool)]
    else:
        group = np.array(membership)
        classes = [group[:, None] == group, group[:, None] != group]
    pairs = int(np.sum(~np.isnan(slowness)))
    has_baseline = pairs >= 2 and (reference is not None or len(set(owners)) >= LEAST_NODES)
    culprits: list[Culprit] = []
    alternatives: tuple[Culprit, ...] = ()
    sigma = math.nan
    while has_baseline and len(culprits) < MOST_CULPRITS and not np.isnan(slowness).all():
        excess, sigma = _standardise(slowness, classes, is_centred=reference is not None)
        rivals = _rank(excess, sigma, nodes, membership)
        if not rivals:
            break
        if rivals[0].confidence < CONFIDENCE:
            alternatives = tuple(rival for rival in rivals if rival.confidence > (1 - CONFIDENCE) / 4)
            break
        culprits.append(rivals[0])
        slowness = np.where(_mask(rivals[0].kind, rivals[0].parts, nodes, membership), np.nan, slowness)
    unexplained = 0
    if has_baseline and not np.isnan(slowness).all():
        excess, sigma = _standardise(slowness, classes, is_centred=reference is not None)
        unexplained = int(np.sum(np.abs(excess) > max(MINIMUM_RATIO, CUT_SIGMAS * sigma)))
    return Sweep(
        culprits=tuple(culprits), alternatives=alternatives, sigma=sigma, pairs=pairs, has_baseline=has_baseline,
        unexplained=unexplained, shared=shared_hosts(nodes, hosts or {}),
    )  # fmt: skip


def describe_shared(shared: Mapping[str, tuple[str, ...]]) -> str:
    """Why directions between nodes of one host are not judged; empty where no host is shared."""
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
    """A suspect on one night: peers alone never fail a part. A sweep without a culprit passes only if it could have shown one."""
    without_link = describe_shared(sweep.shared)
    if without_link and not sweep.pairs:
        text = f"{metric}: not judged: {without_link}"
        return Finding(gate="pairs", outcome="unknown", metric=metric, text=text)
    if not sweep.has_baseline:
        text = f"{metric}: {sweep.pairs} pairs, too few to know the usual rate without a reference"
        return Finding(gate="pairs", outcome="unknown", metric=metric, text=text)
    named = "; ".join(
        f"{culprit.label} is {culprit.slowdown:.0%} slower (confidence {culprit.confidence:.0%})"
        for culprit in sweep.culprits
    )
    labels = tuple(culprit.label for culprit in sweep.culprits)
    if sweep.alternatives:
        rivals = " or ".join(culprit.label for culprit in sweep.alternatives[:4])
        text = f"{metric}: {named + '; ' if named else ''}cannot tell: {rivals} fit alike"
        return Finding(gate="pairs", outcome="warn", metric=metric, text=text, culprits=labels)
    if named:
        return Finding(gate="pairs", outcome="warn", metric=metric, text=f"{metric}: {named}", culprits=labels)
    text = f"{metric}: no part is slow in {sweep.pairs} pairs; they differ by {sweep.sigma:.1%}"
    if sweep.unexplained >= UNEXPLAINED_SHARE * sweep.pairs:
        text = (
            f"{metric}: {sweep.unexplained} of {sweep.pairs} pairs are far from the others, and no part explains them"
        )
        return Finding(gate="pairs", outcome="unknown", metric=metric, text=text)
    if not sweep.sigma <= MINIMUM_RATIO:
        return Finding(gate="pairs", outcome="unknown", metric=metric, text=text + ", too much to see a slow part")
    return Finding(gate="pairs", outcome="pass", metric=metric, text=text)


def _standardise(slowness: Floats, classes: list[Any], *, is_centred: bool) -> tuple[Floats, float]:
    """The excess over the usual slowness of each class, and the sigma of all that is usual."""
    import numpy as np

    excess = slowness.copy()
    usual = []
    for pairs in classes:
        values = np.sort(slowness[pairs & ~np.isnan(slowness)])
        if not len(values):
            continue
        near = _usual(values)
        centre = 0.0 if is_centred else float(np.median(near))
        excess[pairs] -= centre
        usual.append(near - np.median(near))
    sigma = float(np.std(np.concatenate(usual)))
    return excess, max(sigma, 1e-4)


def _usual(ordered: Floats) -> Floats:
    """The values about the fastest of the shortest intervals with a share of them, up to 3.5 sigma. ``ordered`` grows.

    A slow node of four slows half of all pairs: of two narrow halves the faster one is usual.
    """
    import numpy as np

    size = min(len(ordered), max(2, math.ceil(USUAL_SHARE * len(ordered))))
    widths = ordered[size - 1 :] - ordered[: len(ordered) - size + 1]
    start = int(np.flatnonzero(widths <= max(1.5 * widths.min(), MINIMUM_RATIO) + 1e-12)[0])
    near = ordered[start : start + size]
    # A share of 0.4 of normal values lies within 0.524 sigma of their middle.
    sigma = float(near[-1] - near[0]) / (2 * 0.524)
    for _ in range(5):
        near = ordered[np.abs(ordered - np.median(near)) <= 3.5 * sigma + 1e-12]
        sigma = max(float(np.std(near)), sigma / 2)
    return near


def _rank(excess: Floats, sigma: float, nodes: tuple[str, ...], membership: list[str]) -> list[Culprit]:
    """The best explanation and its rivals, with their shares of the posterior weight.

    An explanation that beats chance as well without the pairs of the best one is another culprit, and no rival.
    """
    import numpy as np

    fits = _fit(excess, sigma, nodes, membership)
    if not fits:
        return []
    (kind, parts), _ = best = max(fits.items(), key=lambda fit: fit[1])
    rest = np.where(_mask(kind, parts, nodes, membership), np.nan, excess)
    others = _fit(rest, sigma, nodes, membership)
    rivals = sorted((fit for fit in fits.items() if fit[0] not in others), key=lambda fit: -fit[1][0])
    weights = [math.exp(gain - best[1][0]) for _, (gain, _) in rivals]
    total = sum(weights) + math.exp(-best[1][0])  # chance has the gain 0
    return [
        Culprit(kind=kind, parts=parts, slowdown=-math.expm1(-shift), confidence=min(weight / total, MOST_CONFIDENCE))
        for weight, ((kind, parts), (_, shift)) in zip(weights, rivals, strict=True)
    ]


def _fit(
    excess: Floats, sigma: float, nodes: tuple[str, ...], membership: list[str]
) -> dict[tuple[Kind, tuple[str, ...]], tuple[float, float]]:
    """Of each explanation that beats chance: the gain of log-likelihood, less the penalty, and the excess of its pairs."""
    import numpy as np

    fits = {}
    for kind, choices in _explanations(excess, nodes, membership):
        for parts, values in choices:
            measured = values[~np.isnan(values)]
            shift = float(robust.median(measured)) if len(measured) else 0.0
            if shift < MINIMUM_RATIO:
                continue
            gain = _loss(measured / sigma) - _loss((measured - shift) / sigma)
            gain -= math.log(len(choices)) + math.log(len(measured)) / 2
            if gain > EVIDENCE:
                fits[kind, parts] = gain, shift
    return fits


def _loss(residuals: Floats) -> float:
    """Minus the log-likelihood: a parabola up to the cut."""
    import numpy as np

    return float(np.sum(np.minimum(residuals**2, CUT_SIGMAS**2)) / 2)


_Choices = list[tuple[tuple[str, ...], "Floats"]]


def _explanations(excess: Floats, nodes: tuple[str, ...], membership: list[str]) -> Iterator[tuple[Kind, _Choices]]:
    """By kind: the parts, and the values of the pairs that they slow."""
    import numpy as np

    kinds: tuple[Kind, ...] = ("egress", "ingress", "node", "group egress", "group ingress", "group")
    names = sorted(set(membership)) if len(set(membership)) > 1 else []
    for kind in kinds:
        choices = names if kind.startswith("group") else nodes
        yield kind, [((name,), excess[_part_mask(kind, name, nodes, membership)]) for name in choices]
    # Of single directions and links, only those that are slow at all; the others count as choices.
    slow = [(int(a), int(b)) for a, b in np.argwhere(excess >= MINIMUM_RATIO)]
    rest: _Choices = [((), np.array([]))]
    count = len(nodes) * (len(nodes) - 1)
    yield "direction", _padded([((nodes[a], nodes[b]), excess[[a], [b]]) for a, b in slow], rest, count)
    links = sorted({(min(pair), max(pair)) for pair in slow})
    both = [(a, b) for a, b in links if not np.isnan(excess[[a, b], [b, a]]).any()]
    yield "link", _padded([((nodes[a], nodes[b]), excess[[a, b], [b, a]]) for a, b in both], rest, count // 2)


def _padded(choices: _Choices, rest: _Choices, count: int) -> _Choices:
    return choices + rest * (count - len(choices))


def _part_mask(kind: Kind, name: str, nodes: tuple[str, ...], membership: list[str]) -> Any:
    """from x to: the pairs that a node or group slows. Traffic within a group does not cross its uplink."""
    import numpy as np

    is_part = np.array([label == name for label in (membership if kind.startswith("group") else nodes)])
    leaves, enters = is_part[:, None] & ~is_part, ~is_part[:, None] & is_part
    if kind.endswith("egress"):
        return leaves
    return enters if kind.endswith("ingress") else leaves | enters


def _mask(kind: Kind, parts: tuple[str, ...], nodes: tuple[str, ...], membership: list[str]) -> Any:
    import numpy as np

    if kind not in ("direction", "link"):
        return _part_mask(kind, parts[0], nodes, membership)
    first, second = (nodes.index(node) for node in parts)
    mask = np.zeros((len(nodes), len(nodes)), dtype=bool)
    mask[first, second] = True
    mask[second, first] = kind == "link"
    return mask
