"""The request of an estimate."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...app.requests import option
from ...model.frozen import dataclass
from ..sizing import gpu_memory, layout, transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The model of an estimate."""

    model: str | None = option(
        None, f"mnist-mlp, transformer, module:factory, or one of {', '.join(transformers.PRESETS)}."
    )
    trace: Path | None = option(
        None, "A trace in place of a model: PARAM or Chakra JSON, a file or a folder of rank-N.json."
    )
    layers: int | None = option(None, "Layers of a transformer; the next options describe it too.", least=1)
    hidden: int | None = option(None, "Width of a layer.", least=1)
    heads: int | None = option(None, "Attention heads.", least=1)
    kv_heads: int | None = option(None, "Heads of keys and values.  [default: as many as heads]", least=1)
    ffn: int | None = option(None, "Width of the feed-forward part.  [default: 4 x hidden]", least=1)
    vocabulary: int | None = option(None, "Tokens that exist.  [default: 50257]", least=1)
    sequence: int | None = option(None, "Tokens of a sequence.  [default: 1024]", least=1)
    experts: int | None = option(None, "Experts of a layer.", least=1)
    topk: int | None = option(None, "Experts per token.  [default: 2]", least=1)
    style: str | None = option(
        None,
        "gpt: biases, learned positions, tied output, dropout; llama: none of these, gated.",
        choices=tuple(transformers.STYLES),
    )
    attention: str | None = option(
        None,
        "Whether it keeps its s x s matrices, or not, as FlashAttention.  [default: gpt: matrices, llama: flash]",
        choices=transformers.ATTENTION,
    )
    dtype: str | None = option(None, "float32, bfloat16, float16 or float64.")
    input: str | None = option(None, "Shape of one sample, for module:factory: 3x224x224, 1024:int64.")

    @property
    def shape(self) -> dict[str, int]:
        """The figures of a transformer that are given."""
        names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "sequence", "experts", "topk")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRequest:
    """The distribution of the model and the batch in an estimate."""

    strategy: str = option("dp", "How the model and the batch are distributed.", choices=layout.STRATEGIES)
    gpus: int | None = option(None, "Number of ranks.  [default: 4]", least=1)
    batch: int | None = option(None, "Samples per step on all GPUs; for a transformer, sequences.", least=1)
    dataset: int | None = option(None, "Samples per epoch: determines the number of steps.", least=1)
    epochs: int = option(1, "Passes over the data set.", least=1)
    shares: str | None = option(None, "An uneven split of the batch: .25,.25,.10,.4")
    tp: int | None = option(None, "Tensor-parallel size (hybrid).", least=1)
    pp: int | None = option(None, "Pipeline stages (hybrid).", least=1)
    ep: int | None = option(None, "Expert-parallel size, within the data-parallel ranks.", least=1)
    zero: int | None = option(
        None,
        "Shard 1 optimizer state, 2 gradients as well, 3 parameters as well.  [default: 3 with fsdp]",
        least=0,
        most=3,
    )
    microbatches: int | None = option(
        None, "Microbatches of one replica's batch.  [default: the number of stages]", least=1
    )
    sequence_parallel: bool = option(False, "Tensor parallelism by all-gather and reduce-scatter.")
    recompute: Literal["none", "selective", "full"] = option(
        "none",
        "What the backward pass recomputes; selective: attention's matrices; full: whole blocks.",
        choices=layout.RECOMPUTE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """The request of `ccbed size`."""

    model: ModelRequest = ModelRequest()
    layout: LayoutRequest = LayoutRequest()
    optimizer: str = option("adam", "Its state is part of the memory.", choices=tuple(gpu_memory.OPTIMIZERS))
    link: str | None = option(
        None,
        "Rate and latency of a link: 100mbit,50us (bits with the headers of Ethernet), 12.5GB/s,5us (bytes of data).",
    )
    gpu_memory: str | None = option(None, "Memory of a GPU: 80g (10^9 bytes), 80GiB.")
    algorithm: str | None = option(
        None, "The algorithm whose cost counts: a file of algorithms/, auto.  [default: ring if possible]"
    )
    emit: Path | None = option(None, "Write a trial that replays the collectives.", is_file=True)
    force: bool = option(False, "Overwrite the file of --emit.")
