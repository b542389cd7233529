"""The acceptance certificate of a cluster: what was measured on every node, against which floors, and what was not checked."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model import codec, errors
from ...model.errors import UsageError
from ...store import paths, seal
from .. import night_files
from ..night_judgement import FLEET, Judged, NightJudgement
from ..run_record import RunRecord, nodes_of, versions_of
from ..suite import FINDINGS, Night
from . import figures, floors
from .night import NODE, read_runs

DOCUMENT, SUMMARY, SEAL = "certificate.json", "certificate.md", "certificate-sha256.txt"
#: Gates that an acceptance cannot know: they need earlier nights.
_OF_HISTORY = (FLEET,)
#: Metrics without a floor that are named; the others are counted.
_NAMES = 8
_WORDS = {"pass": "ACCEPTED", "warn": "ACCEPTED WITH SUSPECTS", "fail": "REJECTED", "unknown": "NOT DECIDED"}


def write(directory: Path) -> dict[str, Any]:
    """Write the certificate of a night into its directory, as JSON and Markdown, and seal both with what they rest on.

    Raises UsageError for a night that was not judged.
    """
    night, judgement = night_files.read_night(directory), night_files.read_judgement(directory)
    if judgement is None:
        raise UsageError(f"{directory}: the night was not judged yet", hint=f"ccbed nightly --resume {directory.name}")
    rows = night_files.read_rows(directory)
    runs, notes = read_runs(directory, rows, night)
    outcome, code = _decide(night, judgement)
    document = {
        "format": 1, "decision": _WORDS[outcome], "outcome": outcome, "exit": code,
        "bed": night.bed, "provider": night.provider, "date": night.started, "ccbed": night.ccbed, "night": night.name,
        "suite": night.suite.name, "repeats": dict(Counter(row.state for row in rows)),
        "nodes": [_node(node, night, judgement, runs) for node in sorted(night.hosts)],
        "fabric": [_finding(judged) for judged in judgement.findings if _is_of_fabric(judged)],
        "not_checked": list(_not_checked(night, judgement, runs)), "notes": list(dict.fromkeys((*judgement.notes, *notes))),
    }  # fmt: skip
    paths.write_json(directory / DOCUMENT, document)
    paths.write(directory / SUMMARY, summarise(document).encode())
    sealed = [
        DOCUMENT,
        SUMMARY,
        FINDINGS,
        seal.MANIFEST,
        *(f"runs/{row.run}/{seal.MANIFEST}" for row in rows if row.run),
    ]
    seal.write(directory, SEAL, [name for name in sealed if (directory / name).is_file()])
    return document


def _decide(night: Night, judgement: NightJudgement) -> tuple[str, int]:
    """Outcome and exit code. Without a floor for every node nothing says what its hardware must reach: all peers may be slow together.

    Failures of a node in quarantine, and of a ticket, are expected, and of a lost or drained node nothing is known, so that a cluster
    with one is not accepted.
    """
    is_doubtful = any(judged.state == "xfail" or judged.finding.gate == NODE for judged in judgement.findings)
    is_doubtful = is_doubtful or bool(night.quarantined or night.drained)
    if judgement.outcome in ("pass", "warn") and (is_doubtful or _without_floor(night, judgement)):
        return "unknown", errors.EXIT_UNKNOWN
    return judgement.outcome, judgement.exit


def _without_floor(night: Night, judgement: NightJudgement) -> list[str]:
    """The nodes of which no figure was compared with a floor."""
    judged_nodes = {
        node for judged in judgement.findings if judged.finding.gate == floors.GATE and judged.state != "unknown"
        for node in nodes_of(judged.finding.node or "") if _is_about(judged, node)
    }  # fmt: skip
    return sorted(set(night.hosts) - judged_nodes)


def _node(node: str, night: Night, judgement: NightJudgement, runs: Sequence[tuple[str, RunRecord]]) -> object:
    hardware = _hardware(node, runs)
    versions = next((versions_of(record.suspects, node) for _, record in runs if record.suspects.get(node)), {})
    findings = [
        judged for judged in judgement.findings if _is_about(judged, node) and judged.finding.gate not in _OF_HISTORY
    ]
    outcome = "in quarantine" if node in night.quarantined else _worst(findings)
    if outcome == "pass" and node in _without_floor(night, judgement):
        outcome = "not judged"
    return {
        "node": node, "host": night.hosts[node], "hardware": hardware or "not known", "versions": versions,
        "outcome": outcome if hardware else "not measured", "figures": list(_figures(node, runs)),
        "findings": [_finding(judged) for judged in findings],
    }  # fmt: skip


def _hardware(node: str, runs: Sequence[tuple[str, RunRecord]]) -> str:
    return next((record.hardware[node] for _, record in runs if record.hardware.get(node)), "")


def _figures(node: str, runs: Sequence[tuple[str, RunRecord]]) -> Iterable[object]:
    """The medians of the node's own metrics, and of each of its ranks."""
    for entry in figures.collect(runs).values():
        for label, values in sorted(entry.values.items()):
            if nodes_of(label) == (node,) and values and figures.is_judged(entry.metric.name, entry.key):
                yield {
                    "metric": entry.metric.name, "of": label, "median": statistics.median(values), "least": min(values),
                    "greatest": max(values), "n": len(values), "unit": entry.metric.unit, "better": entry.metric.better,
                    **({"ceiling": entry.metric.ceiling} if entry.metric.ceiling is not None else {}),
                }  # fmt: skip


