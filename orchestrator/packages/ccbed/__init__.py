"""ccbed for Python programs, notebooks and pytest: bring a bed up, run trials on it, judge bundles again.

    from ccbed import Bed, run

    with Bed.up("inventories/local.yml") as bed:
        print(run("dp-ring", bed=bed, fail_node=2).require_pass().sentence)

The names are those of ``orchestrator.api``, which has the documentation. It is loaded when the first of them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.api import (
        Bed,
        CcbedError,
        FailedError,
        InfrastructureError,
        Interrupted,
        Outcome,
        Result,
        Rung,
        Trial,
        UnknownError,
        UsageError,
        Verdict,
        check,
        run,
    )

__all__ = [
    "Bed", "CcbedError", "FailedError", "InfrastructureError", "Interrupted", "Outcome", "Result", "Rung", "Trial", "UnknownError",
    "UsageError", "Verdict", "check", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator import api

    value = globals()[name] = getattr(api, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
