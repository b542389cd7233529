"""The options of `size` -> the question that the core answers, or all their mistakes at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...core.sizing import answer as answers
from ...core.sizing import described, layout, matching, memory, modules, pricing, traffic, transformers
from ...core.sizing.described import Model, Shape
from ...core.spec import values
from ...model import algorithm as algorithms
from ...model.errors import UsageError
from . import torch_modules as children

_SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "sequence", "experts", "topk")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(?:b)?", re.IGNORECASE)
_TRACED = ("gpus", "algorithm")
_DEFAULT_GPUS = 4


def answer(asked: Mapping[str, Any], found: Mapping[str, Any]) -> answers.Answer:
    """``found``: the modules of the algorithms by name. Raises UsageError."""
    problems: list[str] = []
    parts: dict[str, Any] = {}
    for name, make in (
        ("link", _link),
        ("limit", _limit),
        ("shares", _shares),
        ("prices", lambda one: _prices(one, found)),
    ):
        try:
            parts[name] = make(asked)
        except ValueError as error:
            problems += str(error).splitlines()
    model = _try(problems, lambda: _model(asked))
    arranged = _try(problems, lambda: _layout(asked, model)) if model else None
    if problems or model is None or arranged is None:
        raise UsageError(*problems, hint="ccbed size --help")
    question = answers.Question(
        model=model,
        layout=arranged,
        optimizer=memory.OPTIMIZERS[asked["optimizer"]],
        batch=asked["batch"],
        dataset=asked["dataset"],
        epochs=asked["epochs"],
        shares=parts["shares"],
        link=parts["link"],
        limit=parts["limit"],
    )
    try:
        return answers.answer(question, parts["prices"])
    except ValueError as error:
        raise UsageError(*str(error).splitlines(), hint="ccbed size --help") from None


def only_traced(asked: Mapping[str, Any]) -> None:
    """Raises UsageError for an option that says nothing about a trace, except one that has its default."""
    named = [name for name in ("model_name", "batch", "dataset", "shares", "link", "gpu_memory", "input_shape", "dtype", "tp", "pp",
                               "ep", "zero", "microbatches", "style", *_SHAPE) if asked[name] is not None]  # fmt: skip
    if named:
        raise UsageError(
            *(f"--{_option(name)}: not with --trace: the trace says what was" for name in named),
            hint="leave it out; with --trace go --gpus, --algorithm, --emit and --json",
        )


def chooser(found: Mapping[str, Any], wanted: str | None) -> matching.Algorithms:
    """Which algorithm replays an operation of a trace. Raises UsageError."""
    try:
        prices = pricing.Prices(found, wanted)
    except ValueError as error:
        raise UsageError(*str(error).splitlines(), hint="ccbed list algorithms") from None

    def choose(operation: str, ranks: int) -> str:
        one = traffic.Collective(
            operation=operation, size=1, count=1, axis="", groups=(tuple(range(ranks)),), what="", source="", dtype=""
        )
        price = prices.of(one, None)
        return price.algorithm if price else algorithms.LIBRARY

    return choose


def _try(problems: list[str], make: Any) -> Any:
    try:
        return make()
    except ValueError as error:
        problems += str(error).splitlines()
        return None


def _option(name: str) -> str:
    return {"model_name": "model", "input_shape": "input"}.get(name, name).replace("_", "-")


def _link(asked: Mapping[str, Any]) -> pricing.Link | None:
    return pricing.link(asked["link"]) if asked["link"] else None


def _prices(asked: Mapping[str, Any], found: Mapping[str, Any]) -> pricing.Prices:
    return pricing.Prices(found, asked["algorithm"])


def _limit(asked: Mapping[str, Any]) -> int | None:
    """``80g``: 80 x 10^9 bytes, as a card's memory is named; ``80GiB``: x 2^30. Raises ValueError."""
    text = asked["gpu_memory"]
    if text is None:
        return None
    match = _MEMORY.fullmatch(text.strip())
    if not match or float(match[1]) == 0:
        raise ValueError(f"--gpu-memory: must be a size such as 80g or 80GiB (got {text!r})")
    power = " kmgt".index(match[2].lower() or " ")
    unit: int = 1024 if match[3] else 1000
    return round(float(match[1]) * float(unit) ** power)


def _shares(asked: Mapping[str, Any]) -> tuple[float, ...]:
    text = asked["shares"]
    try:
        return tuple(float(one) for one in text.strip("[] ").split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--shares: must be numbers such as .25,.25,.10,.4 (got {text!r})") from None


def _layout(asked: Mapping[str, Any], model: Model) -> layout.Layout:
    given = {name: asked[name] for name in ("tp", "pp", "ep", "zero", "microbatches")}
    return layout.arrange(
        asked["strategy"], asked["gpus"] or _DEFAULT_GPUS, given, model,
        sequence_parallel=asked["sequence_parallel"], recompute=asked["recompute"],
    )  # fmt: skip


def _model(asked: Mapping[str, Any]) -> Model:
    """Raises ValueError, a line per problem."""
    name, dtype = asked["model_name"], asked["dtype"]
    changes = {key: asked[key] for key in _SHAPE if asked[key] is not None}
    if dtype is not None and dtype not in _FLOATS:
        raise ValueError(f"--dtype: must be one of {', '.join(_FLOATS)} (got {dtype!r})")
    if name == "transformer":
        return _transformer(changes, asked["style"] or "gpt", dtype or "bfloat16")
    foreign = [*(() if name in transformers.PRESETS else changes), *(["style"] if asked["style"] else [])]
    if asked["input_shape"] and ":" not in name:
        foreign.append("input_shape")
    if foreign:
        raise ValueError("\n".join(f"--{_option(key)}: not with --model {name}" for key in foreign))
    if name in transformers.PRESETS:
        return _checked(transformers.preset(name, dtype, changes))
    if ":" in name:
        return modules.build(children.facts(name, asked["input_shape"], dtype))
    if name != "mnist-mlp":
        known = ("mnist-mlp", "transformer", *transformers.PRESETS)
        raise ValueError(
            f"--model: unknown model {name}; {values.nearest(name, known)} (a module of yours: module:factory)"
        )
    if dtype not in (None, "float32"):
        raise ValueError("--dtype: mnist-mlp is float32")
    return described.classifier()


_FLOATS = ("float32", "bfloat16", "float16", "float64")


def _transformer(changes: dict[str, int], style: str, dtype: str) -> Model:
    lacking = [
        f"--{name}: is missing: --model transformer needs it"
        for name in ("layers", "hidden", "heads")
        if name not in changes
    ]
    if lacking:
        raise ValueError("\n".join(lacking))
    usual = {
        "kv_heads": changes["heads"], "ffn": 4 * changes["hidden"], "vocabulary": 50257, "sequence": 1024,
        "topk": min(2, changes["experts"]) if "experts" in changes else 0,
    }  # fmt: skip
    shape = Shape(**{**usual, **changes})
    wrong = transformers.problems(shape)
    if wrong:
        raise ValueError("\n".join(wrong))
    return transformers.build("transformer", shape, transformers.STYLES[style], dtype, f"{style} style, by the options")


def _checked(model: Model) -> Model:
    wrong = transformers.problems(model.shape) if model.shape else []
    if wrong:
        raise ValueError("\n".join(wrong))
    return model
