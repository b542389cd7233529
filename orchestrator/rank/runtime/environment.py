"""The environment of a rank: torchrun's names, ccbed's own, and the redacted copy that is kept."""

from __future__ import annotations

from pathlib import Path

from ...model import gang as gang_model
from ...model.redaction import redacted

__all__ = ("redacted", "variables")

#: What cuBLAS needs to give the same bits again (the NVIDIA cuBLAS documentation, "Results Reproducibility").
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def variables(gang: gang_model.GangSpec, rank: int, node: str, incarnation: str) -> dict[str, str]:
    """What is added to the environment of ``rank``. The user's own (``gang.env``) yields to these names.

    Only what NCCL and gloo go by is the user's first: an engineer of a network with many cards knows better.
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
    """Where the interface is not known the libraries look for one themselves."""
    return {name: interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface}


def _torchrun(gang: gang_model.GangSpec, rank: int) -> dict[str, object]:
    """The names that torchrun sets; the epoch is its restart count."""
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
