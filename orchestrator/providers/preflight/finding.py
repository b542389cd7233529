"""What preflight says: one thing that was tried, what came of it, and how to mend it; and what it has measured for the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...model.bed import BedSpec, BedStatus
from ...model.errors import InfrastructureError
from ...model.free_memory import FreeMemory
from ...model.plan import Gap, HostClock

MIB = 1024**2
#: Of /dev/shm, for each node.
SHM_NEEDED = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was tried: what came of it in a word or two, and what to do if it is not ok."""

    name: str
    outcome: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """``clocks``: boot id -> where that clock stands against this machine's. ``gaps``: who shares no directory.

    ``free_memory``: the memory that is free on each host, and in each container that may not have all of its host's.
    """

    findings: tuple[Finding, ...]
    clocks: Mapping[str, HostClock] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    free_memory: tuple[FreeMemory, ...] = ()


def told(findings: Iterable[Finding]) -> str:
    """A line for all of them: what is well in its own words, of the rest only the name: it has lines of its own."""
    said: dict[str, list[Finding]] = {}
    for one in findings:
        said.setdefault(one.name, []).append(one)
    return " · ".join(f"{name} {_word(of)}" for name, of in said.items())


def refused(findings: Iterable[Finding]) -> InfrastructureError | None:
    """What failed, each thing and each fix once; None where nothing did."""
    failed = [one for one in findings if one.outcome == "fail"]
    problems = dict.fromkeys(f"preflight: {one.name}: {one.text}" for one in failed)
    fixes = dict.fromkeys(one.fix for one in failed)
    return InfrastructureError(*problems, hint="\n".join(fixes)) if failed else None


def _word(of: list[Finding]) -> str:
    if all(one.outcome == "ok" for one in of):
        return ", ".join(one.text for one in of)
    return "FAILED" if any(one.outcome == "fail" for one in of) else "warned"


def ok(name: str, text: str = "ok") -> Finding:
    return Finding(name=name, outcome="ok", text=text)


def space(name: str, free: int, needed: int, fix: str) -> Finding:
    """Free bytes against what is needed."""
    text = f"{free / 1024**3:.0f} GiB" if free >= 1024**3 else f"{free / MIB:.0f} MiB"
    if free >= needed:
        return ok(name, f"{text} ok")
    return Finding(name=name, outcome="fail", text=f"{text} free, {needed // MIB} MiB needed", fix=fix)


def agent(bed: BedSpec, status: BedStatus) -> Finding:
    """The same archive everywhere, and no node by another spec than is wanted."""
    name = f"agent {bed.agent[:6]}"
    wrong = [node.name for node in bed.nodes if status.node(node.name).spec_hash != node.hash]
    if status.keeper_hash == bed.agent and not wrong:
        return Finding(name=name, outcome="ok", text="on all ok")
    who = ", ".join(wrong) or "keeper"
    return Finding(name=name, outcome="fail", text=f"not on {who}", fix=f"ccbed up {bed.inventory}")
