"""Who is slow in a sweep over all pairs of nodes, both directions: links, directions, nodes, switch groups; up to two at once.

A pair's rate is that of the slowest part on its way, so its excess over the usual is the largest of its culprits'. Each
explanation is a set of pairs that are all slow by the same ratio. Explanations are compared by their likelihood with the
Bayesian information criterion (Schwarz, Annals of Statistics 6, 1978), which asks a smaller set for the same evidence per
part; the confidence is the best one's share of the posterior weights (Kass and Raftery, JASA 90, 1995), chance included, and
at most 99 %: what none of the explanations describes, such as other traffic in one sweep, has no weight. Residuals count up to
8 sigma, so that no single pair decides about a node. The usual rate of a class of pairs is the middle of its shortest interval
(least median of squares, Rousseeuw, JASA 79, 1984), because two slow nodes of eight slow half of all pairs.

Beside a reference, the slowdown that all pairs share (a driver, an MTU, other traffic) is an explanation like the others: parts are
named only where they explain the sweep better than it does, because two nodes of four slow nearly all pairs, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ...model.frozen import dataclass, field, replace
from . import robust
from .finding import Finding, Outcome

if TYPE_CHECKING:
    from .nights import Flags, Floats

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
#: A sweep does not pass if this share of its pairs is far from usual, and names no part if so many of the other pairs are slow.
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

    ``common``: the slowdown against the reference that all pairs share, 0 if there is none. ``unexplained``: pairs that are far
    from usual, faster or slower, and belong to no culprit. ``missing``: directions that were not measured, and nodes without any
    measured pair. ``shared``: host -> its nodes, which have no links of their own, so that their pairs are not judged.
    """

    culprits: tuple[Culprit, ...]
    alternatives: tuple[Culprit, ...]
    sigma: float
    pairs: int
    has_baseline: bool
    common: float = 0.0
    unexplained: int = 0
    missing: tuple[str, ...] = ()
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def solve(
    rates: Floats,
    nodes: tuple[str, ...],
    groups: Mapping[str, str] | None = None,
    reference: Floats | None = None,
    hosts: Mapping[str, str] | None = None,
    expected: Flags | None = None,
) -> Sweep:
    """``rates``: from x to x repeats, NaN where there is no measurement. ``groups``: node -> switch group.

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
    membership = [(groups or {}).get(node, "") for node in nodes]
    pairs = int(np.sum(~np.isnan(slowness)))
    has_baseline = pairs >= 2 and (reference is not None or len(set(owners)) >= LEAST_NODES)
    missing = _missing(has_link if expected is None else has_link & expected, ~np.isnan(slowness), nodes)
    if reference is not None:
        slowness = slowness + np.log(reference)
        classes = [np.ones(slowness.shape, dtype=bool)]
    else:
        group = np.array(membership)
        classes = [group[:, None] == group, group[:, None] != group]
    result, is_centred = _Explanation(rest=slowness), reference is not None
    if has_baseline and is_centred:
        result = _explain_beside_reference(slowness, nodes, membership)
    elif has_baseline:
        result = _explain(slowness, classes, nodes, membership, is_centred=False)
    if result.culprits and not _shows_usual_rate(result.rest, classes, is_centred=is_centred):
        result = replace(result, culprits=(), alternatives=(), rest=slowness + math.log1p(-result.common))
    unexplained, sigma = 0, result.sigma
    if has_baseline and not np.isnan(result.rest).all():
        excess, sigma = _standardise(result.rest, classes, is_centred=is_centred)
        is_far = np.abs(excess) > max(MINIMUM_RATIO, CUT_SIGMAS * sigma)
        if is_centred and not _shows_usual_rate(result.rest, classes, is_centred=True):
            is_far |= excess >= MINIMUM_RATIO
        unexplained = int(np.sum(is_far))
    return Sweep(
        culprits=result.culprits, alternatives=result.alternatives, sigma=sigma, pairs=pairs, has_baseline=has_baseline,
        common=result.common, unexplained=unexplained, missing=missing, shared=shared_hosts(nodes, hosts or {}),
    )  # fmt: skip


def _missing(is_expected: Flags, is_measured: Flags, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes without any measured pair, and the directions between the others that were not measured."""
    import numpy as np

    silent = np.asarray(is_expected.any(axis=1) & ~(is_measured | is_measured.T).any(axis=1))
    directions = np.argwhere(is_expected & ~is_measured & ~silent[:, None] & ~silent)
    return (*(nodes[a] for a in np.flatnonzero(silent)), *(f"{nodes[a]} -> {nodes[b]}" for a, b in directions))


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

    def report(outcome: Outcome, text: str, labels: tuple[str, ...] = ()) -> Finding:
        return Finding(gate="pairs", outcome=outcome, metric=metric, text=f"{metric}: {text}{gap}", culprits=labels)

    gap = f"; not measured: {_shortened(sweep.missing)}" if sweep.missing else ""
    without_link = describe_shared(sweep.shared)
    if without_link and not sweep.pairs:
        return report("unknown", f"not judged: {without_link}")
    if not sweep.has_baseline:
        return report("unknown", f"{sweep.pairs} pairs, too few to know the usual rate without a reference")
    common = (
        f"the {sweep.pairs} pairs together are {sweep.common:.0%} slower than usual, by a cause that they share"
        if sweep.common >= MINIMUM_RATIO else ""
    )  # fmt: skip
    named = [
        f"{culprit.label} is {culprit.slowdown:.0%} slower (confidence {culprit.confidence:.0%})"
        for culprit in sweep.culprits
    ]
    is_unclear = sweep.unexplained >= UNEXPLAINED_SHARE * sweep.pairs
    labels = tuple(culprit.label for culprit in sweep.culprits)
    if sweep.alternatives:
        rivals = " or ".join(culprit.label for culprit in sweep.alternatives[:4])
        doubt = f"cannot tell: {f'{common}, or ' if common else ''}{rivals} fit alike"
        return report("warn", "; ".join([*named, doubt]), labels)
    if named or (common and not is_unclear):
        return report("warn", "; ".join([*named, *([common] if common else [])]), labels)
    if is_unclear:
        text = f"{sweep.unexplained} of {sweep.pairs} pairs are far from the others, and no part explains them"
        return report("unknown", f"{text}; {common}" if common else text)
    text = f"no part is slow in {sweep.pairs} pairs; they differ by {sweep.sigma:.1%}"
    if not sweep.sigma <= MINIMUM_RATIO:
        return report("unknown", text + ", too much to see a slow part")
    return report("unknown" if sweep.missing else "pass", text)


