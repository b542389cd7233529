"""Bundles and nights in the format that ccbed writes, made of chosen figures: no run is needed to judge them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.model import codec
from orchestrator.model.plan import Plan, PlanNode
from orchestrator.model.trial import Trial, World
from orchestrator.model.verdict import Verdict
from orchestrator.nightly import night_files
from orchestrator.nightly.suite import RUNS, Cell, Night, Row, Suite
from orchestrator.store import bundle, paths, seal

FACTS: Mapping[str, Any] = {
    "cpu": "Xeon", "cores": 64, "memory_mib": 515_000, "gpus": ["H100"] * 8, "driver": "580.159", "kernel": "6.1", "torch": "2.13",
}  # fmt: skip
#: The history of a run, as far as a record needs it.
END = {
    "seq": 1, "t": 1.0, "type": "note", "f": "run.end", "at": {"boot": "b", "mono": 1.0, "wall": 1.0},
    "source": {"writer": "ctl", "n": 1}, "value": {"outcome": "finished", "reason": "", "kind": ""},
}  # fmt: skip


def probe_done(number: int, node: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "seq": number, "t": 1.0, "type": "note", "f": "probe.done", "node": node, "epoch": 0,
        "at": {"boot": "b", "mono": 1.0, "wall": 1.0},
        "source": {"node": node, "incarnation": "i", "writer": "rank 0", "n": number}, "value": {"rank": number - 1, **value},
    }  # fmt: skip


def figure(metric: str, value: float | str, unit: str = "s", better: str = "lower", **more: Any) -> dict[str, Any]:
    """A line of ``metrics.jsonl``."""
    return {"metric": metric, "value": value, "unit": unit, "better": better, **more}


def write_bundle(
    directory: Path, figures: Iterable[Mapping[str, Any]], *, trial: str = "probe", workload: str = "node-probe",
    nodes: Sequence[str] = ("n0", "n1"), facts: Mapping[str, Mapping[str, Any]] | None = None, reason: str = "by hand",
    outcome: str = "pass", params: Mapping[str, Any] | None = None, ranks_per_node: int = 1, hosts: Mapping[str, str] | None = None,
    device: str = "",
) -> Path:  # fmt: skip
    """A sealed bundle with these figures. ``facts``: node -> what differs from ``FACTS``; ``device``: what torch calls their GPUs."""
    world = World(nodes=len(nodes), ranks_per_node=ranks_per_node)
    known = {
        name: PlanNode(
            name=name, role="node", incarnation="i", ordinal=1, pid=1, address="10.0.0.1", interface="eth0", directory="/d",
            host=(hosts or {}).get(name, f"host-{name}"),
        )
        for name in nodes
    }  # fmt: skip
    plan = Plan(
        run=directory.name, bed="lab", slots=tuple(nodes), spares=(), nodes=known, policy=("none",), backend="gloo", payload="",
        checkpoints="",
    )  # fmt: skip
    documents = {
        bundle.TRIAL: codec.plain(Trial(name=trial, workload=workload, params=params or {"size": 1024}, world=world)),
        bundle.PLAN: codec.plain(plan),
        bundle.BUNDLE: bundle.describe(
            run=directory.name, version="0.1.0", command="ccbed run", reason=reason, bed="lab"
        ),
        bundle.FINGERPRINT: {"torch": "2.13", "code": "c0de" * 16, "backend": "gloo", "threads": 1, "data": ""},
        bundle.VERDICTS: codec.plain((Verdict(check="finished", outcome=outcome, text="as planned"),)),  # type: ignore[arg-type]
    }
    for name in nodes:
        documents[f"nodes/{name}/system.json"] = {"node": name, **FACTS, **(facts or {}).get(name, {})}
    for path, document in documents.items():
        paths.write_json(directory / path, document)
    lines = "".join(json.dumps({"trial": trial, "rep": 0, **line}) + "\n" for line in figures)
    paths.write(directory / "metrics.jsonl", lines.encode())
    probes = [
        probe_done(number, node, {"probe": "gemm", "facts": {"gemm device": device}})
        for number, node in enumerate(nodes, start=2) if device
    ]  # fmt: skip
    paths.write(directory / bundle.HISTORY, "".join(json.dumps(event) + "\n" for event in (*probes, END)).encode())
    seal.write(directory, seal.MANIFEST, seal.evidence(directory))
    seal.write(directory, seal.DERIVED, [bundle.VERDICTS])
    return directory


def write_night(
    runs: Path, number: int, bundles: Mapping[str, Sequence[Iterable[Mapping[str, Any]]]], *, cells: Sequence[Cell] = (),
    rows: Sequence[Row] = (), again: Mapping[str, Sequence[Iterable[Mapping[str, Any]]]] | None = None, **options: Any,
) -> Path:  # fmt: skip
    """A closed night. ``bundles``: cell -> the figures of each repeat; ``rows``: further rows; ``again``: cell -> the figures of second
    measurements; ``options``: of ``write_bundle``.
    """
    defined = {cell.name: cell for cell in cells}
    chosen = tuple(
        dataclasses.replace(defined.get(name, Cell(name=name, trial="probe")), repeats=len(repeats))
        for name, repeats in bundles.items()
    ) + tuple(cell for cell in cells if cell.name not in bundles)
    day = f"2026-{1 + (number - 1) // 28:02d}-{1 + (number - 1) % 28:02d}"
    nodes, hosts = options.get("nodes", ("n0", "n1")), dict(options.get("hosts") or {})
    night = Night(
        name=f"{day}T02-00-00Z-night-standard-{number:04x}", suite=Suite(name="standard", cells=chosen, text="suite: standard\n"),
        bed="lab", provider="ssh", hosts={name: f"host-{name}" for name in nodes} | hosts, number=number, started=f"{day}T02:00:00Z",
        order=tuple(cell.name for cell in chosen), command="ccbed nightly", ccbed="0.1.0",
    )  # fmt: skip
    runs.mkdir(parents=True, exist_ok=True)
    directory = runs / night.name
    night_files.write_night(directory, night)
    with night_files.Journal(directory) as journal:
        second = [
            (cell, 90 + repeat, figures)
            for cell, repeats in (again or {}).items()
            for repeat, figures in enumerate(repeats)
        ]
        for cell, repeats in bundles.items():
            for repeat, figures in enumerate(repeats):
                run = f"{day}T02-{repeat:02d}-00Z-probe-{len(journal.rows):04x}"
                reason = night_files.reason(night.name, cell, repeat)
                write_bundle(directory / RUNS / run, figures, reason=reason, **options)
                journal.append(Row(cell=cell, repeat=repeat, state="passed", run=run, exit=0, duration_s=1.0))
        for cell, repeat, figures in second:
            run = f"{day}T03-00-00Z-probe-{len(journal.rows):04x}"
            reason = night_files.reason(night.name, cell, repeat)
            write_bundle(directory / RUNS / run, figures, reason=reason, **options)
            journal.append(Row(cell=cell, repeat=repeat, state="passed", run=run, exit=0, duration_s=1.0, again="all"))
        for row in rows:
            journal.append(row)
    night_files.close(directory)
    return directory
