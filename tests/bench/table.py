"""Figures measured side by side in one run, their medians and ratios, and the table that is written down."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

OUT = Path(__file__).parent / "out"
ROUNDS = int(os.environ.get("CCBED_BENCH_ROUNDS", "5"))

Samples = Mapping[str, list[float]]


def report(name: str, line: str) -> None:
    """To the terminal and to a file, at once: a run that is cut off keeps what it has."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / name).open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def paired(cases: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds of each case, taken in turns, so that a busy moment of the machine hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, measure in cases.items():
            times[name].append(measure())
    return times


def median(samples: list[float]) -> float:
    return statistics.median(samples)


@dataclass(frozen=True, kw_only=True)
class Table:
    """``against``: the case that the others are compared with. ``notes``: one line each, below the table."""

    name: str
    title: str
    samples: Samples
    against: str
    notes: tuple[str, ...] = ()
    more: Mapping[str, object] = field(default_factory=dict)

    def ratio(self, case: str) -> float:
        """How many times faster than ``against``."""
        return median(self.samples[self.against]) / median(self.samples[case])

    def text(self) -> str:
        head = ["| what | median s | min | max | n | times faster |", "| --- | --- | --- | --- | --- | --- |"]
        return "\n".join([f"# {self.title}", "", *head, *map(self._row, self.samples), "", *self._foot()]) + "\n"

    def write(self) -> None:
        """``out/<name>.md`` for people, ``out/<name>.json`` with every sample."""
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{self.name}.md").write_text(self.text())
        document = {"title": self.title, "against": self.against, "samples": self.samples, "more": self.more}
        (OUT / f"{self.name}.json").write_text(json.dumps(document | {"machine": machine()}, indent=2) + "\n")
        print("\n" + self.text())

    def _row(self, case: str) -> str:
        taken = self.samples[case]
        figures = f"{median(taken):.4f} | {min(taken):.4f} | {max(taken):.4f} | {len(taken)}"
        return f"| {case} | {figures} | {'' if case == self.against else f'{self.ratio(case):.1f}'} |"

    def _foot(self) -> list[str]:
        facts = ", ".join(f"{name} {value}" for name, value in machine().items())
        return [*self.notes, *([""] if self.notes else []), f"Against: {self.against}. {facts}."]


def machine() -> dict[str, str]:
    return {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load": f"{os.getloadavg()[0]:.1f}",
    }
