"""Check the node on which ccbed runs, within a minute, and drain it in Slurm if it is defective."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ...app.requests import baselines_directory, option
from ...app.session import Session
from ...core.documents import decoder
from ...model.errors import EXIT_FINDING, EXIT_PASS, EXIT_UNKNOWN, UsageError
from ...model.events import ProbeDone
from ...model.frozen import dataclass, replace
from ...node.agent import system_facts
from .. import baselines, hardware_key, node_check
from ..node_check import Checked

#: Slurm ends a health check after 60 s.
LIMIT_S = 50.0
PROBES = ("gpu-health", "gemm", "memory")
#: A machine with more runnable processes for each of its CPUs may be too slow for any probe.
BUSY_LOAD = 2.0
#: Slurm's limit of a drain reason is longer; ``sinfo -R`` shows the first words.
REASON = 200
_CODES = {"pass": EXIT_PASS, "fail": EXIT_FINDING, "unknown": EXIT_UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """The request of `ccbed probe`."""

    prolog: bool = option(
        False,
        "For Slurm's Prolog and HealthCheckProgram, and LBNL NHC: exit 1 only for a defective node, and drain it with the reason.",
    )
    probes: tuple[str, ...] = option(
        PROBES, "What is probed: gemm, memory, disk, copies, sdc, cpu, gpu-health.", splits=True
    )
    baselines: Path = baselines_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProbed:
    """``drained``: what was done in Slurm, empty without."""

    checked: Checked
    hardware: str
    code: int
    took_s: float
    drained: str = ""

    @property
    def document(self) -> object:
        checked = self.checked
        return {
            "outcome": checked.outcome, "reason": checked.reason, "hardware": self.hardware, "exit": self.code,
            "took_s": round(self.took_s, 1), "drained": self.drained,
        }  # fmt: skip


def run(_session: Session, request: ProbeRequest) -> NodeProbed:
    """Probe, and probe again what is worse than its floor. Raises UsageError."""
    begin = time.monotonic()
    known = baselines.read_all(request.baselines)
    hardware = hardware_key.describe_node(system_facts.collect_facts({}))
    checked = _check(request.probes, hardware, known, begin + LIMIT_S)
    code = _CODES[checked.outcome]
    drained = ""
    if request.prolog:
        code = EXIT_FINDING if checked.outcome == "fail" else EXIT_PASS
        drained = _drain(checked.reason) if code else ""
    return NodeProbed(checked=checked, hardware=hardware, code=code, took_s=time.monotonic() - begin, drained=drained)


def _check(probes: Sequence[str], hardware: str, known: Sequence[baselines.Baseline], end: float) -> Checked:
    threads = node_check.threads_of(node_check.floors_of(hardware, known))
    first = node_check.judge(hardware, known, _measure(probes, threads, end))
    if not first.suspects:
        return first
    second = node_check.judge(hardware, known, _measure(first.suspects, threads, end))
    if second.outcome == "fail":
        return replace(second, reason=f"{second.reason}; twice")
    return Checked(outcome="unknown", reason=f"{first.reason}; not again: {second.reason}")


def _measure(probes: Sequence[str], threads: int, end: float) -> tuple[ProbeDone, ...]:
    """Return what the probes found until they ended. One that hangs is an error, unless the machine is overloaded. Raises UsageError."""
    with tempfile.TemporaryDirectory(prefix="ccbed-probe-") as directory:
        argv = [
            sys.executable,
            "-m",
            "orchestrator.rank.node_probe.probe_run",
            ",".join(probes),
            str(threads),
            directory,
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        try:
            output, errors = process.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, errors = process.communicate()
            results = _results(output)
            hung = next((name for name in probes if name not in {done.probe for done in results}), "")
            error = None if _is_overloaded() else f"did not end within {LIMIT_S:g} s"
            return (*results, ProbeDone(rank=0, probe=hung, error=error, took_s=LIMIT_S))
    if process.returncode:
        last = (errors.strip() or "no output").splitlines()[-1]
        raise UsageError(
            f"the probes cannot run on this node: {last}", hint="ccbed needs torch in its Python environment"
        )
    return _results(output)


def _results(output: str) -> tuple[ProbeDone, ...]:
    return tuple(
        decoder.convert(ProbeDone, decoder.parse(line.encode())) for line in output.splitlines() if line.endswith("}")
    )


def _is_overloaded() -> bool:
    return os.getloadavg()[0] > BUSY_LOAD * (os.cpu_count() or 1)


def _drain(reason: str) -> str:
    """Drain this node, if it is one of Slurm's. A node that slurmctld drains for a failed prolog keeps the reason that it has."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return ""
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    argv = [scontrol, "update", f"nodename={node}", "state=drain", f"reason={f'ccbed: {reason}'[:REASON]}"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=5.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{node} cannot be drained: {error}"
    return f"{node} cannot be drained: {' '.join(done.stderr.split())}" if done.returncode else f"{node} is drained"
