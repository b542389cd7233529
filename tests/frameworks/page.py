"""The page of the frameworks, rendered from the recorded results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "orchestrator" / "jobs" / "frameworks.md"
_HEAD = """# Frameworks

<!-- Written by `make test-frameworks`; do not edit. -->

A small job of each framework loses a node of four, right and resumed wrongly in the ways that its users report. Each job writes
its own record of the truth after every step; a verdict is right if it says what that record says.
`make test-frameworks FRAMEWORK=hf` runs a family again.

All families run on the CPU with gloo, on one torch. Not in the table: the asynchronous checkpoints of NVIDIA's resiliency extension,
which call CUDA (its local checkpoints are in it, with a class for tensors of the CPU), and Ray Train, which starts workers of its own.

| framework | versions | date | right | unknown | wrong |
|---|---|---|---|---|---|
"""


def rendered(results: Mapping[str, Mapping[str, Any]]) -> str:
    families: dict[str, list[str]] = {}
    for name in sorted(results):
        families.setdefault(name.partition(":")[0], []).append(name)
    return _HEAD + "".join(f"{_row(family, names, results)}\n" for family, names in families.items()) + _cells(results)


def _row(family: str, names: list[str], results: Mapping[str, Mapping[str, Any]]) -> str:
    counts = Counter(_kind(results[name]["result"]) for name in names)
    newest = max((results[name] for name in names), key=lambda row: str(row["date"]))
    versions = ", ".join(f"{package} {version}" for package, version in newest["versions"].items())
    return f"| {family} | {versions} | {newest['date']} | {counts['right']} | {counts['unknown']} | {counts['wrong']} |"


def _kind(result: str) -> str:
    return result if result in ("right", "unknown") else "wrong"


def _cells(results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["", "| job, options and fault | lost, by the job's own record | verdict | result |", "|---|---|---|---|"]
    for name, row in sorted(results.items()):
        verdict = row["said"].partition(";")[0]
        named = row["said"].partition("named: ")[2].partition(";")[0]
        lost = ", ".join(row["true"]) or "nothing"
        lines.append(
            f"| `{name.partition(': ')[2]}` | {lost} | {verdict}{'' if named in ('', 'nothing') else f': {named}'} | {row['result']} |"
        )
    return "\n".join(lines) + "\n"
