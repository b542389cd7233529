"""Estimate a training: bytes of collectives, steps, memory, time; all mistakes are reported at once."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...app.session import Session
from ...core.spec import written_values
from ...model import algorithm as algorithms
from ...model.errors import UsageError
from ...model.frozen import dataclass, fields
from ...store import unpack
from ..sizing import (
    gpu_memory,
    layout,
    link_price,
    model_description,
    replay_items,
    trace_matching,
    traces,
    traffic,
    training_size,
    transformers,
)
from ..sizing.model_description import Model, Shape, Style
from .size_request import LayoutRequest, ModelRequest, SizeRequest

_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(?:b)?", re.IGNORECASE)
_DEFAULT_GPUS = 4
_FORMS = "ccbed size --trace takes a PARAM comms trace or Chakra execution traces (JSON or .et), gzipped or not, or a folder of them"
_TIMEOUT_S = 180.0
#: The directory of the package ``orchestrator``.
_PACKAGE = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """An estimate of a model, or what a trace does. ``written``: the file with a trial that replays its collectives."""

    estimate: training_size.TrainingSize | None = None
    replay: traces.Replay | None = None
    written: Path | None = None


def run(session: Session, request: SizeRequest) -> Sized:
    """Estimate a training, and write the trial that replays it where one is wanted. Raises UsageError."""
    if (request.model.trace is None) == (request.model.model is None):
        raise UsageError(
            "give one of --model and --trace", hint="ccbed size --model mnist-mlp --batch 8192 --dataset 60000"
        )
    modules = {name: plugin.module for name, plugin in session.catalogue.algorithms.items()}
    if request.model.trace is None:
        sized = Sized(estimate=estimate(request, modules), written=request.emit)
    else:
        sized = Sized(replay=_replay(request, request.model.trace, modules), written=request.emit)
    if request.emit:
        _write(request.emit, _trial(sized, request, _name(request.emit)), force=request.force)
    return sized


def estimate(request: SizeRequest, algorithm_modules: Mapping[str, Any]) -> training_size.TrainingSize:
    """Compute the sizing. ``algorithm_modules``: those of the algorithms by name. Raises UsageError with all mistakes."""
    problems: list[str] = []
    link = _try(problems, lambda: link_price.parse_link(request.link) if request.link else None)
    limit = _try(problems, lambda: _limit(request.gpu_memory))
    shares = _try(problems, lambda: _shares(request.layout.shares))
    prices = _try(problems, lambda: link_price.Prices(algorithm_modules, request.algorithm))
    model = _try(problems, lambda: _model(request.model))
    arranged = _try(problems, lambda: _layout(request.layout, model)) if model else None
    if problems or model is None or arranged is None:
        raise UsageError(*problems, hint="ccbed size --help")
    question = training_size.SizingRequest(
        model=model,
        layout=arranged,
        optimizer=gpu_memory.OPTIMIZERS[request.optimizer],
        batch=request.layout.batch,
        dataset=request.layout.dataset,
        epochs=request.layout.epochs,
        shares=shares,
        link=link,
        limit=limit,
    )
    try:
        return training_size.compute(question, prices)
    except ValueError as error:
        raise UsageError(*str(error).splitlines(), hint="ccbed size --help") from None


def _replay(request: SizeRequest, path: Path, modules: Mapping[str, Any]) -> traces.Replay:
    """Raises UsageError for an option that does not apply to a trace, and for a trace that cannot be read."""
    allowed = {"trace", "gpus", "strategy", "epochs", "sequence_parallel", "recompute", "optimizer", "algorithm"}
    given = {item.name: getattr(part, item.name) for part in (request.model, request.layout) for item in fields(part)}
    given |= {"link": request.link, "gpu_memory": request.gpu_memory}
    if named := [name for name, value in given.items() if value is not None and name not in allowed]:
        raise UsageError(
            *(f"--{_option(name)}: not with --trace, which determines it" for name in named),
            hint="omit it; the options of --trace are --gpus, --algorithm, --emit and --json",
        )
    try:
        return traces.replay(_files(path), chooser(modules, request.algorithm), request.layout.gpus)
    except ValueError as error:
        raise UsageError(*str(error).splitlines(), hint=_FORMS) from None


def _trial(sized: Sized, request: SizeRequest, name: str) -> str:
    """The text of the trial that replays the collectives."""
    if sized.estimate:
        made = replay_items.from_training_size(sized.estimate)
        return replay_items.write_trial(name, made, sized.estimate.request.layout.gpus, _notes(sized.estimate))
    replay = sized.replay
    if replay is None:
        raise RuntimeError("neither an estimate nor a trace")
    notes = [
        f"From the {replay.form} {request.model.trace}.",
        *(f"{note[:1].upper()}{note[1:]}." for note in replay.notes),
    ]
    return replay_items.write_trial(name, replay.items, replay.ranks, notes)


def _notes(sizing: training_size.TrainingSize) -> list[str]:
    """Return the comments at the head of an emitted trial."""
    request, trials = sizing.request, sizing.batches
    steps = f"{trials.total:,} steps of {trials.batch:,} samples" if trials else "one step"
    paired = any(row.collective.operation == "send-recv" for row in sizing.rows)
    return [
        f"{request.model.name}, {request.layout.label} on {request.layout.gpus} GPUs: the collectives of {steps}.",
        "One item per collective; its trials are its count per step x steps.",
        *(
            ["A send-recv carries one message in each direction at once: half as many trials as messages."]
            if paired
            else []
        ),
    ]


def _write(file: Path, text: str, *, force: bool) -> None:
    """Raises UsageError where the file exists with another content, or cannot be written."""
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--emit {file}: no such directory: {file.parent}", hint=f"mkdir -p {file.parent}")
    try:
        differs = file.exists() and file.read_bytes() != text.encode()
        if not differs or force:
            file.write_text(text)
    except OSError as error:
        hint = "name a file in a directory that you may write"
        raise UsageError(f"--emit {file}: {error.strerror}", hint=hint) from None
    if differs and not force:
        raise UsageError(
            f"--emit {file}: exists with another content", hint="overwrite it with --force, or give another name"
        )


def _files(path: Path) -> dict[str, bytes]:
    """Read the trace, or the traces of a folder: name -> content."""
    if not path.exists():
        raise UsageError(f"--trace {path}: no such file or folder", hint=_FORMS)
    files = (
        sorted(file for form in ("*.json", "*.json.gz", "*.et", "*.et.gz") for file in path.glob(form))
        if path.is_dir()
        else [path]
    )
    return {file.name: _content(file) for file in files}


def _content(file: Path) -> bytes:
    if file.suffix != ".gz":
        return file.read_bytes()
    limit = unpack.allowed(file.stat().st_size)
    try:
        with gzip.open(file) as source:
            content = source.read(limit + 1)
        if len(content) > limit:
            raise UsageError(f"{file}: more than {limit:,} bytes when unpacked", hint=f"gunzip {file}")
        return content
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{file}: not a gzip file: {error}", hint=_FORMS) from None


def _name(file: Path) -> str:
    """Return the trial's name: that of the file, with the letters that a name may have."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in file.stem)
    return letters.strip("-")[:60] or "emulate"


