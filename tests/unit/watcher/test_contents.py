"""What a saved object contains: recognised by structure, with the digests that the state of the job has."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.rank.watcher import digest, kept_tensors, owner, states
from orchestrator.rank.watcher.checkpoints import fused_names, saved_contents

Job = tuple[torch.nn.Module, torch.optim.Optimizer]


@pytest.fixture
def job() -> Job:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    train(model, optimizer)
    return model, optimizer


def train(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    model(torch.rand(5, 3)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()


def known(optimizer: torch.optim.Optimizer) -> tuple[owner.Owner, saved_contents.Owner]:
    """The owner as the watcher finds it at a step of this optimizer, without objects of other tests."""
    with pytest.MonkeyPatch.context() as patch:
        held = {id(parameter) for parameter in owner.parameters_of(optimizer)}
        scan = owner._scan()
        shared = [
            other for other in scan["Optimizer"] if held & {id(p) for p in owner.parameters_of(other)}
        ]  # fmt: skip
        patch.setattr(owner, "_scan", lambda: {**scan, "Optimizer": shared})
        live = owner.Owner(optimizer)
    return live, states.describe_owner(live, tuple(name for name, _ in states.saved_buffers(live.modules)))


def describe(value: Any, live: saved_contents.Owner | None = None) -> dict[str, Any]:
    return saved_contents.read(value).describe(live)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "net.backbone."])
@pytest.mark.parametrize("nesting", [(), ("model",), ("state", "net")])
def test_weights_buffers_and_optimizer_have_the_digests_of_the_live_state(
    job: Job, prefix: str, nesting: tuple[str, ...]
) -> None:
    model, optimizer = job
    live, saved_owner = known(optimizer)
    value: Any = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    for key in reversed(nesting):
        value = {key: value}
    described = describe([value, {"optimizer": optimizer.state_dict()}, 7], saved_owner)
    assert (described["weights"], described["numel"]) == live.weights()
    assert described["matched"] == 1.0
    parts = described["contents"]
    assert parts["buffers"] == states.buffers(live.modules)
    assert {f"optimizer.{name}": value for name, value in live.optimizer_states().items()}.items() <= parts.items()
    assert parts["lr"] == live.rates() == [(0.5).hex()]


def test_a_change_of_one_bit_or_name_is_another_digest(job: Job) -> None:
    model, optimizer = job
    _, live = known(optimizer)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = describe(state, live)["weights"]
    state["0.bias"].view(torch.int32)[2] ^= 1
    assert describe(state, live)["weights"] != before
    state["0.bias"].view(torch.int32)[2] ^= 1
    assert describe(state, live)["weights"] == before
    swapped = {**state, "0.weight": state["2.weight"].reshape(4, -1)[:, :2], "2.weight": state["2.weight"]}
    assert describe(swapped, live)["weights"] != before


def test_a_part_of_the_parameters_has_no_digest_of_the_weights(job: Job) -> None:
    model, optimizer = job
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("2")}
    described = describe(state, known(optimizer)[1])
    assert described["weights"] is None and 0 < described["matched"] < 1


def test_an_optimizer_by_name_and_by_index_has_the_same_digest(job: Job) -> None:
    model, optimizer = job
    by_index = optimizer.state_dict()
    names = [name for name, _ in model.named_parameters()]
    by_name: dict[str, Any] = {
        "state": {names[index]: entries for index, entries in by_index["state"].items()},
        "param_groups": [
            {**group, "params": [names[i] for i in group["params"]]} for group in by_index["param_groups"]
        ],
    }
    flat: dict[str, Any] = {
        f"state.{name}.{key}": value for name, entries in by_name["state"].items() for key, value in entries.items()
    }
    flat.update({f"param_groups.{name}.lr": 0.5 for name in names})
    _, live = known(optimizer)
    first, second, third = (describe(value, live)["contents"] for value in (by_index, by_name, flat))
    assert first == second == {name: value for name, value in third.items() if not name.startswith("other.")}


def test_several_optimizers_are_summed_and_one_that_is_missing_is_noticed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizers = [torch.optim.Adam(layer.parameters()) for layer in model]
    train(model, *optimizers)
    states_by_name = [optimizer.state_dict() for optimizer in optimizers]
    with pytest.MonkeyPatch.context() as patch:
        scan = owner._scan()
        patch.setattr(owner, "_scan", lambda: {**scan, "Optimizer": optimizers})
        live = owner.Owner(optimizers[0])
    saved_owner = states.describe_owner(live, ())
    for order in (states_by_name, states_by_name[::-1]):
        parts = describe(order, saved_owner)["contents"]
        assert parts["optimizer.exp_avg"] == live.optimizer_states()["exp_avg"]
    assert describe(states_by_name[:1], saved_owner)["contents"]["optimizer.exp_avg"] is None


class _Wrapper(torch.optim.Optimizer):
    """As Accelerate wraps an optimizer: it has the same groups."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.inner = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state


