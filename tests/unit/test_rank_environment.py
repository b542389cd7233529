"""A rank gets torchrun's names; what is kept of the environment holds no secret."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.model import gang
from orchestrator.rank.runtime import environment

GANG = gang.GangSpec(
    run="r1", epoch=2, world_size=8, nodes=4, group_rank=3, ranks=(6, 7), master_addr="127.0.0.1", master_port=29501,
    backend="gloo", timeout_s=30.0, max_restarts=3, workload="train-dp", params={}, seed=7, payload="/p", out="/o",
    checkpoints="/c", interface="lo", env={"USER_SET": "1", "RANK": "99"},
)  # fmt: skip


def test_torchruns_names_are_all_there() -> None:
    values = environment.variables(GANG, 7, "n3", "ab12")
    expected = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501", "WORLD_SIZE": "8", "RANK": "7", "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "3", "GROUP_WORLD_SIZE": "4", "NODE_RANK": "3", "ROLE_NAME": "default",
        "ROLE_RANK": "7", "ROLE_WORLD_SIZE": "8", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "r1", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        "CCBED_EVENTS": "/o/steps-r7.jsonl",
    }  # fmt: skip
    assert {name: values.get(name) for name in expected} == expected


def test_the_users_own_variables_are_passed_but_cannot_change_the_ranks_place() -> None:
    assert environment.variables(GANG, 6, "n3", "ab12")["USER_SET"] == "1"
    assert environment.variables(GANG, 6, "n3", "ab12")["RANK"] == "6"


def test_what_nccl_goes_by_is_the_inventorys_before_it_is_ours() -> None:
    given = replace(GANG, env={"NCCL_SOCKET_IFNAME": "=ib0,ib1", "NCCL_IB_HCA": "mlx5_0"})
    values = environment.variables(given, 6, "n3", "ab12")
    assert (values["NCCL_SOCKET_IFNAME"], values["NCCL_IB_HCA"]) == ("=ib0,ib1", "mlx5_0")
    assert values["GLOO_SOCKET_IFNAME"] == "lo"


def test_an_interface_that_nobody_knows_is_not_named() -> None:
    values = environment.variables(replace(GANG, interface=""), 6, "n3", "ab12")
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & values.keys()


def test_gpus_are_asked_for_the_same_bits_again_unless_the_user_says_otherwise() -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"
    gpus = replace(GANG, backend="nccl")
    assert name not in environment.variables(GANG, 6, "n3", "ab12")
    assert environment.variables(gpus, 6, "n3", "ab12")[name] == ":4096:8"
    assert environment.variables(replace(gpus, env={name: ":16:8"}), 6, "n3", "ab12")[name] == ":16:8"
    assert name not in environment.variables(replace(gpus, workload="script"), 6, "n3", "ab12")


def test_the_nodes_mark_is_left_as_it_is() -> None:
    assert "CCBED_NODE" not in environment.variables(replace(GANG, env={}), 6, "n3", "ab12")


def test_secrets_are_redacted_by_name_and_passwords_in_urls() -> None:
    shown = environment.redacted(
        {"AWS_SECRET_ACCESS_KEY": "a", "hf_token": "b", "DB_PASSWORD": "c", "HOME": "/h", "PROXY": "http://u:p@h:1/x"}
    )
    assert shown["HOME"] == "/h"
    assert {shown[name] for name in ("AWS_SECRET_ACCESS_KEY", "hf_token", "DB_PASSWORD")} == {"***"}
    assert shown["PROXY"] == "http://***@h:1/x"


def test_a_script_is_watched_with_the_patterns_of_its_checkpoints() -> None:
    script = replace(GANG, workload="script", params={"checkpoints": ("out/*.bin", "/ckpt/*.npz")})
    assert environment.variables(script, 6, "n3", "ab12")["CCBED_CHECKPOINT_GLOBS"] == "out/*.bin:/ckpt/*.npz"
    assert "CCBED_CHECKPOINT_GLOBS" not in environment.variables(replace(script, params={}), 6, "n3", "ab12")


def test_a_reference_run_reports_to_no_service_unless_the_user_asks_for_it() -> None:
    isolated = replace(
        GANG, isolation=gang.Isolation(env={"WANDB_MODE": "offline"}), environment={"WANDB_MODE": "online"}
    )
    assert environment.complete(isolated, 7, "n0", "i", {})["WANDB_MODE"] == "offline"
    chosen = replace(isolated, env={"WANDB_MODE": "online"})
    assert environment.complete(chosen, 7, "n0", "i", {})["WANDB_MODE"] == "online"


# --- GPUs of a Slurm job step -------------------------------------------------------------------------------------------

STEP = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "1,3", "GPU_DEVICE_ORDINAL": "1,3", "SLURM_STEP_GPUS": "5,7"}


@pytest.mark.parametrize(
    ("wanted", "cuda", "global_"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, "1", "5"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "3", "7"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "1,3", "5,7"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "1,3", "5,7"),
        ({"CUDA_VISIBLE_DEVICES": "2"}, "", ""),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f6c1a52"}, "1,3", "5,7"),
        ({}, "1,3", "5,7"),
    ],
    ids=["first", "second", "both", "more than there are", "beyond", "a name", "all"],
)
def test_a_node_has_gpus_of_its_job_step_alone(wanted: dict[str, str], cuda: str, global_: str) -> None:
    values = gang.within_step({"A": "b", **wanted}, STEP)
    assert values == {"A": "b", "CUDA_VISIBLE_DEVICES": cuda, "GPU_DEVICE_ORDINAL": cuda, "SLURM_STEP_GPUS": global_}


def test_without_a_job_or_without_its_gpus_a_node_has_those_of_the_inventory() -> None:
    wanted = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert gang.within_step(wanted, {"CUDA_VISIBLE_DEVICES": "3"}) == wanted
    assert gang.within_step(wanted, {"SLURM_JOB_ID": "7"}) == wanted
    assert gang.within_step({"CUDA_VISIBLE_DEVICES": ""}, STEP) == {"CUDA_VISIBLE_DEVICES": ""}, "none are wanted"


def test_no_environment_gives_a_rank_other_gpus_than_its_node_has_in_a_job() -> None:
    wider = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    for given in (replace(GANG, env=wider), replace(GANG, workload="script", environment=wider, env=wider)):
        values = environment.complete(given, 7, "n3", "ab12", STEP)
        assert {name: values[name] for name in gang.STEP_GPUS} == {name: STEP[name] for name in gang.STEP_GPUS}
        assert environment.complete(given, 7, "n3", "ab12", {})["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
