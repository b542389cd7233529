"""DeepSpeed ZeRO 1, 2 and 3 and its bf16 optimizer: partitions of flat fp32 tensors, and ``save_checkpoint`` as one save."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import imports, record, states
from ..checkpoints import loads, saves
from ..checkpoints import saved_contents as recognised
from . import master_weights
from .master_weights import Fragment, Tensor

NAME = "DeepSpeed"
_PARTITIONED = {
    "deepspeed.runtime.zero.stage_1_and_2": (
        "DeepSpeedZeroOptimizer",
        "single_partition_of_fp32_groups",
        "bit16_groups",
    ),
    "deepspeed.runtime.bf16_optimizer": ("BF16_Optimizer", "fp32_groups_flat_partition", "bf16_groups"),
}


def watch() -> None:
    """Wrap the optimizers and the engine once they are imported."""
    for module, (cls, flats, groups) in _PARTITIONED.items():
        tensors = functools.partial(_partitions, flats=flats, groups=groups)
        imports.when_imported(module, functools.partial(_watch_optimizer, cls=cls, tensors=tensors))
    stage3 = functools.partial(_watch_optimizer, cls="DeepSpeedZeroOptimizer_Stage3", tensors=_stage3_partitions)
    imports.when_imported("deepspeed.runtime.zero.stage3", stage3)
    imports.when_imported("deepspeed.runtime.engine", _watch_engine)


@record.guarded("engines")
def _watch_optimizer(module: Any, cls: str, tensors: Any) -> None:
    master_weights.watch_steps(getattr(module, cls), tensors)


def _partitions(optimizer: Any, flats: str, groups: str) -> Iterator[Tensor]:
    """ZeRO 1 and 2: a flat fp32 tensor for each group, of which this rank has a run."""
    for index, flat in enumerate(getattr(optimizer, flats)):
        ranks, reason = _ranks(optimizer.real_dp_process_group[index])
        yield index, flat, [item for lp in getattr(optimizer, groups)[index] for item in _mapped(lp, ranks, reason)]


def _mapped(parameter: Any, ranks: tuple[int, ...], reason: str | None) -> Iterator[Fragment]:
    mapping = getattr(parameter, "_hp_mapping", None)
    if mapping is None:  # other ranks hold it: this one adds nothing
        yield Fragment(parameter, tuple(parameter.shape), 0, 0, 0, ranks, reason)
        return
    high, low = mapping.hp_fragment_address, mapping.lp_fragment_address
    yield Fragment(parameter, tuple(parameter.shape), low.start, high.start, high.numel, ranks, reason)


def _stage3_partitions(optimizer: Any) -> Iterator[Tensor]:
    """ZeRO 3: each parameter is cut into equal runs, padded at the end, and a flat tensor holds this rank's run of several."""
    for index, flat in enumerate(optimizer.fp32_partitioned_groups_flat):
        fragments = []
        for parameter in optimizer.fp16_groups[index]:
            group = getattr(parameter, "ds_process_group", optimizer.dp_process_group)
            ranks, reason = _ranks(group)
            size = parameter.partition_numel()
            start = size * sys.modules["torch"].distributed.get_rank(group)
            numel = max(0, min(size, parameter.ds_numel - start))
            offset = optimizer.grad_position[optimizer.get_param_id(parameter)][1]
            fragments.append(Fragment(parameter, tuple(parameter.ds_shape), start, offset, numel, ranks, reason))
        yield optimizer.sub_group_to_group_id[index], flat, fragments


def _ranks(group: Any) -> tuple[tuple[int, ...], str | None]:
    """The ranks of a data-parallel group, and why its partitions have no digest: other groups hold parameters of the same names."""
    distributed = sys.modules["torch"].distributed
    ranks = tuple(distributed.get_process_group_ranks(group))
    is_world = len(ranks) == distributed.get_world_size()
    reason = f"{NAME} with model or expert parallelism: names do not tell its partitions apart"
    return ranks, None if is_world else reason


@record.guarded("engines")
def _watch_engine(module: Any) -> None:
    engine = module.DeepSpeedEngine
    engine.save_checkpoint = _watch_save(engine.save_checkpoint)
    engine.load_checkpoint = _watch_load(engine.load_checkpoint)
    original = engine.__init__

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _report_optimizer(self)

    engine.__init__ = initialise


@record.guarded("engines")
def _report_optimizer(engine: Any) -> None:
    """Name an optimizer of the engine that no adapter knows: it updates parameters outside of torch's optimizers."""
    names = [cls.__name__ for cls in type(engine.optimizer).__mro__]
    adapted = {"DeepSpeedZeroOptimizer_Stage3", *(cls for cls, _, _ in _PARTITIONED.values())}
    own = str(type(engine.optimizer).__module__).startswith("deepspeed.runtime.")
    if own and not adapted & set(names):
        record.unknown("steps", f"{NAME}: there is no adapter for its {names[0]}")


def _watch_save(original: Any) -> Any:
    @functools.wraps(original)
    def save_checkpoint(self: Any, save_dir: Any, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        path = _path(save_dir, tag if tag is not None else f"global_step{getattr(self, 'global_steps', 0)}")
        client = kwargs.get("client_state", args[0] if args else None)
        written = client if getattr(self, "save_non_zero_checkpoint", False) else {}  # by one rank, or by each its own
        call, contents = saves.begin("deepspeed", path, {}), _live_contents(written)
        try:
            with saves.reported_as_a_whole():
                result = original(self, save_dir, tag, *args, **kwargs)
        except BaseException as error:
            saves.fail(call, error)
            raise
        _finish(call, path, contents)
        return result

    return save_checkpoint


@record.guarded("saves")
def _live_contents(client: Any) -> dict[str, Any]:
    """The fields of a ``saved`` line, by the tensors that the engine is about to write; its files are not read. ``client``: its own."""
    known = states.states.owner
    if known is None:
        return {"weights": None, "matched": 0.0, "contents": {}}
    weights, numel = known.weights()
    rest = {f"optimizer.{name}": digest for name, digest in known.optimizer_states().items()}
    read = recognised.read(client)
    contents = read.describe(recognised.owner.current, beside=True)["contents"] | rest | {"lr": known.rates()}
    return {"weights": weights, "numel": numel, "matched": 1.0, "sharded": bool(known.shards), "contents": contents}


@record.guarded("saves")
def _finish(call: saves.Save | None, path: str, contents: dict[str, Any] | None) -> None:
    if call is None:
        return
    saves.stage(call)
    call.reading = None
    files = [[entry.path, entry.stat().st_size, None] for entry in os.scandir(path) if entry.is_file()]
    record.line("saved", id=call.id, staged=call.returned, durable=None, files=files, **(contents or {"weights": None}))
    saves.settle(call, "return")


def _watch_load(original: Any) -> Any:
    @functools.wraps(original)
    def load_checkpoint(self: Any, load_dir: Any, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        path = _path(load_dir, tag if tag is not None else _latest(load_dir))
        call = loads.begin("deepspeed", path) if path and Path(path).is_dir() else None
        try:
            with saves.reported_as_a_whole():
                result = original(self, load_dir, tag, *args, **kwargs)
        except BaseException as error:
            loads.fail(call, error)
            raise
        loads.finish(call, {})
        return result

    return load_checkpoint


def _path(directory: Any, tag: Any) -> str:
    return str(Path(saves.absolute(directory)) / str(tag)) if directory and tag else ""


def _latest(directory: Any) -> str:
    try:
        return (Path(directory) / "latest").read_text(encoding="utf-8").strip()
    except (OSError, TypeError, ValueError):
        return ""
