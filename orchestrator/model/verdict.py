"""A checker's answer, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from .frozen import dataclass, field

#: ``skipped``: not checked, for a stated reason that the run was asked for; it does not alter the exit code.
Outcome = Literal["pass", "fail", "unknown", "skipped"]
#: Of a rung; ``not asked``: no check of it judged this run.
State = Literal["holds", "does not hold", "unknown", "not asked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``text`` is one short line for people; ``evidence`` names event numbers (``seq``) and figures."""

    check: str
    outcome: Outcome
    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A step of the ladder of a training: ``survived``, ``resumed whole`` or ``exact``.

    ``text``: what shows the state; ``fix``: one line of advice for the worst part that was lost; ``checks``: outcome of each of its
    checks; ``lost``, ``accepted``: part of the state -> how it was lost, the worst loss first.
    """

    name: str
    state: State
    text: str
    fix: str = ""
    checks: Mapping[str, Outcome] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    accepted: Mapping[str, str] = field(default_factory=dict)
