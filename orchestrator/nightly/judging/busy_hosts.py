"""Nodes whose hosts work for others: their figures say nothing of their hardware, or do not pass."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from ..records import Key, Record
from ..run_record import nodes_of

#: Figures of what others took of a node's CPUs, and how much more than usual makes its other figures unknown. What a quota withholds
#: is none of them: it is a defect of the node.
BUSY = {"cpu stolen": 0.05, "cpu used by others": 0.25}
#: From this share of a host's CPUs on, used by others, no figure of its nodes passes, however busy it always is.
BUSY_SHARE = 0.25


def busy(records: Iterable[Record]) -> dict[tuple[int, str], str]:
    """Nights and nodes whose hosts worked for others much more than on the nights before: (night, node) -> the reason.

    ``records``: of all nights. On a first night nothing says what is usual; a shared host may always be busy. Each trial is compared
    with itself: nodes of one host that are measured at the same time are others to each other.
    """
    reasons: dict[tuple[int, str], str] = {}
    earlier: dict[tuple[str, str, Key], list[float]] = {}
    for record in sorted(records, key=lambda record: record.night):
        level = BUSY.get(record.metric.name)
        if level is None or not record.values:
            continue
        share = statistics.median(record.values)
        past = earlier.setdefault((record.metric.name, record.node, record.key), [])
        if past and share > statistics.median(past) + level:
            text = f"other work took {share:.0%} of the CPUs of its host ({record.metric.name}; usual {statistics.median(past):.0%})"
            reasons |= {(record.night, node): text for node in nodes_of(record.node)}
        past.append(share)
    return reasons


def crowded(records: Iterable[Record], hosts: Mapping[str, str]) -> dict[str, str]:
    """Nodes whose hosts work for others, whatever is usual there: node -> the reason. ``records``: of tonight; ``hosts``: of all nodes.

    Nodes of one host that are measured at once are no others: of k shares, the k - 1 CPUs that they can take from each other go off.
    """
    shares: dict[tuple[str, str, Key], list[float]] = {}
    for record in records:
        if record.metric.name in BUSY and record.values:
            host = next((hosts.get(node, node) for node in nodes_of(record.node)), "")
            shares.setdefault((record.metric.name, host, record.key), []).append(statistics.median(record.values))
    reasons: dict[str, str] = {}
    for (metric, host, _), of_host in shares.items():
        own = len(of_host) - 1 if metric == "cpu used by others" else 0
        share = sum(of_host) - own if own else max(of_host)
        if share > BUSY_SHARE:
            text = f"other work took {min(share, 1):.0%} of the CPUs of its host ({metric})"
            reasons |= dict.fromkeys([node for node, of_node in hosts.items() if of_node == host] or [host], text)
    return reasons
