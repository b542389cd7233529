"""`ccbed probe --prolog` on the real Slurm: a defective node runs no job, and is drained with the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.nightly import hardware_key
from orchestrator.node.agent import system_facts

from ...lab import slurm as lab_slurm
from ...lab.slurm import Slurm
from ...patience import until

pytestmark = pytest.mark.skipif(bool(lab_slurm.lack()), reason=lab_slurm.lack())
_BASELINE = """\
hardware: "{hardware}"
floors:
  - {{metric: gemm float32, floor: 1.0e-6, unit: TFLOP/s, better: higher, measured: 0.1, margin: 10%, n: 3, evidence: [],
     accepted: 2026-11-30, trial: gemm, workload: node-probe, parameters: backend=gloo}}
"""


def write_baseline(folder: Path, hardware: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "node.yml").write_text(_BASELINE.format(hardware=hardware))


def script(tmp_path: Path, baselines: Path) -> Path:
    """A prolog has no HOME, and no path of programs."""
    file = tmp_path / "prolog"
    command = f"{sys.executable} -m orchestrator probe --prolog --probes gpu-health,gemm --baselines {baselines}"
    root = Path(__file__).parents[3]
    file.write_text(f"#!/bin/sh\ncd {root} && {command} >>{tmp_path}/prolog.log 2>&1\n")
    file.chmod(0o755)
    return file


def reasons(slurm: Slurm) -> dict[str, str]:
    lines = slurm.run("sinfo", "--noheader", "--Node", "--format=%N|%E").splitlines()
    return dict(line.split("|", 1) for line in lines)


def test_a_job_runs_on_a_sound_node_and_a_node_that_lost_memory_is_drained_with_the_reason(tmp_path: Path) -> None:
    hardware = hardware_key.describe_node(system_facts.collect_facts({}))
    cpus, _, _ = hardware.partition(", ")
    baselines = tmp_path / "baselines"
    write_baseline(baselines, hardware)
    prolog = script(tmp_path, baselines)
    with lab_slurm.running(f"Prolog={prolog}\nPrologFlags=Alloc") as slurm:
        assert slurm.run("srun", "--nodes=1", "--nodelist=n1", "echo", "ran", timeout_s=300.0) == "ran\n"
        verdict = (tmp_path / "prolog.log").read_text()
        assert verdict.startswith(("PASS", "UNKNOWN")), (
            verdict
        )  # on a busy machine the probe is stopped before its figure
        write_baseline(baselines, f"{cpus}, 4096 GiB")
        job = slurm.run("sbatch", "--parsable", "--nodelist=n2", "--output=/dev/null", "--wrap", "true").strip()
        until(lambda: "drain" in slurm.node_states()["n2"])
        until(lambda: slurm.jobs()[int(job)] != "RUNNING")
        reason = reasons(slurm)["n2"]
        assert reason.startswith("ccbed: hardware is missing: ") and "of 4096 GiB of memory" in reason
        assert slurm.node_states()["n1"] == "idle"


def test_a_health_check_drains_a_defective_node(tmp_path: Path) -> None:
    """The other nodes are this machine, too, and are not checked."""
    hardware = hardware_key.describe_node(system_facts.collect_facts({}))
    baselines, begins = tmp_path / "baselines", tmp_path / "begins"
    write_baseline(baselines, f"{hardware.partition(', ')[0]}, 4096 GiB")
    check = tmp_path / "check"
    lines = (
        '[ -e {begins} ] && [ "$SLURMD_NODENAME" = n3 ] || exit 0',
        ". {begins}",
        f"exec {script(tmp_path, baselines)}",
    )
    check.write_text("\n".join(("#!/bin/sh", *lines)).format(begins=begins) + "\n")
    check.chmod(0o755)
    with lab_slurm.running(f"HealthCheckProgram={check}\nHealthCheckInterval=2") as slurm:
        begins.write_text(
            f"export SLURM_CONF={slurm.environment['SLURM_CONF']}\n"
        )  # of this Slurm: a health check has no such variable
        until(lambda: "drain" in slurm.node_states()["n3"])
        assert reasons(slurm)["n3"].startswith("ccbed: hardware is missing: ")
