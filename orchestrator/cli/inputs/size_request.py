"""Convert the options of `size` to a sizing, or report all their errors at once."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.sizing import (
    cost,
    layout,
    memory,
    model_description,
    torch_module,
    traffic,
    training_size,
    transformers,
)
from ...core.sizing.model_description import Model, Shape, Style
from ...core.sizing.trace_readers import matching
from ...core.spec import values
from ...model import algorithm as algorithms
from ...model.errors import UsageError

_SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "sequence", "experts", "topk")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(?:b)?", re.IGNORECASE)
_DEFAULT_GPUS = 4
_TIMEOUT_S = 180.0
#: The directory of the package ``orchestrator``.
_PACKAGE = Path(__file__).parents[3]


def estimate(options: Mapping[str, Any], algorithm_modules: Mapping[str, Any]) -> training_size.TrainingSize:
    """Compute the sizing. ``algorithm_modules``: those of the algorithms by name. Raises UsageError."""
    problems: list[str] = []
    parts: dict[str, Any] = {}
    for name, make in (
        ("link", _link),
        ("limit", _limit),
        ("shares", _shares),
        ("prices", lambda values: cost.Prices(algorithm_modules, values["algorithm"])),
    ):
        try:
            parts[name] = make(options)
        except ValueError as error:
            problems += str(error).splitlines()
    model = _try(problems, lambda: _model(options))
    arranged = _try(problems, lambda: _layout(options, model)) if model else None
    if problems or model is None or arranged is None:
        raise UsageError(*problems, hint="ccbed size --help")
    question = training_size.SizingRequest(
        model=model,
        layout=arranged,
        optimizer=memory.OPTIMIZERS[options["optimizer"]],
        batch=options["batch"],
        dataset=options["dataset"],
        epochs=options["epochs"],
        shares=parts["shares"],
        link=parts["link"],
        limit=parts["limit"],
    )
    try:
        return training_size.compute(question, parts["prices"])
    except ValueError as error:
        raise UsageError(*str(error).splitlines(), hint="ccbed size --help") from None


def only_traced(options: Mapping[str, Any]) -> None:
    """Raises UsageError for an option that does not apply to a trace, except one that has its default."""
    named = [name for name in ("model_name", "batch", "dataset", "shares", "link", "gpu_memory", "input_shape", "dtype", "tp", "pp",
                               "ep", "zero", "microbatches", "style", "attention", *_SHAPE) if options[name] is not None]  # fmt: skip
    if named:
        raise UsageError(
            *(f"--{_option(name)}: not with --trace, which determines it" for name in named),
            hint="omit it; the options of --trace are --gpus, --algorithm, --emit and --json",
        )


def chooser(algorithm_modules: Mapping[str, Any], name: str | None) -> matching.Algorithms:
    """Return the function that chooses the algorithm for an operation of a trace. Raises UsageError."""
    try:
        prices = cost.Prices(algorithm_modules, name)
    except ValueError as error:
        raise UsageError(*str(error).splitlines(), hint="ccbed list algorithms") from None

    def choose(operation: str, ranks: int) -> str:
        collective = traffic.Collective(
            operation=operation, size=1, count=1, axis="", groups=(tuple(range(ranks)),), what="", source="", dtype=""
        )
        price = prices.of(collective, None)
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


def _link(options: Mapping[str, Any]) -> cost.Link | None:
    return cost.parse_link(options["link"]) if options["link"] else None


def _limit(options: Mapping[str, Any]) -> int | None:
    """Return bytes: ``80g`` is 80 x 10^9, as the memory of a GPU is named; ``80GiB`` is 80 x 2^30. Raises ValueError."""
    text = options["gpu_memory"]
    if text is None:
        return None
    match = _MEMORY.fullmatch(text.strip())
    if not match or float(match[1]) == 0:
        raise ValueError(f"--gpu-memory: must be a size such as 80g or 80GiB (got {text!r})")
    power = " kmgt".index(match[2].lower() or " ")
    unit: int = 1024 if match[3] else 1000
    return round(float(match[1]) * float(unit) ** power)


def _shares(options: Mapping[str, Any]) -> tuple[float, ...]:
    text = options["shares"]
    try:
        return tuple(float(part) for part in text.strip("[] ").split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--shares: must be numbers such as .25,.25,.10,.4 (got {text!r})") from None


def _layout(options: Mapping[str, Any], model: Model) -> layout.Layout:
    sizes = {name: options[name] for name in ("tp", "pp", "ep", "zero", "microbatches")}
    return layout.arrange(
        options["strategy"], options["gpus"] or _DEFAULT_GPUS, sizes, model,
        sequence_parallel=options["sequence_parallel"], recompute=options["recompute"],
    )  # fmt: skip


def _model(options: Mapping[str, Any]) -> Model:
    """Raises ValueError, a line per problem."""
    name, dtype = options["model_name"], options["dtype"]
    changes = {key: options[key] for key in _SHAPE if options[key] is not None}
    if dtype is not None and dtype not in _FLOATS:
        raise ValueError(f"--dtype: must be one of {', '.join(_FLOATS)} (got {dtype!r})")
    if name == "transformer":
        return _transformer(
            changes, transformers.style(options["style"] or "gpt", options["attention"]), dtype or "bfloat16"
        )
    is_preset = name in transformers.PRESETS
    foreign = [*(() if is_preset else changes), *(["style"] if options["style"] else [])]
    foreign += ["attention"] if options["attention"] and not is_preset else []
    if options["input_shape"] and ":" not in name:
        foreign.append("input_shape")
    if foreign:
        raise ValueError("\n".join(f"--{_option(key)}: not with --model {name}" for key in foreign))
    if is_preset:
        return _checked(transformers.preset(name, dtype, changes, options["attention"]))
    if ":" in name:
        return torch_module.describe(_module_facts(name, options["input_shape"], dtype))
    if name != "mnist-mlp":
        known = ("mnist-mlp", "transformer", *transformers.PRESETS)
        raise ValueError(
            f"--model: unknown model {name}; {values.nearest(name, known)} (your own module: module:factory)"
        )
    if dtype not in (None, "float32"):
        raise ValueError("--dtype: mnist-mlp is float32")
    return model_description.classifier()


_FLOATS = ("float32", "bfloat16", "float16", "float64")


def _transformer(changes: dict[str, int], style: Style, dtype: str) -> Model:
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
    return transformers.build("transformer", shape, style, dtype, f"{style.name} style, by the options")


def _checked(model: Model) -> Model:
    wrong = transformers.problems(model.shape) if model.shape else []
    if wrong:
        raise ValueError("\n".join(wrong))
    return model


def _module_facts(spec: str, shape: str | None, dtype: str | None) -> dict[str, Any]:
    """Describe a user's torch module; a child process imports it, so that torch stays out of this process.

    ``spec``: module:factory, relative to the current directory. Raises UsageError in one line.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"--model {spec}: reading a torch module needs torch, which is not installed here",
            hint="pip install 'ccbed[local]'; or describe the model by options: ccbed size --help",
        )
    program = _PACKAGE / "orchestrator" / "rank" / "reference_models" / "module_facts.py"
    argv = [sys.executable, "-P", str(program), spec, shape or "", dtype or ""]
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(_PACKAGE)])
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"--model {spec}: was not created within {_TIMEOUT_S:.0f} s") from None
    try:
        facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(f"--model {spec}: ended with exit code {done.returncode}: {last[:300]}") from None
    if "error" in facts:
        raise UsageError(facts["error"], hint=_hint(spec))
    return facts


def _hint(spec: str) -> str:
    """Return how to name the module, or the command that prints the traceback of the error."""
    module, _, factory = spec.partition(":")
    if module.endswith(".py"):
        return f"name the module without .py: --model {module.removesuffix('.py').replace('/', '.')}:{factory}"
    return f"print the traceback: python -c 'from {module} import {factory}; {factory}()'"
