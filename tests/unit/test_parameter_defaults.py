"""The defaults of workload parameters are pinned: a comparability key has only the parameters that differ from them.

An index that was filled before a default changed has keys by the old default, so that figures with different values would seem
comparable. A golden file for each workload has its defaults and the index revision since which they hold.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.model import codec
from orchestrator.nightly.index import database

from .golden import FOLDER

WORKLOADS = plugins.discover(()).workloads
ADVICE = """{workload}: the default of {names} changed or is gone, and the index would compare figures with different values.
1. Change database.VERSION of the index, with which the runs are read again.
2. Say in CHANGELOG.md that the history of this workload begins anew for runs with the other value.
3. Renew the golden file: CCBED_GOLDEN=write pytest tests/unit/test_parameter_defaults.py"""


def defaults(workload: str) -> dict[str, Any]:
    values: dict[str, Any] = codec.plain(WORKLOADS[workload].module.Params())
    return values


def problem(workload: str, pinned: Mapping[str, Any], values: Mapping[str, Any], head: str) -> str:
    """Why the defaults may not be pinned anew. An added parameter changes no key."""
    changed = sorted(name for name, value in pinned["defaults"].items() if name not in values or values[name] != value)
    if changed and pinned["since"] == head:
        return ADVICE.format(workload=workload, names=", ".join(changed))
    return ""


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_a_default_that_changes_needs_a_revision_of_the_index(workload: str) -> None:
    file = FOLDER / "defaults" / f"{workload}.json"
    values = defaults(workload)
    pinned = json.loads(file.read_text()) if file.exists() else {"since": "", "defaults": {}}
    text = problem(workload, pinned, values, database.VERSION)
    assert not text, text
    if os.environ.get("CCBED_GOLDEN") == "write" and values != pinned["defaults"]:
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"since": database.VERSION, "defaults": values}, indent=1, sort_keys=True) + "\n")
    pinned = json.loads(file.read_text())
    assert values == pinned["defaults"], f"{workload}: a parameter was added; CCBED_GOLDEN=write renews {file}"


def test_the_advice_comes_for_a_changed_and_a_removed_default_only() -> None:
    pinned = {"since": "r4", "defaults": {"steps": 60, "seed": 1}}
    assert problem("w", pinned, {"steps": 60, "seed": 1, "new": 2}, "r4") == ""
    assert "the default of steps changed" in problem("w", pinned, {"steps": 30, "seed": 1}, "r4")
    assert "the default of seed changed or is gone" in problem("w", pinned, {"steps": 60}, "r4")
    assert problem("w", pinned, {"steps": 30, "seed": 1}, "r5") == ""