def test_a_wrapper_of_an_optimizer_counts_once(job: Job) -> None:
    _, optimizer = job
    alone, _ = known(optimizer)
    wrapper = _Wrapper(optimizer)
    live, saved_owner = known(optimizer)
    assert wrapper in live.optimizers
    assert (live.rates(), live.optimizer_states()) == (alone.rates(), alone.optimizer_states())
    assert describe(optimizer.state_dict(), saved_owner)["contents"]["optimizer.exp_avg"] is not None


def test_of_a_model_and_its_average_the_live_one_is_the_weights(job: Job) -> None:
    model, optimizer = job
    live, saved_owner = known(optimizer)
    average = {name: tensor.clone() + 1 for name, tensor in model.state_dict().items()}
    for value in ({"ema": average, "net": model.state_dict()}, {"net": model.state_dict(), "shadow": average}):
        assert describe(value, saved_owner)["weights"] == live.weights()[0]


def test_a_module_and_an_optimizer_that_are_pickled_whole_are_recognised(job: Job) -> None:
    model, optimizer = job
    live, saved_owner = known(optimizer)
    described = describe({"model": model, "optimizer": optimizer}, saved_owner)
    assert described["weights"] == live.weights()[0]
    assert described["contents"]["optimizer.exp_avg_sq"] == live.optimizer_states()["exp_avg_sq"]


