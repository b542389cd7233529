"""A checker's answer, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from .frozen import dataclass, field

#: ``skipped``: not checked, for a stated reason that the run was asked for; it does not alter the exit code.
Outcome = Literal["pass", "fail", "unknown", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``text`` is one short line for people; ``evidence`` names event numbers (``seq``) and figures."""

    check: str
    outcome: Outcome
    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
