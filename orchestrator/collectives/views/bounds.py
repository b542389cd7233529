"""The least time that a case can take: its payload on the busiest link, over the rate of that link. Headers only add to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...model.frozen import dataclass
from ...views.json_values import whole
from .experiment import Case, Link, Setting, factor

#: A pair of ranks rarely fills a link alone. A collective is too fast only beyond this many times the rate of the fastest pair.
PROBE_MARGIN = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """``seconds``: no iteration is shorter. ``payload`` bytes pass a link of ``rate`` bit/s whose bucket holds ``burst`` bytes."""

    seconds: float
    payload: int
    rate: float
    burst: int
    link: str


def lower_bound(setting: Setting, case: Case) -> Bound | None:
    """The largest bound that is known; None where no rate is known, or the payload is not above what the bucket holds."""
    payload = max(case.port_bytes, least_bytes(case, setting.nodes))
    bounds = [
        bound
        for name, rate, burst, size in (
            ("the busiest link of a node", *_rate(setting.link, "rate", "burst"), payload),
            ("the busiest uplink", *_rate(setting.link, "uplink", "uplink_burst"), case.uplink_bytes),
            ("the busiest link of a host", _probed(setting, case), 0, payload),
        )
        if (bound := _bound(name, rate, burst, size))
    ]
    return max(bounds, key=lambda bound: bound.seconds, default=None)


def least_bytes(case: Case, nodes: Mapping[int, str]) -> int:
    """Payload that passes the busiest link of a node in one direction, whatever the algorithm.

    Sums over all nodes, divided by the nodes: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009, for all-reduce.
    """
    return max((_least_of_group(case, [nodes.get(rank, "") for rank in group]) for group in case.groups), default=0)


def _least_of_group(case: Case, nodes: Sequence[str]) -> int:
    ranks, count = Counter(nodes), len(nodes)
    if len(ranks) < 2 or "" in ranks or case.root >= count:
        return 0
    if case.operation == "send-recv":
        return case.bytes if len(ranks) == count else 0
    if case.operation in ("gather", "scatter"):
        width = case.bytes // case.count if case.count else 0
        return case.count // count * width * (count - ranks[nodes[case.root]])
    return int(case.bytes * factor(case.operation, len(ranks)))


def _rate(link: Link, rate: str, burst: str) -> tuple[float, int]:
    """bit/s and bytes as the fabric shapes them; 0 where one of them is not known."""
    speed, bucket = whole(link.spec.get(rate)) or 0, whole(link.spec.get(burst)) or 0
    return (speed, bucket) if speed and bucket else (0, 0)


def _probed(setting: Setting, case: Case) -> float:
    """The rate of links that are not shaped, if each rank has its own host: ranks of one host have no link between them."""
    hosts = {setting.hosts.get(rank, "") for rank in case.ranks}
    if setting.link.rate or "" in hosts or len(hosts) < len(case.ranks):
        return 0.0
    seconds = [
        took / size for direction in setting.link.directions for size, took, _ in direction.samples if size >= 1 << 16
    ]
    return PROBE_MARGIN * 8 / min(seconds) if seconds and min(seconds) > 0 else 0.0


def _bound(link: str, rate: float, burst: int, payload: int) -> Bound | None:
    if rate <= 0 or payload <= burst:
        return None
    return Bound(seconds=(payload - burst) * 8 / rate, payload=payload, rate=rate, burst=burst, link=link)