def chooser(algorithm_modules: Mapping[str, Any], name: str | None) -> trace_matching.Algorithms:
    """Return the function that chooses the algorithm for an operation of a trace. Raises UsageError."""
    try:
        prices = link_price.Prices(algorithm_modules, name)
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
    return name.replace("_", "-")


def _limit(text: str | None) -> int | None:
    """Return bytes: ``80g`` is 80 x 10^9, as the memory of a GPU is named; ``80GiB`` is 80 x 2^30. Raises ValueError."""
    if text is None:
        return None
    match = _MEMORY.fullmatch(text.strip())
    if not match or float(match[1]) == 0:
        raise ValueError(f"--gpu-memory: must be a size such as 80g or 80GiB (got {text!r})")
    power = " kmgt".index(match[2].lower() or " ")
    unit: int = 1024 if match[3] else 1000
    return round(float(match[1]) * float(unit) ** power)


def _shares(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.strip("[] ").split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--shares: must be numbers such as .25,.25,.10,.4 (got {text!r})") from None


def _layout(wanted: LayoutRequest, model: Model) -> layout.Layout:
    sizes = {name: getattr(wanted, name) for name in ("tp", "pp", "ep", "zero", "microbatches")}
    return layout.arrange(
        wanted.strategy, wanted.gpus or _DEFAULT_GPUS, sizes, model,
        sequence_parallel=wanted.sequence_parallel, recompute=wanted.recompute,
    )  # fmt: skip


def _model(wanted: ModelRequest) -> Model:
    """Raises ValueError, a line per problem."""
    name, dtype, changes = wanted.model or "", wanted.dtype, wanted.shape
    if dtype is not None and dtype not in _FLOATS:
        raise ValueError(f"--dtype: must be one of {', '.join(_FLOATS)} (got {dtype!r})")
    if name == "transformer":
        return _transformer(changes, transformers.style(wanted.style or "gpt", wanted.attention), dtype or "bfloat16")
    is_preset = name in transformers.PRESETS
    foreign = [*(() if is_preset else changes), *(["style"] if wanted.style else [])]
    foreign += ["attention"] if wanted.attention and not is_preset else []
    if wanted.input and ":" not in name:
        foreign.append("input")
    if foreign:
        raise ValueError("\n".join(f"--{_option(key)}: not with --model {name}" for key in foreign))
    if is_preset:
        return _checked(transformers.preset(name, dtype, changes, wanted.attention))
    if ":" in name:
        return model_description.from_torch_module(_module_facts(name, wanted.input, dtype))
    if name != "mnist-mlp":
        known = ("mnist-mlp", "transformer", *transformers.PRESETS)
        raise ValueError(
            f"--model: unknown model {name}; {written_values.nearest(name, known)} (your own module: module:factory)"
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
