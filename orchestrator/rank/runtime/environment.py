"""The environment variables of a rank: torchrun's, ccbed's, and the redacted copy in the bundle."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ...model import codec
from ...model import gang as gang_model
from ...model.redaction import redacted

__all__ = ("complete", "find_start_only", "redacted", "threads", "variables")

#: The setting with which cuBLAS computes the same bits every time (the NVIDIA cuBLAS documentation, "Results Reproducibility").
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

SCRIPT = "script"
#: Variables of the node that no environment of a user replaces: the process tag, by which ``down`` finds every process. In a
#: Slurm job also the GPUs: others belong to other jobs.
OF_NODE = ("CCBED_NODE",)
#: These take effect only when an interpreter starts, or when torch is imported. TORCH_INDEX is where pip finds torch.
START_ONLY = re.compile(
    r"LD_\w+|PYTHON(?!PATH$|UNBUFFERED$|DONTWRITEBYTECODE$|BREAKPOINT$|PYCACHEPREFIX$|STARTUP$|EXECUTABLE$)\w+|MALLOC_\w+"
    r"|GLIBC_TUNABLES|KMP_\w+|GOMP_\w+|OMP_(?!NUM_THREADS$)\w+|(MKL|OPENBLAS)_\w+|TORCH(?!_INDEX$)\w*|PYTORCH\w*"
)
#: Of these, what torch reads when it is used, or what ``settings`` applies to a warm rank.
READ_LATE = re.compile(
    r"TORCH_(NCCL|FR|GLOO|UCC|XCCL|CUDNN|BLAS|LINALG|MKLDNN|ROCM|HIP)_\w+|TORCHELASTIC_\w+|TORCH_HOME|TORCH_EXTENSIONS_DIR"
    r"|TORCH_CUDA_ARCH_LIST|TORCH_DISTRIBUTED_DEBUG|TORCH_DISABLE_SHARE_RDZV_TCP_STORE|TORCH_SHOW_CPP_STACKTRACES"
    r"|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|TORCH_DISABLE_ADDR2LINE|TORCH_SYMBOLIZE_MODE|TORCHINDUCTOR_CACHE_DIR"
)
#: Of the variables that ccbed sets, those of the user's script count, as under torchrun.
YIELDING = (
    "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
)  # fmt: skip
#: Each warm rank has one thread in these libraries.
ONE_THREAD = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def complete(
    gang: gang_model.GangSpec, rank: int, node: str, incarnation: str, current: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of ``rank``. ``current``: that of the node."""
    of_node = (*OF_NODE, *gang_model.STEP_GPUS) if "SLURM_JOB_ID" in current else OF_NODE
    kept = {name: current[name] for name in of_node if name in current}
    base = current if gang.environment is None else gang.environment
    values = {**base, **variables(gang, rank, node, incarnation), **kept}
    users = {**(gang.environment or {}), **gang.env} if gang.workload == SCRIPT else {}
    return {**values, **{name: users[name] for name in YIELDING if name in users}}


def threads(gang: gang_model.GangSpec, environ: Mapping[str, str]) -> int:
    """The threads of torch: those of the first level in OMP_NUM_THREADS, else those of the plan."""
    first = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else gang.threads


def find_start_only(at_start: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """The variables by which ``wanted`` differs and that a running interpreter cannot apply.

    ``at_start``: the environment with which this interpreter was started.
    """
    names = [name for name in {**at_start, **wanted} if START_ONLY.fullmatch(name) and not READ_LATE.fullmatch(name)]
    limited = [name for name in ONE_THREAD if wanted.get(name, "1") != "1"]
    differing = [name for name in names if name not in ONE_THREAD and at_start.get(name) != wanted.get(name)]
    customizers = _customizers(wanted) if at_start.get("PYTHONPATH") != wanted.get("PYTHONPATH") else []
    return (*sorted({*differing, *limited}), *customizers)


def _customizers(wanted: Mapping[str, str]) -> list[str]:
    """The modules on PYTHONPATH that an interpreter runs when it starts."""
    entries = wanted.get("PYTHONPATH", "").split(":")
    files = (Path(entry) / f"{name}.py" for entry in entries if entry for name in ("sitecustomize", "usercustomize"))
    return [str(file) for file in files if file.is_file()]


def variables(gang: gang_model.GangSpec, rank: int, node: str, incarnation: str) -> dict[str, str]:
    """Variables that are added to the environment of ``rank``. They override the user's (``gang.env``).

    Only the settings of NCCL and gloo yield to the user's: a network with several cards may need others.
    """
    values: dict[str, str | int | Path] = {
        **{name: gang.interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if gang.interface},
        **({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{gang.out}/nccl_trace_rank_"} if gang.backend == "nccl" else {}),
        **(DETERMINISTIC if gang.backend == "nccl" and gang.workload != "script" else {}),
        **(gang.isolation.env if gang.isolation else {}),
        **gang.env,
        **_torchrun(gang, rank),
        "OMP_NUM_THREADS": gang.threads,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
        "CCBED_RUN": gang.run,
        "CCBED_EPOCH": gang.epoch,
        "CCBED_NODE_NAME": node,
        "CCBED_INCARNATION": incarnation,
        "CCBED_SEED": gang.seed,
        "CCBED_BACKEND": gang.backend,
        "CCBED_OUT": gang.out,
        "CCBED_EVENTS": Path(gang.out) / f"steps-r{rank}.jsonl",
        "CCBED_CHECKPOINTS": gang.checkpoints,
        "CCBED_RESUME": gang.resume.path if gang.resume else "",
        "CCBED_DATA": gang.data or "",
    }
    if gang.isolation and not gang.isolation.view:
        values["TMPDIR"] = gang_model.temporary_directory(os.getpid())
        values["TRITON_CACHE_DIR"] = f"{values['TMPDIR']}/triton"
    if gang.workload == "script":
        values["CCBED_WATCH_HOLDS"] = json.dumps(codec.plain(gang.holds))
        if gang.steps_awaited:
            values["CCBED_STEPS_AWAITED"] = 1
        if patterns := gang.params.get("checkpoints"):
            values["CCBED_CHECKPOINT_GLOBS"] = os.pathsep.join(patterns)
    return {name: str(value) for name, value in values.items()}


def _torchrun(gang: gang_model.GangSpec, rank: int) -> dict[str, str | int]:
    """The names that torchrun sets; the number of the attempt is its restart count."""
    return {
        "MASTER_ADDR": gang.master_addr,
        "MASTER_PORT": gang.master_port,
        "WORLD_SIZE": gang.world_size,
        "RANK": rank,
        "LOCAL_RANK": gang.ranks.index(rank),
        "LOCAL_WORLD_SIZE": len(gang.ranks),
        "GROUP_RANK": gang.group_rank,
        "GROUP_WORLD_SIZE": gang.nodes,
        "NODE_RANK": gang.group_rank,
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": gang.world_size,
        "TORCHELASTIC_RESTART_COUNT": gang.epoch,
        "TORCHELASTIC_MAX_RESTARTS": gang.max_restarts,
        "TORCHELASTIC_RUN_ID": gang.run,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_ERROR_FILE": f"{gang.out}/error-r{rank}.json",
    }
