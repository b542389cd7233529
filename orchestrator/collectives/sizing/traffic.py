"""The collectives of a training step, by strategy: operation, bytes, count, groups.

``size`` is S: the buffer of one rank for all-reduce, broadcast, reduce, all-to-all and send-recv; the total over the group for
all-gather, reduce-scatter, gather and scatter (nccl-tests' reading). A send-recv is one message in one direction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from ...model.frozen import dataclass
from . import batch_shares
from .gpu_memory import Optimizer
from .layout import Groups, Layout, largest_share, share_of_stage, split_stages
from .model_description import Layer, Model, Part

#: DistributedDataParallel's first bucket and the others, bytes: closed by the tensor that fills it (torch.nn.parallel).
FIRST_BUCKET, BUCKET = 1024 * 1024, 25 * 1024 * 1024

_ZERO = "P e; arXiv:1910.02054"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """``count`` per step, in all ``groups`` at once; ``axis``: the kind of the groups; ``source``: of the formula."""

    operation: str
    size: int
    count: int
    axis: str
    groups: Groups
    what: str
    source: str
    dtype: str

    @property
    def ranks(self) -> int:
        return len(self.groups[0])

    @property
    def step_bytes(self) -> int:
        return self.size * self.count


def of_step(model: Model, layout: Layout, optimizer: Optimizer, batch: int) -> tuple[Collective, ...]:
    """The collectives of a step of ``batch`` samples, in order; equal collectives are counted."""
    replica = batch_shares.even(batch, layout.dp)
    micro = batch_shares.even(replica, layout.microbatches)
    collectives: list[Collective] = []
    if layout.gathered and layout.tp > 1:
        return (_inputs(model, layout, batch),)
    if layout.zero == 3 and layout.dp > 1:
        collectives += _gathered_parameters(model, layout)
    if layout.tp > 1:
        collectives += _tensor(model, layout, micro)
        collectives += _vocabulary(model, layout, micro)
    if layout.ep > 1:
        collectives.append(_experts(model, layout, micro))
    if layout.pp > 1:
        collectives += _pipeline(model, layout, micro)
    if layout.sequence_parallel:
        collectives.append(_norm_gradients(model, layout, optimizer))
    if layout.dp > 1:
        collectives += _gradients(model, layout, optimizer)
    if layout.pp > 1 and model.tied_embedding:
        collectives.append(_tied_embedding(model.tied_embedding, model, layout, optimizer))
    return tuple(_counted(collectives))


def _inputs(model: Model, layout: Layout, batch: int) -> Collective:
    """Every rank gathers the whole batch, images and labels, and computes its columns."""
    size = batch_shares.even(batch * (model.sample_bytes or 0), layout.tp)
    return Collective(
        operation="all-gather", size=size, count=1, axis="tp", groups=layout.groups("tp"), dtype="uint8",
        what="images and labels / GPUs", source="b x bytes of a sample / tp",
    )  # fmt: skip


def _gathered_parameters(model: Model, layout: Layout) -> Iterator[Collective]:
    """ZeRO-3, Rajbhandari et al., arXiv:1910.02054 section 7: parameters once forward, once backward."""
    for layer, dense, expert in _units(model, layout):
        for axis, elements in (("dp", dense), ("expert-dp", expert)):
            if elements and len(layout.groups(axis)[0]) > 1:
                yield Collective(
                    operation="all-gather", size=elements * model.element, count=2 * layout.microbatches, axis=axis,
                    groups=layout.groups(axis), dtype=model.dtype, what=f"parameters of {_sort(layer)}, forward and backward",
                    source="P e, twice; arXiv:1910.02054",
                )  # fmt: skip


def _gradients(model: Model, layout: Layout, optimizer: Optimizer) -> Iterator[Collective]:
    dtype = optimizer.gradient_dtype(model.dtype)
    size = optimizer.for_dtype(model.element).gradients
    axes = [axis for axis in ("dp", "expert-dp") if len(layout.groups(axis)[0]) > 1]
    if layout.zero == 3:
        for layer, dense, expert in reversed(_units(model, layout)):
            for axis, elements in (("dp", dense), ("expert-dp", expert)):
                if elements and axis in axes:
                    yield _operation_traffic(
                        "reduce-scatter", elements * size, layout, axis, dtype, f"gradients of {_sort(layer)}", _ZERO
                    )
        return
    _, held = largest_share(model, layout)
    for axis, elements in (("dp", held.dense), ("expert-dp", held.expert)):
        if not elements or axis not in axes:
            continue
        stage = " of the largest stage" if layout.pp > 1 else ""
        kind = "experts'" if axis == "expert-dp" else "all"
        if layout.zero:
            yield _operation_traffic(
                "reduce-scatter", elements * size, layout, axis, dtype, f"{kind} gradients{stage}", _ZERO
            )
            yield _operation_traffic(
                "all-gather",
                elements * model.element,
                layout,
                axis,
                model.dtype,
                f"{kind} parameters, updated{stage}",
                _ZERO,
            )
        elif layout.buckets:
            for bucket in buckets(model, size):
                yield _operation_traffic(
                    "all-reduce",
                    bucket,
                    layout,
                    axis,
                    dtype,
                    "gradients, in buckets, last layer first",
                    "sum of gradient bytes",
                )
        else:
            yield _operation_traffic(
                "all-reduce", elements * size, layout, axis, dtype, f"{kind} gradients{stage}", "sum of gradient bytes"
            )


def buckets(model: Model, element: int) -> tuple[int, ...]:
    """Bytes of DistributedDataParallel's buckets: tensors from the last to the first, a bucket ends with the one that fills it."""
    sizes: list[int] = []
    size = 0
    tensors = [part.elements * element for layer in reversed(model.layers) for part in reversed(layer.parts)]
    for tensor in tensors:
        size += tensor
        if size >= (BUCKET if sizes else FIRST_BUCKET):
            sizes.append(size)
            size = 0
    return tuple([*sizes, size] if size else sizes)


