"""The warm process: torch is imported and was used once, no GPU was touched in it, and ranks free nothing of it as they join."""

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

from torch._dynamo import trace_rules
from torch.distributed import HashStore, init_process_group
caches = [value for value in vars(trace_rules).values() if hasattr(value, "cache_info")]
sizes = [cache.cache_info().currsize for cache in caches]
init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
print([cache.__name__ for cache, size in zip(caches, sizes) if cache.cache_info().currsize < size])
"""


def test_gpus_are_hidden_while_torch_is_warmed_up_and_joining_empties_no_cache_afterwards() -> None:
    one_thread = dict.fromkeys(warm_up.ONE_THREAD, "1")
    env = {**os.environ, **one_thread, "CUDA_VISIBLE_DEVICES": "3,5", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["{('', '1')} 3,5 None", "False", "[]"]
