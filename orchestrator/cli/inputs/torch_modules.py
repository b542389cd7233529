"""Ask a child process what a user's torch module is made of; torch stays out of this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ...model.errors import UsageError

_TIMEOUT_S = 180.0
_PACKAGE = Path(__file__).parents[3]


def facts(spec: str, shape: str | None, dtype: str | None) -> dict[str, Any]:
    """``spec``: module:factory, found from the current directory. Raises UsageError in one line."""
    argv = [sys.executable, "-m", "orchestrator.rank.reference_models.module_facts", spec, shape or "", dtype or ""]
    path = os.pathsep.join([str(_PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"--model {spec}: was not made within {_TIMEOUT_S:.0f} s") from None
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UsageError(f"--model {spec}: ended with exit code {done.returncode}: {last[:300]}") from None
    if "error" in found:
        raise UsageError(found["error"], hint=_alone(spec))
    return found


def _alone(spec: str) -> str:
    """What shows the same mistake with its traceback."""
    module, _, factory = spec.partition(":")
    if module.endswith(".py"):
        return f"a module is named without .py: --model {module.removesuffix('.py').replace('/', '.')}:{factory}"
    return f"see it alone: python -c 'from {module} import {factory}; {factory}()'"
