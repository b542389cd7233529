"""Judge the probes of one node before a job begins on it: reported defects, lost parts, figures beyond their floors. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ..model.events import ProbeDone
from ..model.frozen import dataclass
from .baselines import Baseline, Floor
from .judging.hardware import counts

#: Shares of the machine's CPUs from which figures beside other work are no evidence.
BUSY: Mapping[str, float] = {"cpu used by others": 0.1, "cpu stolen": 0.02, "cpu withheld": 0.02}
#: What a floor's parameters may name: other ones are of figures that this check does not take.
_PARAMETERS = {"backend", "ranks_per_node", "threads"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """``reason``: one line. ``suspects``: probes with a figure that a second measurement must confirm."""

    outcome: Literal["pass", "fail", "unknown"]
    reason: str
    suspects: tuple[str, ...] = ()


def floors_of(hardware: str, baselines: Iterable[Baseline]) -> tuple[Floor, ...]:
    """The floors of probes on this hardware that this check can apply."""
    return tuple(
        floor for baseline in baselines if baseline.hardware == hardware
        for floor in baseline.floors if floor.workload == "node-probe" and not floor.gang and _names(floor) <= _PARAMETERS
    )  # fmt: skip


def threads_of(floors: Iterable[Floor]) -> int:
    """The CPU threads with which the floors were measured; 0: not one number."""
    counts = {match[1] for floor in floors if (match := re.search(r"threads=(\d+)", floor.parameters))}
    return int(counts.pop()) if len(counts) == 1 else 0


def _names(floor: Floor) -> set[str]:
    return {word.partition("=")[0] for word in floor.parameters.split()}


def judge(hardware: str, baselines: Sequence[Baseline], results: Sequence[ProbeDone]) -> Checked:
    """A defect comes before a figure. Figures that were measured on a busy machine are not known."""
    problems = [text for done in results for text in done.problems or ()]
    problems += [f"probe {done.probe}: {done.error}" for done in results if done.error]
    if lost := _lost(hardware, baselines):
        problems.insert(0, lost)
    if problems:
        return Checked(outcome="fail", reason="; ".join(problems[:2]))
    floors = {floor.metric: floor for floor in floors_of(hardware, baselines)}
    if not floors:
        known = "; ".join(baseline.hardware for baseline in baselines)
        return Checked(
            outcome="unknown", reason=f"no floors for {hardware}" + (f" (baselines: {known})" if known else "")
        )
    busy, worse, count = list[str](), dict[str, str](), 0
    has_devices = any(done.rank for done in results)
    for done in results:
        figures = {figure.name: statistics.median(map(float, figure.values)) for figure in done.figures or ()}
        load = next((f"{name} {figures[name]:.0%}" for name, most in BUSY.items() if figures.get(name, 0.0) > most), "")
        judged = [floors[name] for name in figures if name in floors]
        count += len(judged)
        beyond = [floor for floor in judged if _is_beyond(figures[floor.metric], floor)]
        device = f" on device {done.rank}" if has_devices else ""
        texts = [f"{f.metric}{device} {figures[f.metric]:.4g} {f.unit}, floor {f.floor:.4g}" for f in beyond]
        if load:
            busy += [f"{text}; {load}" for text in texts]
        elif texts:
            worse.setdefault(done.probe, texts[0])
    if worse:
        return Checked(outcome="fail", reason="; ".join(list(worse.values())[:2]), suspects=tuple(worse))
    if busy:
        return Checked(outcome="unknown", reason=f"the machine is busy: {busy[0]}")
    if not count:
        return Checked(outcome="unknown", reason="no figure that was measured has a floor")
    return Checked(outcome="pass", reason=f"{count} figures meet their floors")


def _is_beyond(value: float, floor: Floor) -> bool:
    return value < floor.floor if floor.better == "higher" else value > floor.floor


def _lost(hardware: str, baselines: Iterable[Baseline]) -> str:
    """Parts that all known machines have more of than this one; empty if one of them has as few, or is of other parts."""
    now = counts(hardware)
    losses: list[str] = []
    for baseline in baselines:
        known = counts(baseline.hardware)
        less = [
            f"{now.get(part, 0):g} of {count:g} {part}" for part, count in known.items() if now.get(part, 0) < count
        ]
        if not less or not _is_same_model(hardware, baseline.hardware):
            return ""
        losses = losses or less
    return f"hardware is missing: {', '.join(losses)}" if losses else ""


def _is_same_model(hardware: str, known: str) -> bool:
    """Return whether each part that is there is of a model that the other machine has."""
    return _models(hardware) <= _models(known)


def _models(hardware: str) -> set[str]:
    return {match[1] for part in hardware.split(", ") if (match := re.fullmatch(r"[\d.]+x (.+)", part))}
