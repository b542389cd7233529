"""One script under several systems, a node killed a few steps after the second checkpoint: when is every rank training again?

The script is gpt-ddp as it is shipped. torchft needs its own program (``programs/torchft_gpt.py``), and an interpreter with
torchft: ``CCBED_BENCH_TORCHFT=/path/to/python``; NVRx's ``ft_launcher`` beside ``CCBED_BENCH_NVRX=/path/to/python``.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orchestrator
from orchestrator.model.run import Run
from orchestrator.store import bundle
from orchestrator.views.training.worker_returns import Return, worker_returns

from . import table
from .bed import Bed

EXAMPLES = Path(orchestrator.__file__).parent / "jobs" / "examples"
PROGRAMS = Path(__file__).parent / "programs"
ROUNDS = int(os.environ.get("CCBED_BENCH_ROUNDS", "3"))
STEPS, LIMIT_S = "150", 240.0
#: Every node is a replica group of one worker; the lighthouse runs beside group 0.
TORCHFT = """sh -c 'if [ {{rank}} = 0 ]; then
{folder}/torchft_lighthouse --bind 0.0.0.0:{{master_port}} --min_replicas 1 --join_timeout_ms 1000 & fi;
export CCBED_EXAMPLES={examples} TORCHFT_LIGHTHOUSE=http://{{master_addr}}:{{master_port}};
export REPLICA_GROUP_ID={{rank}} NUM_REPLICA_GROUPS={{nnodes}};
exec {python} -m torch.distributed.run --standalone --max-restarts {{max_restarts}} --nproc-per-node {{nproc}} {{script}} {{args}}'"""
NVRX = """{folder}/ft_launcher --nnodes {{nnodes}} --nproc-per-node {{nproc}} --max-restarts {{max_restarts}}
--rdzv-backend c10d --rdzv-endpoint {{master_addr}}:{{master_port}} --rdzv-id {{run}} --rdzv-conf is_host={{is_host}}
--ignore-missing-fault-tol-cfg"""


@dataclass(frozen=True, kw_only=True)
class System:
    """``script``: as `ccbed run` takes it; ``launcher``: empty for ccbed's own warm ranks."""

    launcher: str = ""
    script: str = "example:gpt-ddp"


def systems() -> Mapping[str, System]:
    known = {
        "ccbed": System(),
        "torchrun": System(launcher="torchrun"),
        "torchrun-best": System(launcher="torchrun-best"),
    }
    if python := os.environ.get("CCBED_BENCH_NVRX"):
        known["ft_launcher"] = System(launcher=NVRX.format(folder=Path(python).parent))
    if python := os.environ.get("CCBED_BENCH_TORCHFT"):
        launcher = TORCHFT.format(folder=Path(python).parent, examples=EXAMPLES, python=python)
        known["torchft"] = System(launcher=launcher, script=str(PROGRAMS / "torchft_gpt.py"))
    return known


def test_a_lost_node_under_several_systems(bed: Bed, tmp_path: Path) -> None:
    columns, results = systems(), {name: list[Return]() for name in systems()}
    handles: dict[str, str] = {}
    for _ in range(ROUNDS):
        for name, system in columns.items():
            run = _measure(bed, system, tmp_path / "snapshot.pt")
            results[name].append(worker_returns(run)[0])
            handles[name] = Path(run.directory).name
    lines = [*_table(results), "", *(f"    {line}" for line in _compared(bed, handles).splitlines())]
    _write("\n".join(lines))
    own = [item.first_step_s for item in results["ccbed"]]
    assert None not in own, [item.reason for item in results["ccbed"]]
    best = [item.first_step_s for item in results["torchrun-best"] if item.first_step_s is not None]
    assert best and statistics.median(best) / statistics.median(filter(None, own)) >= 10


def _measure(bed: Bed, system: System, snapshot: Path) -> Run:
    snapshot.unlink(missing_ok=True)
    options = ["--fail-node", "2", "--no-reference", "--wall", f"{LIMIT_S - 40:g}s"]
    options += ["--launcher", system.launcher] if system.launcher else []
    script = ["--", "--steps", STEPS, "--checkpoint", str(snapshot)]
    bed.call("run", system.script, *options, *script, expect=None, timeout_s=LIMIT_S)
    return bundle.load((bed.folder / "runs" / "latest").resolve())


def _table(results: Mapping[str, list[Return]]) -> Iterator[str]:
    yield "| system | back, of runs | first step of any rank, median s | of every rank, median s | min | max |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, returns in results.items():
        every = [item.first_step_s for item in returns if item.first_step_s is not None]
        first = [item.any_step_s for item in returns if item.any_step_s is not None]
        cells = (_median(first), _median(every), *(f"{limit(every):.2f}" if every else "-" for limit in (min, max)))
        yield f"| {name} | {len(every)} of {len(returns)} | {' | '.join(cells)} |"


def _median(samples: list[float]) -> str:
    return f"{statistics.median(samples):.2f}" if samples else "-"


def _compared(bed: Bed, handles: Mapping[str, str]) -> str:
    return bed.output("compare", "--systems", *(f"{name}={run}" for name, run in handles.items()))


def _write(text: str) -> None:
    load = os.getloadavg()[0]
    report = f"{text}\n\n{os.cpu_count()} cores, load {load:.1f} at the end; killed to first step, seconds.\n"
    table.OUT.mkdir(exist_ok=True)
    (table.OUT / "systems.md").write_text(report)
    print(report)
