"""The warm process: torch is imported and was used once, and no GPU was touched in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orchestrator.node import warm_up

ROOT = Path(__file__).parents[2]
#: What torch is asked about GPUs while it is warmed up, and what it finds in its environment then.
PROGRAM = """
import os, sys
import torch
from orchestrator.node import warm_up
seen = []
asked = torch.cuda.is_available
def ask():
    seen.append((os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")))
    return asked()
torch.cuda.is_available = ask
exercise = warm_up._exercise
warm_up._exercise = lambda: (torch.cuda.is_available(), exercise())
warm_up.import_modules()
print(set(seen), os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
print(torch.cuda.is_initialized())
"""


def test_gpus_are_hidden_while_torch_is_warmed_up_and_only_then() -> None:
    one_thread = dict.fromkeys(warm_up.ONE_THREAD, "1")
    env = {**os.environ, **one_thread, "CUDA_VISIBLE_DEVICES": "3,5", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["{('', '1')} 3,5 None", "False"]
