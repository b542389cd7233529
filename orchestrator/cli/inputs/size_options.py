"""The options of `size`: of the model, of how it is spread, and of what bounds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ...core.sizing import layout, memory, transformers

_COUNT = click.IntRange(min=1)
Function = Callable[..., Any]


def model(function: Function) -> Function:
    """--model or --trace, a transformer's figures, the type of the parameters."""
    names = ", ".join(transformers.PRESETS)
    styles = "gpt: biases, learned positions, tied output; llama: none of these, gated."
    counts = (
        ("--layers", "Of a transformer; the next options are its figures too."), ("--hidden", None), ("--heads", None),
        ("--kv-heads", "[default: as many as heads]"), ("--ffn", "[default: 4 x hidden]"), ("--vocabulary", "[default: 50257]"),
        ("--sequence", "[default: 1024]"), ("--experts", None), ("--topk", "Experts of each token.  [default: 2]"),
    )  # fmt: skip
    found = [
        click.option("--model", "model_name", help=f"mnist-mlp, transformer, module:factory, or one of {names}."),
        click.option(
            "--trace",
            type=click.Path(path_type=Path),
            help="A trace instead: PARAM or Chakra JSON, a file or a folder of rank-N.json.",
        ),
        *(click.option(name, type=_COUNT, help=text) for name, text in counts),
        click.option("--style", type=click.Choice(tuple(transformers.STYLES)), help=styles),
        click.option("--dtype", help="float32, bfloat16, float16 or float64."),
        click.option("--input", "input_shape", help="Shape of one sample of a module: 3x224x224, 1024:int64."),
    ]
    return _all(found, function)


def spread(function: Function) -> Function:
    """The strategy, its sizes, and the batch."""
    found = [
        click.option(
            "--strategy",
            type=click.Choice(layout.STRATEGIES),
            default="dp",
            show_default=True,
            help="How the model and the batch are spread.",
        ),
        click.option("--gpus", type=_COUNT, help="Ranks in all.  [default: 4]"),
        click.option("--batch", type=_COUNT, help="Samples of a step on all GPUs; a transformer's are sequences."),
        click.option("--dataset", type=_COUNT, help="Samples of an epoch: gives the number of trials."),
        click.option("--epochs", type=_COUNT, default=1, show_default=True),
        click.option("--shares", help="An uneven split of every batch: .25,.25,.10,.4"),
        click.option("--tp", type=_COUNT, help="Tensor-parallel size (hybrid)."),
        click.option("--pp", type=_COUNT, help="Pipeline stages (hybrid)."),
        click.option("--ep", type=_COUNT, help="Ranks that share out the experts, within the data-parallel ones."),
        click.option(
            "--zero",
            type=click.IntRange(0, 3),
            help="Sharded: 1 optimizer state, 2 and gradients, 3 and parameters.  [default: 3 with fsdp]",
        ),
        click.option("--microbatches", type=_COUNT, help="Of one replica's batch.  [default: as many as stages]"),
        click.option("--sequence-parallel", is_flag=True, help="Tensor parallelism by all-gather and reduce-scatter."),
        click.option(
            "--recompute",
            type=click.Choice(layout.RECOMPUTE),
            default="none",
            show_default=True,
            help="Computed again: selective: attention's matrices, as FlashAttention does; full: whole blocks.",
        ),
    ]
    return _all(found, function)


def bounds(function: Function) -> Function:
    """Optimizer, memory, link, algorithm, and where a trial is written."""
    found = [
        click.option("--optimizer", type=click.Choice(tuple(memory.OPTIMIZERS)), default="adam", show_default=True),
        click.option("--link", help="Rate and latency of a link: 100mbit,50us"),
        click.option("--gpu-memory", help="Memory of a GPU: 80g (10^9 bytes), 80GiB."),
        click.option(
            "--algorithm", help="Whose cost is taken: a file of algorithms/, auto.  [default: ring where it can]"
        ),
        click.option(
            "--emit",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write a trial that replays the collectives.",
        ),
    ]
    return _all(found, function)


def _all(found: Sequence[Callable[[Function], Function]], function: Function) -> Function:
    """In the order in which the help shows them."""
    for one in reversed(found):
        function = one(function)
    return function
