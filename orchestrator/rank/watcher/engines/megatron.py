"""Megatron's optimizers of mixed precision: fp32 tensors beside the bf16 parameters, all of them or this rank's shards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from .. import imports, record
from . import master_weights
from .master_weights import Fragment, Tensor

#: Its chained optimizers call this method of each optimizer; where gradients overflow it is not called.
STEP = "step_with_ready_grads"


def watch() -> None:
    """Wrap the optimizers once they are imported. Its FP32Optimizer steps the parameters themselves, as torch's do."""
    imports.when_imported("megatron.core.optimizer.optimizer", _watch_optimizers)


@record.guarded("engines")
def _watch_optimizers(module: Any) -> None:
    master_weights.watch_steps(module.MixedPrecisionOptimizer, tensors_of, STEP)


def tensors_of(optimizer: Any) -> Iterator[Tensor]:
    """The fp32 tensors of an optimizer, whichever of its classes it is."""
    if hasattr(optimizer, "shard_fp32_from_float16_groups"):
        yield from _shards(optimizer)
        return
    reason = _parallel_reason(1)
    pairs = [("float16_groups", "fp32_from_float16_groups"), ("fp32_from_fp32_groups", "fp32_from_fp32_groups")]
    for of_model, of_optimizer in pairs:
        for index, group in enumerate(getattr(optimizer, of_model)):
            for parameter, main in zip(group, getattr(optimizer, of_optimizer)[index]):
                yield index, main, [Fragment(parameter, tuple(parameter.shape), 0, 0, main.numel(), (), reason)]


def _shards(optimizer: Any) -> Iterator[Tensor]:
    """The distributed optimizer: flat shards of single parameters."""
    distributed = sys.modules["torch"].distributed
    ranks = tuple(distributed.get_process_group_ranks(optimizer.data_parallel_group))
    reason = _parallel_reason(len(ranks))
    pairs = (("model_float16_groups", "shard_fp32_from_float16_groups"), ("model_fp32_groups", "shard_fp32_groups"))
    for of_model, of_optimizer in pairs:
        for index, group in enumerate(getattr(optimizer, of_model)):
            for parameter, shard in zip(group, getattr(optimizer, of_optimizer)[index]):
                run = optimizer._get_model_param_range_map(parameter)["param"]
                if shard is not None:  # kept inside of an optimizer that knows precisions itself
                    yield (
                        index,
                        shard,
                        [Fragment(parameter, tuple(parameter.shape), run.start, 0, run.end - run.start, ranks, reason)],
                    )


def _parallel_reason(shards: int) -> str | None:
    """Why there is no digest: ranks of a model-parallel group hold parts of the model under the same names."""
    state = sys.modules.get("megatron.core.parallel_state")
    is_initialised = state is not None and state.model_parallel_is_initialized()
    sizes = [
        state.get_tensor_model_parallel_world_size(),
        state.get_pipeline_model_parallel_world_size(),
        state.get_expert_model_parallel_world_size(),
    ] if state is not None and is_initialised else [1]  # fmt: skip
    if max(sizes) > 1:
        return "Megatron with model parallelism: names do not tell the parts of the model apart"
    distributed = sys.modules["torch"].distributed
    world = distributed.get_world_size() if distributed.is_initialized() else 1
    is_partial = shards > 1 and shards != world
    return "Megatron with several groups of shards: they are not compared" if is_partial else None
