"""The options of `size`: the model, the layout over GPUs, and the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ...core.sizing import layout, memory, transformers

_COUNT = click.IntRange(min=1)
Function = Callable[..., Any]


def model(function: Function) -> Function:
    """Add --model and --trace, the figures of a transformer, the type of the parameters."""
    names = ", ".join(transformers.PRESETS)
    styles = "gpt: biases, learned positions, tied output, dropout; llama: none of these, gated."
    attention = (
        "Whether it keeps its s x s matrices, or not, as FlashAttention.  [default: gpt: matrices, llama: flash]"
    )
    counts = (
        ("--layers", "Layers of a transformer; the next options describe it too."), ("--hidden", "Width of a layer."),
        ("--heads", "Attention heads."), ("--kv-heads", "Heads of keys and values.  [default: as many as heads]"),
        ("--ffn", "Width of the feed-forward part.  [default: 4 x hidden]"), ("--vocabulary", "Tokens that exist.  [default: 50257]"),
        ("--sequence", "Tokens of a sequence.  [default: 1024]"), ("--experts", "Experts of a layer."),
        ("--topk", "Experts per token.  [default: 2]"),
    )  # fmt: skip
    added = [
        click.option("--model", "model_name", help=f"mnist-mlp, transformer, module:factory, or one of {names}."),
        click.option(
            "--trace",
            type=click.Path(path_type=Path),
            help="A trace in place of a model: PARAM or Chakra JSON, a file or a folder of rank-N.json.",
        ),
        *(click.option(name, type=_COUNT, help=text) for name, text in counts),
        click.option("--style", type=click.Choice(tuple(transformers.STYLES)), help=styles),
        click.option("--attention", type=click.Choice(transformers.ATTENTION), help=attention),
        click.option("--dtype", help="float32, bfloat16, float16 or float64."),
        click.option("--input", "input_shape", help="Shape of one sample, for module:factory: 3x224x224, 1024:int64."),
    ]
    return _add(added, function)


def distribution(function: Function) -> Function:
    """Add the strategy, its sizes, and the batch."""
    added = [
        click.option(
            "--strategy",
            type=click.Choice(layout.STRATEGIES),
            default="dp",
            show_default=True,
            help="How the model and the batch are distributed.",
        ),
        click.option("--gpus", type=_COUNT, help="Number of ranks.  [default: 4]"),
        click.option("--batch", type=_COUNT, help="Samples per step on all GPUs; for a transformer, sequences."),
        click.option("--dataset", type=_COUNT, help="Samples per epoch: determines the number of steps."),
        click.option("--epochs", type=_COUNT, default=1, show_default=True, help="Passes over the data set."),
        click.option("--shares", help="An uneven split of the batch: .25,.25,.10,.4"),
        click.option("--tp", type=_COUNT, help="Tensor-parallel size (hybrid)."),
        click.option("--pp", type=_COUNT, help="Pipeline stages (hybrid)."),
        click.option("--ep", type=_COUNT, help="Expert-parallel size, within the data-parallel ranks."),
        click.option(
            "--zero",
            type=click.IntRange(0, 3),
            help="Shard 1 optimizer state, 2 gradients as well, 3 parameters as well.  [default: 3 with fsdp]",
        ),
        click.option(
            "--microbatches", type=_COUNT, help="Microbatches of one replica's batch.  [default: the number of stages]"
        ),
        click.option("--sequence-parallel", is_flag=True, help="Tensor parallelism by all-gather and reduce-scatter."),
        click.option(
            "--recompute",
            type=click.Choice(layout.RECOMPUTE),
            default="none",
            show_default=True,
            help="What the backward pass recomputes; selective: attention's matrices; full: whole blocks.",
        ),
    ]
    return _add(added, function)


def bounds(function: Function) -> Function:
    """Add the optimizer, memory, link, algorithm, and the file of a trial."""
    added = [
        click.option(
            "--optimizer",
            type=click.Choice(tuple(memory.OPTIMIZERS)),
            default="adam",
            show_default=True,
            help="Its state is part of the memory.",
        ),
        click.option(
            "--link",
            help="Rate and latency of a link: 100mbit,50us (bits with the headers of Ethernet), 12.5GB/s,5us (bytes of data).",
        ),
        click.option("--gpu-memory", help="Memory of a GPU: 80g (10^9 bytes), 80GiB."),
        click.option(
            "--algorithm",
            help="The algorithm whose cost counts: a file of algorithms/, auto.  [default: ring if possible]",
        ),
        click.option(
            "--emit",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write a trial that replays the collectives.",
        ),
    ]
    return _add(added, function)


def _add(added: Sequence[Callable[[Function], Function]], function: Function) -> Function:
    for option in reversed(added):
        function = option(function)
    return function
