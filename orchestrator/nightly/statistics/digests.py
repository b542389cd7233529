"""Silent data corruption: the same seeded computation must give the same bits on equal GPUs with equal libraries.

Equal bits are no proof of health, so the outcome is never a pass: "no mismatch in X device-seconds" is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ...model.event import History
from ...model.events import ProbeDone
from ...model.frozen import dataclass
from ..records import Finding

GATE = "sdc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """``device``: the model of the GPU or CPU; ``software``: the library that computed, with its version. One per computation."""

    node: str
    device: str
    software: str
    digest: str
    seconds: float


def judge(digests: Iterable[Digest]) -> tuple[Finding, ...]:
    """A finding for each device and library. Nodes that differ from a strict majority, or from themselves, are culprits."""
    groups: dict[tuple[str, str], list[Digest]] = {}
    for digest in digests:
        groups.setdefault((digest.device, digest.software), []).append(digest)
    return tuple(_judge_group(f"{device}, {software}", group) for (device, software), group in sorted(groups.items()))


def _judge_group(label: str, group: list[Digest]) -> Finding:
    by_node: dict[str, set[str]] = {}
    for digest in group:
        by_node.setdefault(digest.node, set()).add(digest.digest)
    seconds = sum(digest.seconds for digest in group)
    if len({digest.digest for digest in group}) == 1:
        alone = f"; only {next(iter(by_node))} computed it" if len(by_node) == 1 else f" on {len(by_node)} nodes"
        return Finding(
            gate=GATE, outcome="unknown", text=f"{label}: no mismatch in {seconds:.3g} device-seconds{alone}"
        )
    unstable = sorted(node for node, values in by_node.items() if len(values) > 1)
    votes = Counter(next(iter(values)) for values in by_node.values() if len(values) == 1)
    (bits, count), total = votes.most_common(1)[0] if votes else ("", 0), sum(votes.values())
    odd = sorted(node for node, values in by_node.items() if values != {bits} and len(values) == 1)
    culprits = tuple(sorted({*unstable, *(odd if 2 * count > total and total > 2 else ())}))
    if not culprits:
        text = f"{label}: results differ between {', '.join(sorted(by_node))}; no majority, so the node at fault is not known"
        return Finding(gate=GATE, outcome="fail", text=text)
    reason = "differ from themselves" if set(culprits) <= set(unstable) else f"differ from {count} of {total} nodes"
    text = f"{label}: results of {', '.join(culprits)} {reason} in {seconds:.3g} device-seconds"
    return Finding(
        gate=GATE, outcome="fail", text=text, culprits=culprits, node=culprits[0] if len(culprits) == 1 else None
    )


def read(histories: Iterable[History], names: Mapping[str, str] | None = None) -> tuple[Digest, ...]:
    """The digests that node probes computed. ``names``: other names of nodes."""
    return tuple(
        Digest(
            node=(names or {}).get(event.node or "", event.node or ""), device=bits.device, software=bits.software,
            digest=bits.digest, seconds=bits.seconds,
        )
        for history in histories for event in history.of(ProbeDone) for bits in event.data.bits or ()
    )  # fmt: skip
