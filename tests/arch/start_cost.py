"""What the start of a command costs: the modules that its process imports, and its CPU time."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .walls import Measured

#: The Python whose standard library the limits count. On another one, its modules are left out, and so a wall is never broken by it.
PYTHON = "3.11"
#: Imports modules of the standard library only, as many as ccbed does: how fast this machine imports at this moment.
YARDSTICK = (
    "import argparse, concurrent.futures, configparser, csv, decimal, difflib, email.mime.multipart, fractions, http.server, "
    "logging.config, pydoc, smtplib, statistics, tarfile, unittest, xml.dom.minidom, xmlrpc.client, zipfile"
)
#: CPU ms of the yardstick on the machine to which the limits apply; values are scaled to it, so that a slow or busy machine
#: breaks no wall.
YARDSTICK_MS = 200
#: Rounds of measurements: at least, and at most, while a value is above its limit.
ROUNDS = (3, 12)
Costs = Mapping[str, Measured]
_IMPORT = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", re.MULTILINE)


def python(*args: str) -> list[str]:
    return [sys.executable, *args]


def imported(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> frozenset[str]:
    """The modules that a Python program tries to import, without those of each start of this interpreter."""
    return _attempted(argv, environment, cwd) - _attempted(python("-c", "pass"), environment, cwd)


def _attempted(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> frozenset[str]:
    command = [argv[0], "-X", "importtime", *argv[1:]]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return frozenset(_IMPORT.findall(done.stderr))


def modules(names: frozenset[str], version: str = platform.python_version()) -> Measured:
    """How many; the packages that have most of them."""
    counted = names if version.startswith(f"{PYTHON}.") else {name for name in names if not _is_standard(name)}
    packages = Counter("the standard library" if _is_standard(name) else name.split(".")[0] for name in counted)
    return Measured(value=len(counted), where=", ".join(f"{name} {n}" for name, n in packages.most_common()))


def _is_standard(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in sys.stdlib_module_names


def cpu_s(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> float:
    """Seconds of CPU of one process and of those that it waited for, in user mode and in the kernel."""
    silent = subprocess.DEVNULL
    process = subprocess.Popen(argv, env=environment, cwd=cwd, stdout=silent, stderr=silent)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, argv
    return usage.ru_utime + usage.ru_stime


def cpu(
    commands: Mapping[str, Sequence[str]], limits: Mapping[str, int], measure: Callable[[Sequence[str]], float]
) -> Costs:
    """CPU ms of each command, measured in turns with the yardstick until all are within their limits."""
    samples: dict[str, list[float]] = {name: [] for name in commands}
    yardstick: list[float] = []
    costs: Costs = {}
    for count in range(1, ROUNDS[1] + 1):
        yardstick.append(measure(python("-c", YARDSTICK)))
        for name, argv in commands.items():
            samples[name].append(measure(argv))
        costs = {name: scaled(taken, yardstick) for name, taken in samples.items()}
        if count >= ROUNDS[0] and all(costs[name].value <= limits[name] for name in commands):
            break
    return costs


def scaled(samples_s: Sequence[float], yardstick_s: Sequence[float]) -> Measured:
    """CPU ms by the quickest sample, on the machine to which the limits apply."""
    speed = YARDSTICK_MS / 1000 / min(yardstick_s)
    quickest_ms = min(samples_s) * 1000
    where = f"quickest of {len(samples_s)}: {quickest_ms:.0f} ms, times {speed:.2f} for the speed of this machine"
    return Measured(value=round(quickest_ms * speed), where=where)
