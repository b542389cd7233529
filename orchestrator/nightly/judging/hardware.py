"""Nodes whose hardware is not that of earlier nights: fewer GPUs, CPUs or memory fail until a baseline accepts them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ...model.frozen import dataclass
from ..night_judgement import Judged
from ..records import HOST, Finding, Key, Outcome, Record
from .figures import Series

GATE = "hardware"
#: The nodes of a host are no part of a node's own hardware.
_LAYOUT = re.compile(r", \d+ nodes on a host$")
_COUNT = re.compile(r"([\d.]+)x .+")
_MEMORY = re.compile(r"([\d.]+) GiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """Hardware that a node had, and when. ``host``: empty if not known."""

    hardware: str
    when: str
    host: str


def judge(
    series: Mapping[tuple[str, Key], Series],
    past: Iterable[Record],
    hosts: Mapping[str, str],
    accepted: Collection[str],
) -> Iterator[Judged]:
    """A finding for each node and hardware that differs. ``past``: records of earlier nights; ``hosts``: node -> host tonight;
    ``accepted``: hardware that a baseline has floors for.
    """
    past = sorted((record for record in past if _node(record.node)), key=lambda record: record.night)
    known = {_own(hardware) for hardware in accepted}
    changed = _changed(series, past)
    tonight, earlier = _by_node(series), _earlier(past)
    for (node, hardware), entry in sorted(tonight.items()):
        had = [
            *earlier.get(node, ()),
            *(_Past(hardware=kind, when="in another run", host="") for name, kind in tonight if name == node),
        ]
        finding: tuple[Outcome, str] | None = None
        if _own(hardware) not in known:
            finding = _judge_loss(hardware, had, hosts.get(node, "")) or _judge_floors(hardware, had, known)
        if finding is None and (old := changed.get((node, hardware))):
            finding = "warn", f"its hardware changed from {old} to {hardware}; its history begins anew"
        if finding is not None:
            judged = Finding(gate=GATE, outcome=finding[0], node=node, text=f"{node}: {finding[1]}")
            yield Judged(
                finding=judged, state=judged.outcome, cell=entry.cells[0], key=entry.key, reference="the nights before"
            )


def _earlier(past: Iterable[Record]) -> dict[str, dict[_Past, None]]:
    """Node -> the hardware that it had, in the order of nights."""
    nodes: dict[str, dict[_Past, None]] = {}
    for record in past:
        when = f"on {record.date or f'night {record.night}'}"
        had = _Past(hardware=record.key.hardware, when=when, host=record.suspects.get(HOST, ""))
        nodes.setdefault(_node(record.node), {})[had] = None
    return nodes


def _judge_loss(hardware: str, had: Sequence[_Past], host: str) -> tuple[Outcome, str] | None:
    """Less than the node had before on this host. Another host is another machine."""
    count = counts(hardware)
    for past in reversed(had):
        lost = [
            f"{count.get(part, 0):g} of {before:g} {part}"
            for part, before in counts(past.hardware).items() if count.get(part, 0) < before
        ]  # fmt: skip
        if lost and (not past.host or not host or past.host == host):
            text = f"has {', '.join(lost)}: its hardware was {past.hardware} {past.when}, and is {hardware}"
            return "fail", f"{text}; to accept this: ccbed baseline accept"
    return None


def _judge_floors(hardware: str, had: Sequence[_Past], known: Collection[str]) -> tuple[Outcome, str] | None:
    """Other hardware than the one for which the node had floors."""
    for past in reversed(had):
        if _own(past.hardware) in known:
            text = f"no baseline has floors for its hardware, {hardware}; {past.when} it had floors, as {past.hardware}"
            return "unknown", f"{text}; to accept this: ccbed baseline accept"
    return None


def _changed(series: Mapping[tuple[str, Key], Series], past: Iterable[Record]) -> dict[tuple[str, str], str]:
    """Node and hardware tonight -> its hardware in the last night that had the same figure, if that is another."""
    last: dict[tuple[str, str, str], tuple[int, set[str]]] = {}
    for record in past:
        identity = record.node, record.metric.name, record.key.parameters
        night, kinds = last.get(identity, (0, set()))
        last[identity] = record.night, {record.key.hardware} | (kinds if night == record.night else set())
    changes: dict[tuple[str, str], str] = {}
    for (name, key), entry in series.items():
        for label in entry.values:
            _, kinds = last.get((label, name, key.parameters), (0, set()))
            if _node(label) and kinds and key.hardware not in kinds:
                changes.setdefault((_node(label), key.hardware), min(kinds))
    return changes


def _by_node(series: Mapping[tuple[str, Key], Series]) -> dict[tuple[str, str], Series]:
    nodes: dict[tuple[str, str], Series] = {}
    for (_, key), entry in series.items():
        for label in entry.values:
            if _node(label):
                nodes.setdefault((_node(label), key.hardware), entry)
    return nodes


def _node(label: str) -> str:
    """The node of a figure of its own; empty for a link or a gang, whose hardware is that of several nodes."""
    return "" if "->" in label else label.partition(":")[0]


def _own(hardware: str) -> str:
    return _LAYOUT.sub("", hardware)


def counts(hardware: str) -> dict[str, float]:
    """Return what a node has of each part, from the description that ``hardware_key`` makes: GPUs by model, then CPUs, then memory."""
    parts = hardware.split(", ")
    counted = [float(match[1]) for part in parts if (match := _COUNT.fullmatch(part))]
    memory = [float(match[1]) for part in parts if (match := _MEMORY.fullmatch(part))]
    counts = {"GPUs": sum(counted[:-1]), "CPUs": counted[-1] if counted else 0.0, "GiB of memory": sum(memory)}
    return {part: count for part, count in counts.items() if count}