def _tensor(model: Model, layout: Layout, micro: int) -> Iterator[Collective]:
    """Megatron-LM: Shoeybi et al., arXiv:1909.08053; with sequence parallelism Korthikanti et al., arXiv:2205.05198."""
    shape = model.shape
    assert shape is not None, "the layout was checked"
    layers = _blocks(model, layout)
    size = micro * shape.sequence * shape.hidden * model.element
    forward, repeated = (4, ", forward twice") if layout.recompute == "full" else (2, "")
    operations = [("all-reduce", 2, "")]
    if layout.sequence_parallel:
        # A rank keeps its part of a linear layer's input, and gathers the others again for the gradient of the weights.
        operations = [("all-gather", 4, ", of which 2 gather inputs again"), ("reduce-scatter", 2, "")]
    for operation, backward, why in operations:
        what = f"activations: {forward} forward{repeated}, {backward} backward{why}, in each of {layers} layers"
        source = f"b s h e; arXiv:{'2205.05198' if layout.sequence_parallel else '1909.08053'}"
        count = (forward + backward) * layers * layout.microbatches
        yield _operation_traffic(operation, size, layout, "tp", model.dtype, what, source, count)


def _vocabulary(model: Model, layout: Layout, micro: int) -> Iterator[Collective]:
    """Embedding, output layer and loss, cut along the vocabulary: Shoeybi et al., arXiv:1909.08053, section 3.

    The embedding's partial rows are added up; the gradients of the output layer's input as well. The loss needs of each token
    the largest logit, the logit of its target and the sum of exponentials, 32 bit each. With sequence parallelism as
    Megatron-LM's core does it: learned positions are added before the sequence is cut, so that the embedding is all-reduced.
    """
    shape, style = model.shape, model.style
    assert shape is not None and style is not None, "the layout was checked"
    tokens = micro * shape.sequence
    size = tokens * shape.hidden * model.element
    first, last = layout.groups("tp")[: layout.dp], layout.groups("tp")[-layout.dp :]
    embedding, output = [("all-reduce", 1, "forward")], [("all-reduce", 1, "gradients of its input")]
    if layout.sequence_parallel:
        embedding = [("all-reduce" if style.learned else "reduce-scatter", 1, "forward"), ("all-gather", 1, "backward")]
        output = [
            ("all-gather", 2, "its input, forward and again backward"),
            ("reduce-scatter", 1, "gradients of its input"),
        ]
    ends = [(first, f"embedding, {what}", operation, count) for operation, count, what in embedding]
    ends += [(last, f"output layer: {what}", operation, count) for operation, count, what in output]
    for groups, what, operation, count in ends:
        yield Collective(
            operation=operation, size=size, count=count * layout.microbatches, axis="tp", groups=groups, dtype=model.dtype,
            what=what, source="b s h e; arXiv:1909.08053",
        )  # fmt: skip
    yield Collective(
        operation="all-reduce", size=4 * tokens, count=3 * layout.microbatches, axis="tp", groups=last, dtype="float32",
        what="loss: largest logit, target's logit, sum of exponentials", source="4 b s; arXiv:1909.08053",
    )  # fmt: skip


