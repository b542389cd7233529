"""Reserve ranks of a real bed: what they own, who uses them, and that they end with their node."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.bed import NodeStatus
from orchestrator.node.agent import script_reserves
from orchestrator.node.oslayer import processes
from orchestrator.providers.process import process_provider
from orchestrator.store import bundle, index

from ..patience import until
from . import reserves, trials
from .conftest import ROOT, Bed, Ran

pytestmark = pytest.mark.e2e
PATIENCE_S = 600.0


def _nodes(bed: Bed) -> list[NodeStatus]:
    return list(process_provider.bed_status(bed.spec, memory=False).nodes)


def _reserves(bed: Bed) -> Mapping[str, int]:
    """Node -> pid of its reserve, once each one waits for its order."""

    def waiting() -> dict[str, int]:
        pids = ((node.name, reserves.ready(bed.spec.workdir, node.name, node.incarnation)) for node in _nodes(bed))
        return {name: pid for name, own in pids for pid in own}

    until(lambda: len(waiting()) == len(bed.spec.nodes))
    return waiting()


def _is_unix(socket: str) -> bool:
    """The list of sockets is read in parts: while others are closed, one that stays may be left out of it."""
    number = socket.removeprefix("socket:[").removesuffix("]")
    return any(number in Path("/proc/net/unix").read_text().split() for _ in range(20))


def _starts(ran: Ran, epoch: int) -> dict[str, int]:
    return {str(event.node): event.value["pid"] for event in ran.of("rank.start") if event.epoch == epoch}


def test_a_reserve_owns_nothing_of_a_run_until_a_recovery_makes_it_a_rank(bed: Bed) -> None:
    pids = _reserves(bed)
    assert {node.state for node in _nodes(bed)} == {"warm"}
    for pid in pids.values():
        links = [descriptor.readlink() for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
        sockets = [link.name for link in links if link.name.startswith("socket:")]
        assert len(sockets) == 1 and _is_unix(sockets[0]), "no port"
        others = {link.name for link in links if not link.name.startswith(("socket:", "pipe:"))}
        assert others <= {"null", "agent.log"}, "no file"
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
    ran = bed.run(trials.dp(trials.crash(2), checks=(*trials.CHECKS, "spare-warm")))
    assert ran.bad() == []
    first, second = _starts(ran, 0), _starts(ran, 1)
    assert not {*first.values()} & {*pids.values()}, "the first start forks its ranks"
    assert second == {node: pid for node, pid in pids.items() if node != "n2"}
    stopped = [event.value for event in ran.of("gang.stop") if event.type == "ok"]
    assert {event["left"] for event in stopped} == {0}
    assert bed.unchanged()


def test_a_reserve_ends_with_its_node(bed: Bed) -> None:
    reserve = _reserves(bed)["n1"]
    agent = next(node for node in _nodes(bed) if node.name == "n1")
    os.kill(agent.pid, signal.SIGKILL)
    until(lambda: processes.find(reserve) is None)
    code, output = bed.ccbed("up", str(ROOT / "inventories/local.yml"))
    assert code == 0, output
    assert _reserves(bed)["n1"] != reserve


SCRIPT = """
import atexit, gc, json, logging, multiprocessing, os, random, signal, sys, tempfile, threading, time, warnings
import torch, torch.distributed as dist
from torch import nn

def descriptors():
    links = (os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}"))
    return sorted(os.path.basename(link).split(".")[0].split(":")[0].rstrip("0123456789") for link in links)

own = {"MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "CCBED_STEPS_AWAITED"}
signals = (number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP))
kinds = (nn.Module, torch.optim.Optimizer, torch.Tensor)
notices = {
    "arguments": [sys.argv, sys.orig_argv, __file__, __name__, os.getcwd(), sys.path, sorted(vars(sys.modules["__main__"]))],
    "environment": {name: value for name, value in os.environ.items() if name not in own and not name.startswith("CCBED_")},
    "signals": [str(signal.getsignal(number)) for number in signals] + sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "threads": [len(os.listdir("/proc/self/task")), threading.active_count(), torch.get_num_threads(), multiprocessing.active_children()],
    "hooks": [str(sys.excepthook), str(sys.gettrace()), tempfile.tempdir, len(sys.meta_path), len(gc.callbacks), atexit._ncallbacks()],
    "streams": [[str(s), s.line_buffering, s.write_through] for s in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)],
    "flags": [torch.backends.mkldnn.enabled, torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()],
    "warnings": [str(item) for item in warnings.filters] + [str(item) for item in logging.root.handlers],
    "modules": sorted(set(sys.modules)),
    "torch": [torch.is_grad_enabled(), str(torch.get_default_dtype()), dist.is_initialized(), torch.cuda.is_initialized()],
    "objects": [gc.isenabled(), gc.get_threshold(), sum(isinstance(item, kinds) for item in gc.get_objects())],
    "files": descriptors(), "limits": [os.nice(0), sorted(os.sched_getaffinity(0)), os.umask(0o77)],
}
drawn = [random.random(), float(torch.rand(()))]
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"{sys.argv[1]}/{rank}-{attempt}.json", "w") as file:
    json.dump({"notices": notices, "drawn": drawn, "pid": os.getpid()}, file)

