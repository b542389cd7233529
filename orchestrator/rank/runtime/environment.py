"""The environment variables of a rank: torchrun's, ccbed's, and the redacted copy in the bundle."""

from __future__ import annotations

from pathlib import Path

from ...model import gang as gang_model
from ...model.redaction import redacted

__all__ = ("redacted", "variables")

#: The setting with which cuBLAS computes the same bits every time (the NVIDIA cuBLAS documentation, "Results Reproducibility").
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def variables(gang: gang_model.GangSpec, rank: int, node: str, incarnation: str) -> dict[str, str]:
    """Variables that are added to the environment of ``rank``. They override the user's (``gang.env``).

    Only the settings of NCCL and gloo yield to the user's: a network with several cards may need others.
    """
    values: dict[str, object] = {
        **_network(gang.interface),
        **(DETERMINISTIC if gang.backend == "nccl" and gang.workload != "script" else {}),
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
    return {name: str(value) for name, value in values.items()}


def _network(interface: str) -> dict[str, object]:
    """If the interface is not known, the libraries choose one themselves."""
    return {name: interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface}


def _torchrun(gang: gang_model.GangSpec, rank: int) -> dict[str, object]:
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
    }
