"""Ansible's command line programs: from the environment of this interpreter, run with a deadline."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..model.errors import UsageError
from ..model.frozen import dataclass

#: The same output for all users; a file that cannot be parsed is an error and no warning.
SETTINGS = {
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_FORCE_COLOR": "0",
    "ANSIBLE_DEPRECATION_WARNINGS": "0",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
    "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
    "LC_ALL": "C.UTF-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    code: int
    output: str
    errors: str


def find(name: str) -> str:
    """The program of the environment that ccbed runs in. Raises UsageError where Ansible is not installed."""
    program = Path(sys.executable).parent / name
    if not os.access(program, os.X_OK):
        raise UsageError(
            f"{name} is missing beside {sys.executable}", hint="pip install ansible-core, into ccbed's environment"
        )
    return str(program)


def run(name: str, arguments: Sequence[str], limit_s: float, *, about: str, stdin: str = "") -> ProgramResult:
    """Run a program. Raises UsageError if it is missing or does not end in time."""
    argv = [find(name), *arguments]
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env={**os.environ, **SETTINGS},
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{about}: {name} did not end within {limit_s:.0f} s") from None
    return ProgramResult(code=done.returncode, output=done.stdout, errors=done.stderr)