def _is_about(judged: Judged, node: str) -> bool:
    return nodes_of(judged.finding.node or "") == (node,)


def _is_of_fabric(judged: Judged) -> bool:
    """Of links, of the gang, of runs: whatever is not one node's."""
    return len(nodes_of(judged.finding.node or "")) != 1 and judged.finding.gate not in _OF_HISTORY


def _worst(findings: Iterable[Judged]) -> str:
    states = {judged.state for judged in findings if judged.is_counted}
    return next(
        (state for state in ("xpass", "fail", "unknown", "xfail", "warn", "pass") if state in states), "not judged"
    )


def _finding(judged: Judged) -> object:
    return {
        "gate": judged.finding.gate, "state": judged.state, "text": judged.finding.text, "reference": judged.reference,
        "culprits": list(judged.finding.culprits), "runs": list(judged.runs), "value": codec.plain(judged.value),
    }  # fmt: skip


def _not_checked(night: Night, judgement: NightJudgement, runs: Sequence[tuple[str, RunRecord]]) -> Iterable[str]:
    """What a reader might take for checked."""
    measured = {node for _, record in runs for node in record.hardware}
    by_hardware: dict[str, list[str]] = {}
    for node in _without_floor(night, judgement):
        if node in measured:
            by_hardware.setdefault(_hardware(node, runs) or "hardware that is not known", []).append(node)
    for hardware, nodes in sorted(by_hardware.items()):
        yield f"floors: none for {', '.join(nodes)} ({hardware}); ccbed baseline accept writes them"
    names = {name for name, key in figures.collect(runs) if figures.is_judged(name, key)}
    without = sorted(
        names - {judged.finding.metric for judged in judgement.findings if judged.finding.gate == floors.GATE}
    )
    if without and len(without) < len(names):
        more = f" and {len(without) - _NAMES} more" if len(without) > _NAMES else ""
        yield f"floors: none for {len(without)} of {len(names)} metrics: {', '.join(without[:_NAMES])}{more}"
    for left_out in (night.quarantined, night.drained):
        yield from (f"{node} {reason}" for node, reason in sorted(left_out.items()))
    unknown = [judged.finding for judged in judgement.findings if judged.state == "unknown" and not judged.is_counted]
    named = (f"{finding.gate}: {finding.text}" for finding in unknown if finding.gate in ("pairs", NODE))
    yield from dict.fromkeys(named)
    yield from (f"{node}: took part in no run" for node in sorted(night.hosts) if node not in measured)
    yield "change over time: a certificate is of one day; ccbed nightly --record compares nights"


def summarise(document: Mapping[str, Any]) -> str:
    head = [
        f"# Acceptance of {document['bed']}: {document['decision']}",
        "",
        f"{document['date']}, {document['provider']} provider, ccbed {document['ccbed']}, evidence in {document['night']}.",
        "",
        "| node | host | hardware | result |",
        "|---|---|---|---|",
    ]
    nodes = [
        f"| {node['node']} | {node['host']} | {node['hardware']} | {node['outcome']} |" for node in document["nodes"]
    ]
    findings = [finding for node in document["nodes"] for finding in node["findings"]] + list(document["fabric"])
    bad = [
        f"- {finding['state']}: {finding['text']}"
        for finding in findings
        if finding["state"] not in ("pass", "unknown")
    ]
    unknown = [f"- not known: {finding['text']}" for finding in findings if finding["state"] == "unknown"]
    passed = sum(finding["state"] == "pass" for finding in findings)
    checks = ["", "## Findings", "", *bad, *unknown, f"- {passed} checks pass"]
    missing = ["", "## Not checked", "", *(f"- {text}" for text in document["not_checked"])]
    notes = ["", "## Notes", "", *(f"- {text}" for text in document["notes"])] if document["notes"] else []
    return "\n".join([*head, *nodes, *checks, *missing, *notes, ""])
