"""The acceptance certificate of a cluster: each figure of every node, what it was compared with and its limit, and what was not checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model import codec, errors
from ...model.errors import UsageError
from ...reports.summary import table_lines
from ...store import paths, seal
from .. import night_files
from ..judging import floor_limits, shipped_floors
from ..judging.night import NODE, read_runs
from ..night_judgement import FLEET, Judged, NightJudgement
from ..run_record import nodes_of, versions_of
from ..suite import FINDINGS, Night
from . import figure_units
from .night_table import ORDER

DOCUMENT, SUMMARY, SEAL = "certificate.json", "certificate.md", "certificate-sha256.txt"
_WORDS = {"pass": "ACCEPTED", "warn": "ACCEPTED WITH SUSPECTS", "fail": "REJECTED", "unknown": "NOT DECIDED"}
_NOTHING = "nothing"


def write(directory: Path) -> dict[str, Any]:
    """Write the certificate of a night into its directory, as JSON and Markdown, with checksums of both and of what they rest on.

    Raises UsageError for a night that was not judged.
    """
    night, judgement = night_files.read_night(directory), night_files.read_judgement(directory)
    if judgement is None:
        raise UsageError(f"{directory}: the night was not judged yet", hint=f"ccbed nightly --resume {directory.name}")
    rows = night_files.read_rows(directory)
    runs, notes = read_runs(directory, rows, night)
    hardware = {node: known for _, record in runs for node, known in record.hardware.items() if known}
    versions = {node: versions_of(record.suspects, node) for _, record in runs for node in record.suspects}
    without_floor = sorted(set(night.hosts) - _with_floor(judgement))
    outcome, code = _decide(night, judgement, without_floor)
    figures = [judged for judged in judgement.findings if judged.compared and judged.finding.gate != FLEET]
    figures.sort(key=lambda judged: ORDER.index(judged.state))
    document = {
        "format": 2, "decision": _WORDS[outcome], "outcome": outcome, "exit": code,
        "bed": night.bed, "provider": night.provider, "date": night.started, "ccbed": night.ccbed, "night": night.name,
        "suite": night.suite.name, "repeats": dict(Counter(row.state for row in rows)),
        "nodes": [
            {
                "node": node, "host": host, "hardware": hardware.get(node, "not known"), "versions": versions.get(node, {}),
                "outcome": _outcome(night, judgement, node, without_floor) if node in hardware else "not measured",
            }
            for node, host in sorted(night.hosts.items())
        ],
        "figures": [{**_figure(judged), "value": codec.plain(judged.value)} for judged in figures],
        "findings": [
            {"gate": judged.finding.gate, "state": judged.state, "text": judged.finding.text, "runs": list(judged.runs)}
            for judged in judgement.findings if not judged.compared
        ],
        "not_checked": list(_not_checked(night, judgement, hardware, without_floor)),
        "notes": list(dict.fromkeys((*judgement.notes, *notes))),
    }  # fmt: skip
    paths.write_json(directory / DOCUMENT, document)
    paths.write(directory / SUMMARY, summarise(document).encode())
    names = [
        DOCUMENT,
        SUMMARY,
        FINDINGS,
        seal.MANIFEST,
        *(f"runs/{row.run}/{seal.MANIFEST}" for row in rows if row.run),
    ]
    seal.write(directory, SEAL, [name for name in names if (directory / name).is_file()])
    return document


def _with_floor(judgement: NightJudgement) -> set[str]:
    """The nodes of which a figure was compared with a floor. Limits that ccbed ships count where a node has met all that it has, those
    of compute and of memory among them; only they warn.
    """
    known: dict[str, set[str]] = {}
    for judged in judgement.findings:
        ends, is_floor = nodes_of(judged.finding.node or ""), judged.finding.gate == floor_limits.GATE
        if is_floor and len(ends) == 1 and judged.state != "unknown":
            kind = judged.finding.metric.split()[0] if shipped_floors.is_met(judged) else "floor"
            known.setdefault(ends[0], set()).add("missed" if judged.state == "warn" else kind)
    return {node for node, of in known.items() if "floor" in of or (of >= {"gemm", "memory"} and "missed" not in of)}


def _decide(night: Night, judgement: NightJudgement, without_floor: Sequence[str]) -> tuple[str, int]:
    """Outcome and exit code. Without a floor for every node nothing says what its hardware must reach: all peers may be slow together.

    Failures of a node in quarantine, and of a ticket, are expected, and of a lost or drained node nothing is known, so that a cluster
    with one is not accepted.
    """
    is_doubtful = any(judged.state == "xfail" or judged.finding.gate == NODE for judged in judgement.findings)
    is_doubtful = is_doubtful or bool(night.quarantined or night.drained or without_floor)
    if judgement.outcome in ("pass", "warn") and is_doubtful:
        return "unknown", errors.EXIT_UNKNOWN
    return judgement.outcome, judgement.exit


def _outcome(night: Night, judgement: NightJudgement, node: str, without_floor: Sequence[str]) -> str:
    """The worst state of the node's own figures."""
    if node in night.quarantined:
        return "set aside"
    states = {
        judged.state
        for judged in judgement.findings
        if judged.is_counted and nodes_of(judged.finding.node or "") == (node,)
    }
    worst = next((state for state in ("xpass", "fail", "unknown", "xfail", "warn", "pass") if state in states), "pass")
    return "not judged" if worst == "pass" and node in without_floor else worst


