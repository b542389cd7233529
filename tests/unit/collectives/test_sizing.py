"""What a training moves and holds, against figures worked out by hand or published."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.collectives.rank import link_fit
from orchestrator.collectives.sizing import (
    batch_shares,
    gpu_memory,
    layout,
    link_price,
    model_description,
    traffic,
    training_size,
    transformers,
)
from orchestrator.collectives.sizing.model_description import Layer, Model, Part, Shape
from orchestrator.plugins import discover

ADAM = gpu_memory.OPTIMIZERS["adam"]
CLASSIFIER = model_description.classifier()
#: 4 layers of hidden size 8 and 2 heads, sequences of 16 tokens, 2 bytes an element.
SMALL = transformers.build(
    "small",
    Shape(layers=4, hidden=8, heads=2, kv_heads=2, ffn=32, sequence=16, vocabulary=100, experts=0),
    transformers.STYLES["gpt"],
    "bfloat16",
    "by hand",
)


def arranged(strategy: str, gpus: int, model: Model = SMALL, **given: Any) -> layout.Layout:
    rest = {key: given.pop(key) for key in ("sequence_parallel", "recompute") if key in given}
    return layout.arrange(strategy, gpus, given, model, **rest)


def moved(strategy: str, gpus: int, batch: int, model: Model = SMALL, **given: Any) -> list[tuple[str, int, int]]:
    collectives = traffic.of_step(model, arranged(strategy, gpus, model, **given), ADAM, batch)
    return [(item.operation, item.size, item.count) for item in collectives]


def test_where_inputs_are_gathered_each_gpu_has_its_part_of_every_weight() -> None:
    rank_memory = gpu_memory.of_rank(CLASSIFIER, arranged("tp", 4, CLASSIFIER), ADAM, None)
    assert rank_memory.parameters == 60_691 and rank_memory.weights == 4 * 60_691
    assert 4 * rank_memory.parameters - CLASSIFIER.parameters in range(8 * 4), (
        "no more than what eight tensors leave over"
    )
    assert gpu_memory.of_rank(CLASSIFIER, arranged("dp", 4, CLASSIFIER), ADAM, None).weights == 971_048


def prices(wanted: str | None = None) -> link_price.Prices:
    algorithms = discover().algorithms
    return link_price.Prices({name: algorithms[name].module for name in algorithms}, wanted)


def test_the_reference_classifier_has_the_published_figures() -> None:
    assert CLASSIFIER.parameters == 242_762
    assert [size for _, size in CLASSIFIER.gradients] == [2_600, 33_024, 131_584, 803_840]
    assert moved("dp", 4, 8192, CLASSIFIER) == [("all-reduce", 971_048, 1)]
    assert moved("ddp", 4, 8192, CLASSIFIER) == [("all-reduce", 971_048, 1)]
    assert moved("tp", 4, 8192, CLASSIFIER) == [("all-gather", 6_438_912, 1)]
    assert moved("tp", 4, 2656, CLASSIFIER) == [("all-gather", 2_087_616, 1)]


def test_an_epoch_ends_with_a_short_batch() -> None:
    result = batch_shares.Batches(dataset=60_000, batch=8192, epochs=1)
    assert (result.total, result.last, result.short) == (8, 2656, 1)
    three = batch_shares.Batches(dataset=60_000, batch=8192, epochs=3)
    assert (three.total, three.short) == (24, 3)
    even = batch_shares.Batches(dataset=60_000, batch=6000, epochs=2)
    assert (even.total, even.last, even.short) == (20, 6000, 0)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2-124m", 124_439_808),
        ("gpt2-1.5b", 1_557_611_200),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_presets_have_as_many_parameters_as_the_published_weights(name: str, parameters: int) -> None:
    assert transformers.preset(name, None, {}).parameters == parameters


def test_megatron_reduces_four_times_in_each_layer() -> None:
    # b s h e = 3 x 16 x 8 x 2 bytes; 4 layers x (2 forward + 2 backward). With sequence parallelism the backward pass gathers
    # the inputs of 2 linear layers again: Korthikanti et al., arXiv:2205.05198, section 4.2.2.
    def layers(**given: Any) -> list[tuple[str, int, int]]:
        collectives = traffic.of_step(SMALL, arranged("tp", 2, **given), ADAM, 3)
        return [(item.operation, item.size, item.count) for item in collectives if item.what.startswith("activations")]

    assert layers() == [("all-reduce", 768, 16)]
    assert layers(recompute="full") == [("all-reduce", 768, 24)]
    assert layers(sequence_parallel=True) == [("all-gather", 768, 24), ("reduce-scatter", 768, 16)]
    full: dict[str, Any] = {"sequence_parallel": True, "recompute": "full"}
    assert layers(**full) == [("all-gather", 768, 32), ("reduce-scatter", 768, 24)]


@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_parallelism_moves_per_layer_what_its_paper_says(tp: int) -> None:
    """Narayanan et al., arXiv:2104.04473, section 3.2: per layer, device and microbatch 8 b s h (t - 1) / t elements."""
    model = transformers.preset("gpt3-175b", None, {})
    assert model.shape is not None
    made = arranged("tp", tp, model)
    (layers,) = [row for row in traffic.of_step(model, made, ADAM, 1) if row.what.startswith("activations")]
    price = prices("ring").of(layers, None)
    assert price is not None and layers.count == 4 * 96
    sent = layers.count * layers.size * price.volume
    assert sent == pytest.approx(96 * 8 * 2048 * 12288 * (tp - 1) / tp * model.element)


def vocabulary(style: str, strategy: str, gpus: int, **given: Any) -> list[tuple[str, int, int, layout.Groups]]:
    shape = SMALL.shape
    assert shape is not None
    model = transformers.build("small", shape, transformers.STYLES[style], "bfloat16", "by hand")
    rows = traffic.of_step(model, arranged(strategy, gpus, model, **given), ADAM, 12)
    own = ("embedding", "output layer", "loss", "gradients of norms")
    return [(row.operation, row.size, row.count, row.groups) for row in rows if row.what.startswith(own)]


def test_the_vocabulary_is_cut_among_the_ranks() -> None:
    """Shoeybi et al., arXiv:1909.08053, section 3: an all-reduce after the embedding, and for the loss b s in place of b s v.

    Megatron-LM, megatron/core: VocabParallelEmbedding adds up its rows, ColumnParallelLinear the gradients of its input, and
    _VocabParallelCrossEntropy three values of 32 bit of each token.
    """
    both = ((0, 1),)
    activations, losses = 12 * 16 * 8 * 2, 12 * 16 * 4
    whole = [
        ("all-reduce", activations, 1, both),
        ("all-reduce", activations, 1, both),
        ("all-reduce", losses, 3, both),
    ]
    assert vocabulary("gpt", "tp", 2) == whole
    assert vocabulary("llama", "tp", 2) == whole
    assert vocabulary("gpt", "dp", 2) == [], "no vocabulary is cut"


def test_with_sequence_parallelism_the_vocabularys_ends_gather_and_scatter() -> None:
    """megatron/core: LanguageModelEmbedding scatters at once where no positions are learned; ColumnParallelLinear gathers its
    input again; finalize_model_grads adds up the gradients of norms and of row-parallel biases.
    """
    both, activations, losses = ((0, 1),), 12 * 16 * 8 * 2, 12 * 16 * 4
    output = [
        ("all-gather", activations, 2, both), ("reduce-scatter", activations, 1, both), ("all-reduce", losses, 3, both),
    ]  # fmt: skip
    norms = (
        4 * 2 * 8 + 8
    )  # weights: two of each of 4 layers, and the last; GPT's have biases, as have two matrices of a layer
    scattered = [("reduce-scatter", activations, 1, both), ("all-gather", activations, 1, both)]
    reduced = [("all-reduce", activations, 1, both), ("all-gather", activations, 1, both)]
    llama = [*scattered, *output, ("all-reduce", norms * 2, 1, both)]
    assert vocabulary("llama", "tp", 2, sequence_parallel=True) == llama
    gpt = [*reduced, *output, ("all-reduce", (2 * norms + 4 * 2 * 8) * 2, 1, both)]
    assert vocabulary("gpt", "tp", 2, sequence_parallel=True) == gpt


def test_the_first_stage_has_the_embedding_and_the_last_the_loss() -> None:
    rows = vocabulary("llama", "hybrid", 8, tp=2, pp=2)
    # 12 samples of 2 replicas in 2 microbatches are 3 each
    activations, first, last = 3 * 16 * 8 * 2, ((0, 1), (2, 3)), ((4, 5), (6, 7))
    assert rows == [
        ("all-reduce", activations, 2, first),
        ("all-reduce", activations, 2, last),
        ("all-reduce", 3 * 16 * 4, 6, last),
    ]


def test_zero_3_moves_three_times_the_model() -> None:
    collectives = moved("fsdp", 4, 8)
    assert sum(size * count for operation, size, count in collectives if operation == "all-gather") == 2 * SMALL.bytes
    assert sum(size * count for operation, size, count in collectives if operation == "reduce-scatter") == SMALL.bytes


@pytest.mark.parametrize("zero", [1, 2])
def test_lower_stages_move_twice_the_model(zero: int) -> None:
    assert moved("fsdp", 4, 8, zero=zero) == [("reduce-scatter", SMALL.bytes, 1), ("all-gather", SMALL.bytes, 1)]


def test_stages_exchange_each_microbatch_at_every_boundary() -> None:
    # 8 samples in 4 microbatches of 2, each forward and back: 2 x 16 x 8 x 2 bytes; boundaries 0-1 and 2-3 at once, then 1-2
    collectives = traffic.of_step(SMALL, arranged("pp", 4), ADAM, 8)
    assert [(item.operation, item.size, item.count, item.groups) for item in collectives] == [
        ("send-recv", 512, 8, ((0, 1), (2, 3))),
        ("send-recv", 512, 8, ((1, 2),)),
        ("all-reduce", 100 * 8 * 2, 1, ((0, 3),)),  # of the embedding that the output layer shares
    ]


def test_stages_of_the_classifier_pass_on_what_its_layers_put_out() -> None:
    # 2,048 samples of a microbatch x 256, 128, 64 outputs x 4 bytes
    collectives = moved("pp", 4, 8192, CLASSIFIER)
    assert collectives == [("send-recv", 2_097_152, 8), ("send-recv", 1_048_576, 8), ("send-recv", 524_288, 8)]


def test_experts_exchange_their_tokens_four_times_in_each_layer() -> None:
    assert SMALL.shape is not None
    shape = dataclasses.replace(SMALL.shape, experts=4, topk=2)
    experts = transformers.build("moe", shape, transformers.STYLES["llama"], "bfloat16", "by hand")
    collectives = traffic.of_step(experts, arranged("ep", 4, experts), ADAM, 8)
    # s b h topk e = 16 x 2 x 8 x 2 x 2 bytes; 4 layers x 4
    assert (collectives[0].operation, collectives[0].size, collectives[0].count) == ("all-to-all", 1024, 16)
    # Every rank has another expert, so experts' gradients stay where they are: the others' alone are reduced.
    dense = sum(part.elements for layer in experts.layers for part in layer.parts if part.kind != "expert")
    assert [(item.operation, item.size) for item in collectives][1:] == [("all-reduce", dense * 2)]


def test_groups_of_a_hybrid_are_laid_out_side_by_side() -> None:
    made = arranged("hybrid", 8, tp=2, pp=2)
    assert made.dp == 2
    assert made.groups("tp") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert made.groups("dp") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert made.pairs(0) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_a_hybrid_is_the_product_of_its_groups() -> None:
    # 16 samples of 2 replicas in 2 microbatches are 4 each; stage 0 has 2 of 4 layers, and the embedding
    collectives = traffic.of_step(SMALL, arranged("hybrid", 8, tp=2, pp=2), ADAM, 16)
    assert [(item.operation, item.axis, item.size, item.count) for item in collectives][:5] == [
        ("all-reduce", "tp", 4 * 16 * 8 * 2, 4 * 2 * 2),
        ("all-reduce", "tp", 4 * 16 * 8 * 2, 2),  # embedding of stage 0
        ("all-reduce", "tp", 4 * 16 * 8 * 2, 2),  # output layer of stage 1
        ("all-reduce", "tp", 4 * 16 * 4, 3 * 2),  # loss
        ("send-recv", "pp", 4 * 16 * 8 * 2, 2 * 2),
    ]
    assert collectives[5].axis == "dp" and collectives[5].operation == "all-reduce"


def test_buckets_close_with_the_tensor_that_fills_them() -> None:
    megabyte = 1024 * 1024
    sizes = (30 * megabyte, 20 * megabyte, 6 * megabyte, megabyte)
    layers = tuple(Layer(name=str(size), parts=(Part("weight", size // 4),)) for size in sizes)
    model = Model(name="wide", dtype="float32", layers=layers, source="by hand")
    # From the last: 1 MiB fills the first bucket; 6 + 20 fill one of 25 MiB; 30 remain.
    assert traffic.buckets(model, 4) == (megabyte, 26 * megabyte, 30 * megabyte)


def test_buckets_are_those_of_the_library() -> None:
    import torch
    from torch import distributed

    model = transformers.preset("gpt2-124m", None, {})
    sizes = [part.elements for layer in model.layers for part in layer.parts]
    tensors = [torch.empty(size, device="meta") for size in reversed(sizes)]
    limits = [traffic.FIRST_BUCKET, traffic.BUCKET]
    result, _ = distributed._compute_bucket_assignment_by_size(tensors, limits)  # type: ignore[attr-defined]
    assert traffic.buckets(model, 4) == tuple(sum(tensors[item].numel() * 4 for item in bucket) for bucket in result)


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_holds_what_its_paper_says(zero: int, gigabytes: float) -> None:
    layer = Layer(name="all", parts=(Part("weight", 7_500_000_000, "whole"),))
    model = Model(name="7.5B", dtype="bfloat16", layers=(layer,), source="arXiv:1910.02054, figure 1")
    made = layout.arrange("fsdp", 64, {"zero": zero}, model)
    held = gpu_memory.of_rank(model, made, ADAM, None)
    assert round(held.total / 1e9, 1) == gigabytes


@pytest.mark.parametrize(
    ("optimizer", "dtype", "values"),
    [
        ("adam", 2, 16),
        ("adam", 4, 16),
        ("adam-fp32-gradients", 2, 18),
        ("sgd-momentum", 4, 12),
        ("sgd-momentum", 2, 12),
    ],
)
def test_bytes_of_a_parameter(optimizer: str, dtype: int, values: int) -> None:
    held = gpu_memory.OPTIMIZERS[optimizer].for_dtype(dtype)
    assert held.weights + held.gradients + held.state == values


def test_activations_of_a_block() -> None:
    def kept(**given: Any) -> int:
        given = {"gpus": 2, **given}
        made = arranged(given.pop("strategy", "dp"), given.pop("gpus"), **given)
        return gpu_memory.layer_activations(SMALL, made, 1)[0] or 0

    # s b h = 128; 5 a s / h = 20
    assert kept() == 128 * 54
    assert kept(recompute="selective") == 128 * 34
    assert kept(recompute="full") == 128 * 2
    assert kept(strategy="tp") == 128 * (10 + 12 + 10)
    assert kept(strategy="tp", sequence_parallel=True) == 128 * 27


def test_a_ring_takes_what_its_cost_model_says() -> None:
    link = link_price.parse_link("100mbit,50us")
    assert link.alpha == pytest.approx(50e-6) and link.beta == pytest.approx(80e-9 * 1514 / 1448)
    made = arranged("dp", 4, CLASSIFIER)
    question = training_size.SizingRequest(model=CLASSIFIER, layout=made, optimizer=ADAM, batch=8192, link=link)
    # 6 a + 1.5 n b
    assert training_size.compute(question, prices()).step_seconds == pytest.approx(
        6 * 50e-6 + 1.5 * 971_048 * link.beta
    )


@pytest.mark.parametrize(
    ("text", "rate", "alpha"), [("1gbit", 1e9, 0), ("12.5GB/s,5us", 1e11, 5e-6), ("400Gb/s, 2ms", 4e11, 2e-3)]
)
def test_links_are_read(text: str, rate: float, alpha: float) -> None:
    result = link_price.parse_link(text)
    assert result.rate == pytest.approx(rate) and result.alpha == pytest.approx(alpha)


def test_a_full_frame_has_the_headers_of_its_standards() -> None:
    """IPv4 20 bytes (RFC 791), TCP 20 (RFC 9293) and its timestamps 12 (RFC 7323) of 1,500; Ethernet 14 (RFC 894)."""
    assert link_fit.PAYLOAD == 1500 - 20 - 20 - 12
    assert link_fit.FRAME == 1500 + 14


def test_bits_of_a_link_include_headers_and_bytes_do_not() -> None:
    assert link_price.parse_link("8gbit").beta == pytest.approx(1e-9 * 1514 / 1448)
    assert link_price.parse_link("1GB/s").beta == pytest.approx(1e-9)


@pytest.mark.parametrize("text", ["fast", "0mbit", "100mbit,soon", "-1gbit", "100"])
def test_links_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="--link"):
        link_price.parse_link(text)


def test_what_does_not_fit_names_what_would() -> None:
    model = transformers.preset("llama-3-8b", None, {})
    made = arranged("dp", 64, model)
    question = training_size.SizingRequest(model=model, layout=made, optimizer=ADAM, batch=64, limit=80 * 10**9)
    fit = training_size.compute(question, prices()).fit
    assert fit is not None and fit.spare < 0 and fit.alternatives
    assert all(held.total <= fit.limit for _, held in fit.alternatives)


@pytest.mark.parametrize(
    ("name", "gpus", "batch"), [("llama-3-8b", 64, 64), ("gpt3-175b", 128, 64), ("gpt2-1.5b", 2, 8)]
)
def test_what_would_fit_can_be_asked_for_and_then_fits(name: str, gpus: int, batch: int) -> None:
    model = transformers.preset(name, None, {})
    plain = arranged("dp", gpus, model)
    limit = 60 * 10**9 if gpus > 2 else 40 * 10**9
    result = gpu_memory.fitting_layouts(model, plain, ADAM, batch, limit)
    assert result
    for other, held in result:
        given: dict[str, Any] = {"zero": other.zero or None} if other.strategy != "ddp" else {}
        given |= {"tp": other.tp, "pp": other.pp} if other.strategy == "hybrid" else {}
        rest: dict[str, Any] = {"sequence_parallel": other.sequence_parallel, "recompute": other.recompute}
        requested = arranged(other.strategy, gpus, model, **given, **rest)
        assert requested == other
        assert gpu_memory.of_rank(model, requested, ADAM, batch) == held


def test_shares_cut_every_batch_and_weigh_the_losses() -> None:
    result = batch_shares.uneven((0.25, 0.25, 0.10, 0.4), 4, 8192, 2656)
    assert [share.samples for share in result] == [2048, 2048, 819, 3277]
    assert [share.last for share in result] == [664, 664, 266, 1062]
    assert sum(share.weight for share in result) == pytest.approx(4)
    assert result[2].weight == pytest.approx(819 * 4 / 8192)


@pytest.mark.parametrize(
    ("shares", "problem"),
    [
        ((0.5, 0.4), "2 data-parallel ranks|sum to 1"),
        ((0.5, 0.5, 0.5, 0.5), "must sum to 1 \\(got 2\\)"),
        ((0.5, 0.5, 0.0, 0.0), "every share must be > 0"),
        ((0.9997, 0.0001, 0.0001, 0.0001), "rank 1 gets no sample of a batch of 100"),
    ],
)
def test_shares_that_cannot_be(shares: tuple[float, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        batch_shares.uneven(shares, 4, 100, 100)


@pytest.mark.parametrize(
    ("strategy", "gpus", "given", "problem"),
    [
        ("tp", 3, {}, "must divide the 2 heads"),
        ("pp", 5, {}, "4 layers for 5 stages"),
        ("hybrid", 6, {"tp": 2, "pp": 2}, "multiple of tp x pp = 2 x 2"),
        ("ep", 4, {}, "has no experts"),
        ("dp", 4, {"tp": 2}, "--tp: not with --strategy dp"),
        ("dp", 4, {"sequence_parallel": True}, "only with tensor parallelism"),
    ],
)
def test_layouts_that_cannot_be(strategy: str, gpus: int, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        arranged(strategy, gpus, **given)