class Fused(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wqkv, self.out = torch.nn.Linear(3, 12), torch.nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.wqkv(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("flaw", ["", "row", "missing"])
def test_a_parameter_that_is_saved_as_several_tensors_matches_by_content(
    monkeypatch: pytest.MonkeyPatch, flaw: str, prefix: str
) -> None:
    model = Fused()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    live, saved_owner = known(optimizer)
    monkeypatch.setattr(saved_contents.owner, "current", saved_owner)
    saved = {name: item.clone() for name, item in model.state_dict().items()}
    for kind in ("weight", "bias"):  # heads lie interleaved, as those of torchtitan
        heads = saved.pop(f"wqkv.{kind}").unflatten(0, (2, 3, 2))
        saved.update({f"{name}.{kind}": heads[:, n].flatten(0, 1) for n, name in enumerate(("wq", "wk", "wv"))})
    if flaw == "row":
        saved["wk.weight"][1, 2] += 1e-6
    elif flaw == "missing":
        del saved["wv.weight"]
    saved = {prefix + name: item for name, item in saved.items()}
    assert describe({"model": saved}, saved_owner)["weights"] == (None if flaw else live.weights()[0])


@pytest.mark.parametrize(
    ("own", "saved", "is_held"),
    [
        (torch.arange(6.0).view(3, 2), [torch.arange(4.0).view(2, 2), torch.arange(4.0, 6.0).view(1, 2)], True),
        (torch.zeros(3), [torch.tensor([0.0, 7.0]), torch.ones(1)], False),
        (torch.zeros(0, 2), [torch.zeros(0, 2)], True),
        (torch.tensor(1.0), [torch.tensor(1.0)], False),
        (torch.eye(2).to_sparse(), [torch.eye(2).to_sparse()], False),
        (torch.ones(2, dtype=torch.complex128), [torch.ones(2, dtype=torch.complex128)], False),
    ],
    ids=["parts", "more than the rows", "no rows", "no dimension", "sparse", "complex"],
)
def test_tensors_of_any_kind_hold_a_parameter_only_with_exactly_its_rows(
    own: torch.Tensor, saved: list[torch.Tensor], is_held: bool
) -> None:
    tensors = {f"w{number}.weight": item for number, item in enumerate(saved)} | {"out.weight": torch.ones(1)}
    matched = fused_names.split(tensors, {"out.weight": "out.weight"}, {"wqkv.weight": own})
    assert [name for name, _ in matched] == ["wqkv.weight"] * is_held


def test_rows_are_numbered_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(7, 3)
    whole = fused_names._rows(rows)
    monkeypatch.setattr(fused_names, "PART", 6)
    assert torch.equal(fused_names._rows(rows), whole) and len(set(whole.tolist())) == 7


class Holder:
    """As NVIDIA's resiliency extension saves a state: an object that holds it."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state_dict, self.is_hollow = state, False


class Reduced(Holder):
    def __reduce__(self) -> tuple[Any, ...]:
        return Holder, ({},)


class Secretive(Holder):
    def __getstate__(self) -> dict[str, Any]:
        return {}


def test_an_object_of_the_jobs_own_class_is_what_it_holds(job: Job) -> None:
    model, optimizer = job
    live, saved_owner = known(optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    saved = describe(Holder(state), saved_owner)
    assert saved["weights"] == live.weights()[0] and "optimizer.exp_avg" in saved["contents"]
    assert describe(SimpleNamespace(**state), saved_owner)["weights"] == live.weights()[0]
    for kind in (Secretive, Reduced):  # they pickle something else
        assert describe(kind(state), saved_owner)["weights"] is None
    nested = describe({**state, "options": Holder({"resumed": True})}, saved_owner)  # options differ between starts
    assert not [name for name in nested["contents"] if "resumed" in name or "hollow" in name]


def test_scheduler_scaler_and_generators_are_those_of_the_state(job: Job) -> None:
    _, optimizer = job
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu")
    value = {
        "scheduler": scheduler.state_dict(), "scaler": scaler.state_dict(), "epoch": 3,
        "rng": {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()},
    }  # fmt: skip
    parts = describe(value)["contents"]
    assert parts["scheduler"] == [[scheduler.last_epoch, scheduler._step_count]]
    assert parts["scaler"] == states._scaler(scaler)
    assert parts["rng"] == states.generators()
    random.random()
    assert parts["rng"] != states.generators()
    assert describe({"epoch": 4})["contents"]["other.epoch"] != parts["other.epoch"]
    flags = describe({"warm": True, "done": False})["contents"]
    assert flags == {"other.warm": "=1", "other.done": "=0"}, "a flag is compared where weights differ by rounding"


@pytest.mark.parametrize(
    "value",
    [
        None, 3, "text", [], {}, {1: 2}, b"bytes", object(), {"a": {"b": None}}, (1, (2,)), {"state": {}, "param_groups": []},
        {"x": torch.ones(2, device="meta")}, {"x": torch.ones(2).to_sparse()}, {"x": torch.tensor([])},
        {"last_epoch": None, "_step_count": None}, {"scale": 1, "growth_factor": object(), "_growth_tracker": 0},
        {"x": torch.ones(2, dtype=torch.bool), "y": torch.ones((), dtype=torch.complex64)}, torch.ones(3),
        {"state": {0: None}, "param_groups": [{}]}, {"state": {"a": {"b": "c"}}, "param_groups": [{"params": ["a"]}]},
    ],
)  # fmt: skip
def test_any_other_object_is_described_without_an_error(job: Job, value: Any) -> None:
    for live in (None, known(job[1])[1]):
        described = describe(value, live)
        assert described["matched"] in (None, 0.0)


def test_a_tensor_without_data_has_no_digest() -> None:
    assert describe({"x": torch.ones(2, device="meta")})["weights"] is None


def test_names_that_are_not_known_match_by_order_and_shape() -> None:
    saved = {"a": torch.ones(2, 3), "b": torch.ones(4)}
    live = saved_contents.Owner(("optimizer0.0", "optimizer0.1"), shapes=((2, 3), (4,)))
    expected = digest.total({"optimizer0.0": saved["a"], "optimizer0.1": saved["b"]})[0]
    assert describe(saved, live)["weights"] == expected
    assert describe({"b": saved["b"], "a": saved["a"]}, live)["weights"] is None


def networks(*sizes: int) -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer]]:
    """Networks of equal parameter names with an optimizer each, as in a GAN."""
    modules: list[torch.nn.Module] = [torch.nn.Linear(size, 2) for size in sizes]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(module.parameters()) for module in modules]
    for module, optimizer, size in zip(modules, optimizers, sizes, strict=True):
        module(torch.rand(3, size)).sum().backward()
        optimizer.step()
    return modules, optimizers


def owner_of(optimizers: list[torch.optim.Optimizer]) -> tuple[owner.Owner, saved_contents.Owner]:
    with pytest.MonkeyPatch.context() as patch:
        scan = owner._scan()
        patch.setattr(owner, "_scan", lambda: {**scan, "Optimizer": optimizers})
        live = owner.Owner(optimizers[0])
    return live, states.describe_owner(live, ())


@pytest.mark.parametrize("is_copy", [False, True])
def test_the_weights_of_several_modules_are_recognised_together(is_copy: bool) -> None:
    modules, optimizers = networks(3, 4)
    live, saved_owner = owner_of(optimizers)
    value = {name: module.state_dict() for name, module in zip("GD", modules, strict=True)}
    described = describe(copy.deepcopy(value) if is_copy else value, saved_owner)
    assert (described["weights"], described["matched"]) == (live.weights()[0], 1.0)
    assert not any(name.startswith("tensors.") for name in described["contents"])


def test_loaded_modules_of_equal_shapes_cannot_be_told_apart() -> None:
    modules, optimizers = networks(3, 3)
    _, saved_owner = owner_of(optimizers)
    value = {name: module.state_dict() for name, module in zip("GD", modules, strict=True)}
    assert describe(copy.deepcopy(value), saved_owner)["weights"] is None


def test_the_step_counter_and_copies_of_the_weights_are_described() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    average = {name: tensor.clone() * 0.5 for name, tensor in model.state_dict().items()}
    known = saved_contents.Owner(("weight", "bias"), optimizers=(("weight", "bias"),), shapes=((2, 3), (2,)))
    saved = {"net": model.state_dict(), "ema": average, "optimizer": optimizer.state_dict()}
    described = saved_contents.read(saved).describe(known)
    assert described["counter"] == 2
    assert described["contents"]["copies"] == ["ema"]
    alone, beside = (saved_contents.read({"ema": average}).describe(known, beside=beside) for beside in (False, True))
    assert alone["weights"] and "copies" not in alone["contents"]  # without other weights they are the weights
    assert beside["weights"] is None and beside["contents"]["copies"] == ["ema"] and "tensors.ema" in beside["contents"]


@pytest.mark.parametrize("form", ["mapping", "of ranks", "alone", "zeros"])
def test_gradients_that_are_saved_are_neither_the_weights_nor_a_copy_of_them(job: Job, form: str) -> None:
    model, optimizer = job
    live, saved_owner = known(optimizer)
    own = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    other = {name: item * 2 for name, item in own.items()}
    zeros = {name: torch.zeros_like(item) for name, item in own.items()}
    grads: Any = {"mapping": own, "of ranks": [own, other], "alone": own, "zeros": zeros}[form]
    value = {"grads": grads} if form == "alone" else {"model": model.state_dict(), "grads": grads}
    described = describe(value, saved_owner)
    assert described["contents"]["gradients"] == (["grads.0", "grads.1"] if form == "of ranks" else ["grads"])
    assert "copies" not in described["contents"]
    assert described["weights"] == (None if form == "alone" else live.weights()[0])


def test_what_equals_gradients_that_were_used_has_norms_as_other_tensors(job: Job) -> None:
    """A momentum that the job keeps itself equals them after its first step. While an accumulation is under way they are state."""
    model, optimizer = job
    own = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    value, (live, saved_owner) = {"model": model.state_dict(), "mom": own}, known(optimizer)
    assert live is not None
    used = saved_contents.read(value).describe(saved_owner)["contents"]
    assert any(name.startswith("norms.tensors.mom") for name in used)
    assert "copies" not in used
    waiting = saved_contents.read(value).describe(saved_owner, is_accumulating=True)["contents"]
    assert not any(name.startswith("norms.tensors.mom") for name in waiting)


def test_an_average_beside_gradients_is_a_copy(job: Job) -> None:
    model, optimizer = job
    average = {name: item * 0.5 for name, item in model.state_dict().items()}
    described = describe({"model": model.state_dict(), "ema": average}, known(optimizer)[1])
    assert described["contents"]["copies"] == ["ema"] and "gradients" not in described["contents"]


def test_of_a_list_of_tensors_the_norms_are_recorded(job: Job) -> None:
    model, optimizer = job
    slow = [parameter.detach() * 3 for parameter in model.parameters()]
    described = describe({"model": model.state_dict(), "la": {"slow": slow}}, known(optimizer)[1])["contents"]
    assert described["copies"] == ["la.slow"]
    assert float(described["norms.tensors.la.slow.0"][1:]) == pytest.approx(float(slow[0].norm()))
    assert float(described["norms.weights.0.weight"][1:]) == pytest.approx(float(slow[0].norm()) / 3)


def test_a_file_of_one_of_two_models_holds_a_part_of_the_weights() -> None:
    """Live tensors are known by their address, though both models name theirs alike; copies by their names."""
    models = [torch.nn.Sequential(torch.nn.Linear(3, 3)), torch.nn.Sequential(torch.nn.Linear(3, 2))]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
    models[1](models[0](torch.rand(5, 3))).sum().backward()
    optimizer.step()
    live, saved_owner = known(optimizer)
    described = [describe({"model": model.state_dict(), "step": 3}, saved_owner) for model in models]
    assert [item["weights"] for item in described] == [None, None]
    total = sum(int(item["contents"]["part"], 16) for item in described) % (1 << 64)
    assert f"{total:016x}" == live.weights()[0]
    assert "part" not in describe([model.state_dict() for model in models], saved_owner)["contents"]


@pytest.mark.slow
def test_snapshots_that_a_script_still_keeps_at_the_next_save_are_its_own(job: Job) -> None:
    """A copy that equals the model may be made for a save; one of an earlier save that is still there is not."""
    model, optimizer = job
    live, _ = known(optimizer)
    kept, snapshots = kept_tensors.KeptTensors(), list[list[torch.Tensor]]()
    counts = []
    for n in (1, 2, 3):
        snapshots.append([parameter.detach().clone() for parameter in model.parameters()])
        kept.find(n, live)
        kept.keep_untouched(n)
        counts.append(sorted(value.split()[0] for key, value in kept.digests().items() if key != kept_tensors.AGAIN))
        train(model, optimizer)
    of = [digest.total((str(i), x) for i, x in enumerate(own))[0] for own in snapshots]
    assert counts == [[], [of[0]], [of[1]]], "each once: the search after that finds it again"


@pytest.mark.slow
@pytest.mark.parametrize("keeps_first", [False, True])
def test_two_buffers_that_saves_use_in_turn_are_no_snapshots(
    job: Job, keeps_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They show so as one is used again. Beside a snapshot that stays they may be snapshots, too."""
    monkeypatch.setattr(kept_tensors, "ALWAYS", 9)
    model, optimizer = job
    live, _ = known(optimizer)
    kept, buffers, snapshots = kept_tensors.KeptTensors(), dict[str, list[torch.Tensor]](), list[list[torch.Tensor]]()
    counts = []
    for n in range(1, 6):
        now = [parameter.detach().clone() for parameter in model.parameters()]
        for own, new in zip(buffers.setdefault(f"of {n % 2}", [x.clone() for x in now]), now, strict=True):
            own.copy_(new)
        snapshots += [[x.clone() for x in now]] if keeps_first and n == 1 else []
        del now, own, new
        kept.find(n, live)
        kept.keep_untouched(n)
        counts.append(len([key for key in kept.digests() if key != kept_tensors.AGAIN]))
        train(model, optimizer)
    assert counts == ([0, 2, 1, 1, 1] if keeps_first else [0, 1, 0, 0, 0])