def _figure(judged: Judged) -> dict[str, str]:
    """``limit``: in percent of what it was compared with; empty where it was compared with nothing, or with a floor."""
    compared = judged.compared
    assert compared is not None
    is_known = compared.excess is not None or judged.finding.gate == floor_limits.GATE
    return {
        "metric": figure_units.name(judged.finding.metric), "of": judged.finding.node or "all nodes",
        "measured": "" if judged.value is None else figure_units.quantity(judged.value, judged.unit), "state": judged.state,
        "compared_with": judged.reference if is_known else _NOTHING,
        "reference": figure_units.quantity(compared.reference, judged.unit) if is_known and compared.reference is not None else "",
        "limit": figure_units.limit(compared.limit) if is_known and compared.limit else "",
        "change": figure_units.change(compared.change, judged.unit) if compared.change is not None else "", "text": judged.finding.text,
    }  # fmt: skip


def _not_checked(
    night: Night, judgement: NightJudgement, hardware: Mapping[str, str], without_floor: Sequence[str]
) -> Iterator[str]:
    """Yield what a reader might take for checked."""
    for kind in sorted({hardware[node] for node in without_floor if node in hardware}):
        nodes = ", ".join(node for node in without_floor if hardware.get(node) == kind)
        yield f"floors: none for {nodes} ({kind}); ccbed baseline accept writes them"
    for left_out in (night.quarantined, night.drained):
        yield from (f"{node} {reason}" for node, reason in sorted(left_out.items()))
    yield from dict.fromkeys(
        f"{judged.finding.gate}: {judged.finding.text}" for judged in judgement.findings
        if judged.state == "unknown" and not judged.is_counted and judged.finding.gate in ("pairs", NODE)
    )  # fmt: skip
    yield from (f"{node}: took part in no run" for node in sorted(night.hosts) if node not in hardware)
    yield "change over time: a certificate is of one day; ccbed nightly --record compares nights"


def summarise(document: Mapping[str, Any]) -> str:
    findings = [finding for finding in document["findings"] if finding["state"] != "pass"]
    parts = [
        f"# Acceptance of {document['bed']}: {document['decision']}\n",
        f"{document['date']}, {document['provider']} provider, ccbed {document['ccbed']}, evidence in {document['night']}.\n",
        *_table(document["nodes"], ("node", "host", "hardware", "outcome")),
        "## Figures\n",
        *_table(document["figures"], ("metric", "of", "measured", "state", "change", "limit", "reference", "compared_with")),
        "## Findings\n",
        *(f"- {finding['state']}: {finding['text']}" for finding in findings),
        f"- {len(document['findings']) - len(findings)} others pass",
        "\n## Not checked\n",
        *(f"- {text}" for text in document["not_checked"]),
        *(["\n## Notes\n", *(f"- {text}" for text in document["notes"])] if document["notes"] else []),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _table(rows: Iterable[Mapping[str, str]], columns: Sequence[str]) -> Iterator[str]:
    yield from table_lines(
        [column.replace("_", " ") for column in columns], [[row[name] for name in columns] for row in rows]
    )
