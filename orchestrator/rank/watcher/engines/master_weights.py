"""The optimizers of training engines: their fp32 tensors, which parts of which parameters these hold, and their steps.

An engine may flatten, shard and step its own tensors, once per group. So an adapter names the parts of those tensors, and reports
one step for each call of the engine's own ``step``, in which calls of the inner optimizer are not counted. Megatron's optimizers of
mixed precision have fp32 tensors beside the bf16 parameters, all of them or this rank's shards.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from .. import imports, record, sharding, steps

_inside = threading.local()
#: ``id(engine's optimizer)`` -> how it is seen here.
_known: dict[int, EngineOptimizer] = {}


class Fragment(NamedTuple):
    """``numel`` elements of ``parameter`` from its element ``start`` lie at ``offset`` of a tensor that the optimizer steps.

    ``shape``: of the full parameter; ``ranks``: those that hold its other fragments; ``reason``: why it has no digest.
    """

    parameter: Any
    shape: tuple[int, ...]
    start: int
    offset: int
    numel: int
    ranks: tuple[int, ...] = ()
    reason: str | None = None


#: Index of the parameter group, the tensor that the optimizer steps, and the fragments in it.
Tensor = tuple[int, Any, list[Fragment]]


class EngineOptimizer:
    """An engine's optimizer in the form of one of torch, with all of its tensors at any time.

    Engines take their tensors out of the inner optimizer's groups while they step, and forget them before the process ends.
    """

    def __init__(self, engine_name: str, inner: Any, tensors: Iterable[Tensor]) -> None:
        self.engine_name, self.inner, self._tensors = engine_name, inner, list(tensors)
        self.has_stepped = False

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        groups = [{**group, "params": []} for group in self.inner.param_groups]
        for index, tensor, _ in self._tensors:
            groups[index]["params"].append(tensor)
        return groups

    @property
    def state(self) -> Any:
        return self.inner.state

    def add_parts(self, by_id: dict[int, list[sharding.Part]]) -> None:
        """Add the parts of its tensors. ``by_id``: ``id(parameter)`` -> the parts of the model's parameters, with their names."""
        for _, tensor, fragments in self._tensors:
            named = [(by_id[id(item.parameter)][0].name, item) for item in fragments if id(item.parameter) in by_id]
            own = [_part(name, tensor, item) for name, item in named if item.numel > 0]
            by_id[id(tensor)] = own or [_part(name, tensor, item._replace(start=1)) for name, item in named[:1]]

    def parameters(self) -> Iterator[Any]:
        """The parameters of the model that it updates."""
        return (item.parameter for _, _, fragments in self._tensors for item in fragments)


def _part(name: str, tensor: Any, item: Fragment) -> sharding.Part:
    dtype = str(tensor.dtype).replace("torch.", "")
    is_missing = tensor.numel() < item.offset + item.numel
    reason = item.reason or ("its fp32 tensor is not in memory" if is_missing else None)
    select = (item.offset, item.offset + item.numel)
    return sharding.Part(name, dtype, item.shape, None, item.start, select, item.ranks, reason)


def known() -> list[EngineOptimizer]:
    """The engines' optimizers that have stepped in this process."""
    return list(_known.values())


def is_stepping() -> bool:
    """Does an engine step in this thread? Then its inner optimizer's hooks report only that it has stepped."""
    current = getattr(_inside, "current", None)
    if current is None:
        return False
    current.has_stepped = True
    return True


def watch_steps(cls: Any, tensors: Callable[[Any], Iterable[Tensor]], method: str = "step") -> None:
    """Report one step for each call of ``method`` that steps the inner optimizer: it does not where gradients overflow."""
    original = getattr(cls, method)

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not record.is_active() or getattr(_inside, "current", None) is not None:
            return original(self, *args, **kwargs)
        frame = sys._getframe()
        current = _begin(self, tensors, frame)
        _inside.current = current
        try:
            result = original(self, *args, **kwargs)
        finally:
            _inside.current = None
        if getattr(current, "has_stepped", False):  # None where the watcher of steps is off
            _end(current, frame)
        return result

    setattr(cls, method, step)


@record.guarded("steps")
def _begin(optimizer: Any, tensors: Callable[[Any], Iterable[Tensor]], frame: FrameType) -> EngineOptimizer:
    current = _known.get(id(optimizer))
    if current is None:
        current = EngineOptimizer(type(optimizer).__name__, optimizer.optimizer, tensors(optimizer))
        _known[id(optimizer)] = current
    current.has_stepped = False
    steps.groups.begin_step(current, frame)
    return current


@record.guarded("steps")
def _end(current: EngineOptimizer, frame: FrameType) -> None:
    steps.groups.end_step(current, frame)


#: Its chained optimizers call this method of each optimizer; where gradients overflow it is not called.
STEP = "step_with_ready_grads"


def watch_megatron() -> None:
    """Wrap the optimizers once they are imported. Its FP32Optimizer steps the parameters themselves, as torch's do."""
    imports.when_imported("megatron.core.optimizer.optimizer", _watch_optimizers)


@record.guarded("engines")
def _watch_optimizers(module: Any) -> None:
    watch_steps(module.MixedPrecisionOptimizer, tensors_of_megatron, STEP)


def tensors_of_megatron(optimizer: Any) -> Iterator[Tensor]:
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
    """Return why there is no digest: ranks of a model-parallel group hold parts of the model under the same names."""
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
