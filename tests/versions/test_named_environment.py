"""Training in an environment of the user (``.ci/torch VERSION`` makes one): CCBED_TEST_PYTHON names its interpreter."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.providers import archive
from orchestrator.store import rank_payload
from tests.e2e.conftest import ccbed

PYTHON = os.environ.get("CCBED_TEST_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="CCBED_TEST_PYTHON is not set")
ROOT = Path(__file__).parents[2]
INVENTORY = f"""all:
  hosts: {{localhost: {{ansible_connection: local}}}}
  vars: {{ccbed_bed: named, ccbed_nodes: 4, ccbed_spares: 1, ccbed_python: {PYTHON}}}
"""
#: Imports every module of the first argument's folder, as the ranks do.
IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import orchestrator
names = [module.name for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator.")]
for name in names:
    if not name.endswith(("__main__", ".site.sitecustomize")) and ".user." not in name:
        importlib.import_module(name)
print(len(names))
"""
SCRIPT = """
import os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
path, first = "checkpoint.pt", 0
if os.path.exists(path):
    state = torch.load(path, weights_only=True)
    model.module.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"]); first = state["step"]
print("from step", first, flush=True)
for step in range(first, 200):
    torch.manual_seed(step)
    time.sleep(0.01)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    if dist.get_rank() == 0 and (step + 1) % 20 == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, path + ".new"); os.replace(path + ".new", path)
print("torch", torch.__version__, flush=True)
dist.destroy_process_group()
"""


def version() -> tuple[str, str]:
    """(Python, torch) of the environment."""
    code = "import platform, torch; print(platform.python_version(), torch.__version__)"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    python, torch = done.stdout.split()
    return python, torch


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("named")
    (root / "named.yml").write_text(INVENTORY)
    code, output = ccbed(root / "state", "up", str(root / "named.yml"))
    assert code == 0, output
    yield root / "state"
    code, output = ccbed(root / "state", "down", "named", "--force")
    assert code == 0, output


def run(state: Path, runs: Path, words: list[str]) -> tuple[int, str, dict[str, Any]]:
    """(exit code, output, fingerprint)"""
    code, output = ccbed(state, "run", *words, "--runs-dir", str(runs))
    return code, output, json.loads((runs / "latest/fingerprint.json").read_text())


def test_everything_that_is_sent_there_can_be_imported(tmp_path: Path) -> None:
    package = ROOT / "orchestrator"
    for name, content in rank_payload.collect(package, plugins.discover()).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "agent.pyz").write_bytes(archive.build())
    subprocess.run([PYTHON, "-m", "zipfile", "-e", "agent.pyz", "."], cwd=tmp_path, timeout=60, check=True)
    done = subprocess.run(
        [PYTHON, "-c", IMPORT_ALL, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


@pytest.mark.parametrize(
    "trial",
    ["dp-ring --fail-node 2", "ddp --fail-node 1", "pp", "tp-ring", "moe", "infer", "allreduce --sizes 4K:64K --iterations 5",
     "fsdp --fail-node 1"],
)  # fmt: skip
def test_a_trial_passes_there(state: Path, tmp_path: Path, trial: str) -> None:
    python, torch = version()
    if trial.startswith("fsdp") and tuple(map(int, torch.split(".")[:2])) < (2, 6):
        pytest.skip("FSDP2 on CPUs needs torch 2.6")
    code, output, facts = run(state, tmp_path / "runs", trial.split())
    assert code == 0, output
    assert (facts["python"], facts["torch"]) == (python, torch)


def test_a_script_that_loses_a_node_resumes_there(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script").mkdir()
    monkeypatch.chdir(tmp_path / "script")
    (tmp_path / "script/train.py").write_text(SCRIPT)
    code, output, _ = run(state, tmp_path / "runs", [str(tmp_path / "script/train.py"), "--fail-node", "2"])
    assert code in (0, 2), output  # unknown: without a DataLoader the data position is not recorded
    verdicts = json.loads((tmp_path / "runs/latest/verdicts.json").read_text())
    outcomes = {verdict["check"]: verdict["outcome"] for verdict in verdicts}
    assert "fail" not in outcomes.values(), output
    assert {outcomes[check] for check in ("finished", "resumed-from", "no-step-lost")} == {"pass"}
    logs = [log.read_text() for log in (tmp_path / "runs/latest/nodes").glob("*/*/rank-*.log")]
    assert sum(f"torch {version()[1]}" in log for log in logs) == 4
    resumed = {int(step) for log in logs for step in re.findall(r"from step (\d+)", log)}
    assert 0 in resumed
    assert max(resumed) > 0, "the second start resumed from a checkpoint"
