"""Interpreters of process nodes: which Python and torch one has, and what it lacks to run keeper, agents and ranks."""

from __future__ import annotations

import json
import subprocess
import sys

from ..model import requirements
from ..model.bed import BedSpec
from ..model.frozen import dataclass
from ..model.requirements import HOST_PYTHON, HOST_TORCH, Requirement, version_text

#: Importing torch from a cold disk takes long.
LIMIT_S = 120.0
#: Runs on any Python 3, so that it can report one that is too old. With an argument it imports torch.
PROBE = """
import json, sys
facts = {"python": "%d.%d.%d" % sys.version_info[:3]}
if sys.version_info >= (3, 8):
    import importlib.util
    from importlib import metadata
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(name):
            try:
                facts[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                facts[name] = "0"
if sys.argv[1:] and "torch" in facts:
    try:
        import torch.distributed
        facts["torch"] = str(torch.__version__)
    except BaseException as error:
        facts["problem"] = "%s: %s" % (type(error).__name__, error)
print(json.dumps(facts))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The contents of one Python. ``torch``, ``numpy``: versions; empty if absent. ``problem``: why it, or its torch, does not run."""

    path: str
    python: str = ""
    torch: str = ""
    numpy: str = ""
    problem: str = ""


def path_of(bed: BedSpec) -> str:
    """The interpreter of the bed's process nodes: that of their specs, else this one."""
    return next((node.python for node in bed.nodes if node.python), sys.executable)


def probe(path: str, *, import_torch: bool = False) -> Interpreter:
    """Inspect an interpreter of this machine; takes some 50 ms, and seconds with ``import_torch``."""
    argv = [path, "-c", PROBE, *(["import"] if import_torch else [])]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False)
        facts = json.loads(done.stdout.strip().splitlines()[-1])
        return Interpreter(path=path, **{name: str(value) for name, value in facts.items()})
    except BlockingIOError:  # no process can start: that says nothing about the interpreter
        raise
    except OSError as error:
        return Interpreter(path=path, problem=error.strerror or str(error))
    except subprocess.TimeoutExpired:
        return Interpreter(path=path, problem=f"it did not respond within {LIMIT_S:.0f} s")
    except (ValueError, IndexError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Interpreter(path=path, problem=f"it is not a Python: exit code {done.returncode}, {last[:200]}")


def requirement(interpreter: Interpreter, *, named: bool) -> Requirement:
    """Return what the interpreter lacks, or its versions. ``named``: by ccbed_python; else it is that of ccbed itself."""
    problem = _problem(interpreter)
    if not problem:
        text = f"{interpreter.torch}, Python {interpreter.python}" + ("" if interpreter.numpy else ", no numpy")
        return Requirement.ok("torch", text)
    other = "set ccbed_python to the python of an environment that has torch"
    fix = other if named else f"pip install 'ccbed[local]'; or {other}"
    source = "ccbed_python " if named else ""
    return Requirement.fail("torch", f"{source}{interpreter.path}: {problem}", fix)


def _problem(interpreter: Interpreter) -> str:
    oldest, newest_missing = version_text(HOST_PYTHON), f"{version_text(HOST_TORCH)} or newer is needed"
    if not interpreter.python:
        return interpreter.problem
    if requirements.version(interpreter.python) < HOST_PYTHON:
        return f"Python {interpreter.python} is too old: {oldest} or newer is needed"
    if not interpreter.torch:
        return f"torch is not installed there: {newest_missing}"
    if interpreter.problem:
        return f"torch cannot be imported there: {interpreter.problem[:300]}"
    if requirements.version(interpreter.torch) < HOST_TORCH:
        return f"torch {interpreter.torch} is too old: {newest_missing}"
    return ""
