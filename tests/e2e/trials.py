"""Trials of the end-to-end tests: short, with every checker that they can pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.model.trial import CheckSpec, FaultPlan, Liveness, Recovery, Trial, Trigger, World

PARAMS: dict[str, Any] = {
    "model": "mnist-mlp", "algorithm": "ring", "batch": 64, "epochs": 1, "checkpoint_every": 5,
}  # fmt: skip
CHECKS = ("bit-exact", "baseline-clean")
#: A busy disk may take ten seconds to store a checkpoint, or the history before a fault.
LIVENESS = Liveness(stalled_s=60.0, hold_s=60.0)
#: Plugins that damage what the checkers judge.
DAMAGE = Path(__file__).parents[1] / "damage"
#: dp-ring with these limits, as a file for the command line.
PATIENT = f"""
trial: dp-ring
workload: train-dp
params: {{model: mnist-mlp, algorithm: ring, batch: 64, epochs: 3, checkpoint_every: 5}}
recovery: {{policy: auto, max_restarts: 3}}
liveness: {{stalled_s: {LIVENESS.stalled_s:g}, hold_s: {LIVENESS.hold_s:g}}}
"""


def crash(node: int | str = 2, id: str = "f0", **at: Any) -> FaultPlan:
    return FaultPlan(id=id, fault="crash-node", node=node, at=Trigger(**(at or {"step": 13})))


def pause(node: int | str = 2, for_s: float | None = None, **at: Any) -> FaultPlan:
    params = {} if for_s is None else {"for_s": for_s}
    return FaultPlan(id="f0", fault="pause-node", node=node, at=Trigger(**(at or {"step": 13})), params=params)


def slow(node: int | str = 2, **params: Any) -> FaultPlan:
    return FaultPlan(id="f0", fault="slow-node", node=node, at=Trigger(step=5), params=params)


def dp(*faults: FaultPlan, policy: tuple[str, ...] = ("spare", "restart"), **more: Any) -> Trial:
    """20 steps of train-dp on four nodes."""
    checks = more.pop("checks", CHECKS)
    more.setdefault("liveness", LIVENESS)
    params = {**PARAMS, **more.pop("params", {})}
    return Trial(
        name="e2e", workload="train-dp", params=params, faults=faults, world=more.pop("world", World(nodes=4)),
        recovery=Recovery(policy=policy, max_restarts=3), checks=tuple(CheckSpec(name=name) for name in checks), **more,
    )  # fmt: skip


def damaged(trial: Trial, lost: str) -> Trial:
    """The same training, whose ranks do not restore ``lost`` (optimizer or rng)."""
    params = {"training": trial.workload, "params": trial.params, "lost": lost}
    return replace(trial, workload="damaged-training", params=params)