dist.init_process_group("gloo")
model = nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
step, path = 0, f"{sys.argv[1]}/saved.pt"
if os.path.exists(path):
    saved = torch.load(path, weights_only=True)
    step = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
ddp = nn.parallel.DistributedDataParallel(model)
while step < 60:
    time.sleep(0.02)  # a fault is placed by steps, which must be seen before the job is over
    optimizer.zero_grad()
    ddp(torch.full((2, 4), float(step))).sum().backward()
    optimizer.step()
    step += 1
    if rank == "0" and step % 10 == 0:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
        os.replace(path + ".new", path)
dist.barrier()
"""


NO_GPU = pytest.mark.skipif(
    any(map(os.path.exists, script_reserves.GPU_FILES)), reason="where it may use a GPU it is forked"
)


@NO_GPU
def test_a_script_that_recovers_in_a_reserve_finds_what_its_first_attempt_found(bed: Bed, tmp_path: Path) -> None:
    pids = _reserves(bed)
    ran, reports = _drill(bed, tmp_path, SCRIPT)
    assert _starts(ran, 1) == {node: pid for node, pid in pids.items() if node != "n2"}
    _compare(reports)
    assert bed.unchanged()


@NO_GPU
def test_so_does_one_whose_libraries_a_reserve_imported_ahead(bed: Bed, tmp_path: Path) -> None:
    """The second run of a script finds reserves that have imported what the first one imported."""
    script = f"import jinja2.sandbox, pytest\nfrom rich import progress, traceback\n{SCRIPT}"
    _reserves(bed)
    ran, _ = _drill(bed, tmp_path, script)
    assert {event.value["imports"] for event in ran.of("rank.start") if event.epoch} == {
        "none: no reserve has imported yet"
    }
    until(lambda: all(_has_imported(bed, node) for node in _nodes(bed) if node.name != "n2"))
    ran, reports = _drill(bed, tmp_path, script)
    imports = {event.value["imports"] for event in ran.of("rank.start") if event.epoch}
    assert len(imports) == 1 and re.match(r"\d{2,} modules; what follows them is job.py", *imports), imports
    _compare(reports)
    assert bed.unchanged()


def _has_imported(bed: Bed, node: NodeStatus) -> bool:
    """Does the node have a reserve for any rank, and one for the script?"""
    return len(reserves.ready(bed.spec.workdir, node.name, node.incarnation)) == 2


def _drill(bed: Bed, folder: Path, script: str) -> tuple[Ran, dict[str, Any]]:
    """Lose a node; return the run, and what the ranks have found: rank-attempt -> report."""
    job, out = folder / "job.py", folder / "out"
    if not job.exists():
        job.write_text(script)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    options = ("--fail-node", "2", "--no-reference", "--runs-dir", str(folder / "runs"))
    code, output = bed.ccbed("run", *options, str(job), "--", str(out))
    assert code == 0, output
    ran = Ran(code=code, run=bundle.load(index.resolve("latest", folder / "runs")))
    assert ran.bad() == []
    return ran, {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}


def _compare(reports: Mapping[str, Any]) -> None:
    for rank in (0, 1, 3):
        first, second = reports[f"{rank}-0"], reports[f"{rank}-1"]
        own = [notices["notices"].pop("files") for notices in (first, second)]
        # A pipe ends a hold of a fork; a reserve has its socket for that, and the pipe of libuv, which a group would open.
        assert {name for files in own for name in files if own[0].count(name) != own[1].count(name)} == {
            "pipe",
            "socket",
        }
        assert second["notices"] == first["notices"]
        assert not {*first["drawn"]} & {*second["drawn"]}, "new random numbers, as in any other process"