def _norm_gradients(model: Model, layout: Layout, optimizer: Optimizer) -> Collective:
    """Return the sum of gradients of what every rank holds whole: with sequence parallelism a rank sees only some of the tokens."""
    layers, _ = largest_share(model, layout)
    parts = [part for layer in layers for part in layer.parts if part.kind == "whole" and part.name != "positions"]
    size = sum(part.elements for part in parts) * optimizer.for_dtype(model.element).gradients
    return _operation_traffic(
        "all-reduce", size, layout, "tp", optimizer.gradient_dtype(model.dtype),
        "gradients of norms and of biases that every rank holds", "arXiv:2205.05198; Megatron-LM",
    )  # fmt: skip


def _experts(model: Model, layout: Layout, micro: int) -> Collective:
    """Dispatch and combine of every token's topk copies, forward and backward."""
    shape = model.shape
    assert shape is not None, "the layout was checked"
    size = batch_shares.even(micro * shape.sequence * shape.hidden * shape.topk, layout.tp) * model.element
    layers = _blocks(model, layout)
    return _operation_traffic(
        "all-to-all", size, layout, "ep", model.dtype,
        f"tokens: to experts and back, forward and backward in each of {layers} layers", "b s h topk e / tp",
        4 * layers * layout.microbatches,
    )  # fmt: skip


def _pipeline(model: Model, layout: Layout, micro: int) -> Iterator[Collective]:
    """One message forward and one backward per microbatch at each stage boundary; both are counted."""
    boundaries = [layers[-1].output or 0 for layers in split_stages(model, layout.pp)[:-1]]
    stages_by_output: dict[tuple[int, int], list[int]] = {}
    for stage, output in enumerate(boundaries):
        stages_by_output.setdefault((output, stage % 2), []).append(stage)
    for (output, _), stages in stages_by_output.items():
        shard = layout.tp if layout.sequence_parallel else 1
        names = ", ".join(f"{stage}-{stage + 1}" for stage in stages)
        yield Collective(
            operation="send-recv", size=batch_shares.even(micro * output, shard) * model.element, count=2 * layout.microbatches, axis="pp",
            groups=tuple(pair for stage in stages for pair in layout.pairs(stage)), dtype=model.dtype,
            what=f"activations forward, their gradients back, stages {names}", source="b_micro s h e",
        )  # fmt: skip


def _tied_embedding(embedding: Part, model: Model, layout: Layout, optimizer: Optimizer) -> Collective:
    """The first and the last stage add up their gradients of the embedding that they share: Megatron-LM, arXiv:2104.04473."""
    across = (layout.pp - 1) * layout.dp * layout.tp
    return Collective(
        operation="all-reduce", count=1, axis="embedding", dtype=optimizer.gradient_dtype(model.dtype),
        size=batch_shares.even(embedding.elements, layout.tp) * optimizer.for_dtype(model.element).gradients,
        groups=tuple((rank, rank + across) for rank in range(layout.dp * layout.tp)),
        what="gradients of the embedding that the first and the last stage share", source="V h e / tp",
    )  # fmt: skip


def _operation_traffic(
    operation: str, size: int, layout: Layout, axis: str, dtype: str, what: str, source: str, count: int = 1
) -> Collective:
    return Collective(
        operation=operation, size=size, count=count, axis=axis, groups=layout.groups(axis), dtype=dtype,
        what=what, source=source,
    )  # fmt: skip


def _units(model: Model, layout: Layout) -> list[tuple[Layer, int, int]]:
    """(layer, dense, expert) elements of every unit that is gathered as one: the layers of the largest stage."""
    layers, _ = largest_share(model, layout)
    held = [(layer, share_of_stage((layer,), layout)) for layer in layers]
    return [(layer, share.dense, share.expert) for layer, share in held]


def _sort(layer: Layer) -> str:
    return "each block" if layer.name.startswith("block") else layer.name


def _blocks(model: Model, layout: Layout) -> int:
    """Blocks of the stage that holds most."""
    layers, _ = largest_share(model, layout)
    return sum(layer.block for layer in layers)


def _counted(collectives: Iterable[Collective]) -> Iterator[Collective]:
    """Merge equal collectives into one, with their count, at the position of the first."""
    counts: dict[Collective, int] = {}
    for collective in collectives:
        key = dataclasses.replace(collective, count=0)
        counts[key] = counts.get(key, 0) + collective.count
    for key, count in counts.items():
        yield dataclasses.replace(key, count=count)