def _shortened(names: tuple[str, ...], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Explanation:
    """``rest``: the slowness of the pairs that it leaves, NaN for the others. ``gain``: of log-likelihood, less the penalties."""

    rest: Floats
    culprits: tuple[Culprit, ...] = ()
    alternatives: tuple[Culprit, ...] = ()
    sigma: float = math.nan
    common: float = 0.0
    gain: float = 0.0


def _explain_beside_reference(slowness: Floats, nodes: tuple[str, ...], membership: list[str]) -> _Explanation:
    """The better one of two: parts alone, or a slowdown that all pairs share and parts beside it. Unclear: none is a culprit."""
    import numpy as np

    everything = [np.ones(slowness.shape, dtype=bool)]
    parts = _explain(slowness, everything, nodes, membership, is_centred=True)
    excess, sigma = _standardise(slowness, everything, is_centred=False)
    shift = float(np.nanmedian(slowness - excess))
    if shift <= 0:
        return parts
    measured = ~np.isnan(slowness)
    gain = _loss(slowness[measured] / sigma) - _loss(excess[measured] / sigma) - math.log(np.sum(measured)) / 2
    shared = _explain(excess, everything, nodes, membership, is_centred=True)
    shared = replace(shared, common=-math.expm1(-shift), gain=gain + shared.gain)
    if abs(parts.gain - shared.gain) > EVIDENCE:
        return max(parts, shared, key=lambda explanation: explanation.gain)
    if shift < MINIMUM_RATIO or not parts.gain:
        return shared if shift < MINIMUM_RATIO else parts
    return replace(shared, culprits=(), alternatives=(*parts.culprits, *parts.alternatives))


def _explain(
    slowness: Floats, classes: list[Any], nodes: tuple[str, ...], membership: list[str], *, is_centred: bool
) -> _Explanation:
    """Up to MOST_CULPRITS parts, each the best explanation of the pairs that those before it leave."""
    import numpy as np

    culprits: list[Culprit] = []
    alternatives: tuple[Culprit, ...] = ()
    sigma, gain = math.nan, 0.0
    while len(culprits) < MOST_CULPRITS and not np.isnan(slowness).all():
        excess, sigma = _standardise(slowness, classes, is_centred=is_centred)
        best, rivals = _rank(excess, sigma, nodes, membership)
        if not rivals:
            break
        gain += best
        if rivals[0].confidence < CONFIDENCE:
            alternatives = tuple(rival for rival in rivals if rival.confidence > (1 - CONFIDENCE) / 4)
            break
        culprits.append(rivals[0])
        slowness = np.where(_mask(rivals[0].kind, rivals[0].parts, nodes, membership), np.nan, slowness)
    return _Explanation(
        rest=slowness, culprits=tuple(culprits), alternatives=alternatives, sigma=sigma, gain=gain
    )  # fmt: skip


def _shows_usual_rate(rest: Floats, classes: list[Any], *, is_centred: bool) -> bool:
    """Whether most pairs without a culprit are as fast as usual. Where they are not, a part was named out of many that are slow."""
    import numpy as np

    others = ~np.isnan(rest)
    if not others.any():
        return False
    excess, _ = _standardise(rest, classes, is_centred=is_centred)
    return bool(np.mean(excess[others] >= MINIMUM_RATIO) < UNEXPLAINED_SHARE)


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


def _rank(excess: Floats, sigma: float, nodes: tuple[str, ...], membership: list[str]) -> tuple[float, list[Culprit]]:
    """The gain of the best explanation; it and its rivals, with their shares of the posterior weight.

    An explanation that beats chance as well without the pairs of the best one is another culprit, and no rival.
    """
    import numpy as np

    fits = _fit(excess, sigma, nodes, membership)
    if not fits:
        return 0.0, []
    (kind, parts), _ = best = max(fits.items(), key=lambda fit: fit[1])
    rest = np.where(_mask(kind, parts, nodes, membership), np.nan, excess)
    others = _fit(rest, sigma, nodes, membership)
    rivals = sorted((fit for fit in fits.items() if fit[0] not in others), key=lambda fit: -fit[1][0])
    weights = [math.exp(gain - best[1][0]) for _, (gain, _) in rivals]
    total = sum(weights) + math.exp(-best[1][0])  # chance has the gain 0
    return best[1][0], [
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
