"""Inspects a user's torch module on the meta device: parameters in order and sizes of outputs, as JSON on stdout.

Runs as a separate program, because ccbed itself does not import torch:
``python -P module_facts.py module:factory [SHAPE] [DTYPE]``.
``SHAPE`` is that of one sample, ``3x224x224`` or ``1024:int64``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

#: Samples of the batch that is traced; some modules reject a batch of 1.
_BATCH = 2


def main(argv: list[str]) -> int:
    """Print {"name", "parameters", "activations"} or {"error"}; output of the module goes to stderr."""
    sys.path.insert(0, str(Path.cwd()))
    with contextlib.redirect_stdout(sys.stderr):
        facts = _facts(*argv)
    print(json.dumps(facts))
    return 1 if "error" in facts else 0


def _facts(spec: str, shape: str = "", dtype: str = "") -> dict[str, Any]:
    try:
        module = _made(spec, dtype)
        facts: dict[str, Any] = {"name": spec, "class": type(module).__name__, "parameters": _parameters(module)}
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        return {"error": f"--model {spec}: {_line(error)}"}
    if not shape:
        return facts
    try:
        return {**facts, **_activations(module, shape)}
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        return {"error": f"--input {shape}: forward of {spec} on the meta device: {_line(error)}"}


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def _made(spec: str, dtype: str) -> Any:
    import torch

    module_name, _, factory = spec.partition(":")
    made = importlib.import_module(module_name)
    for name in factory.split("."):
        made = getattr(made, name)
    with torch.device("meta"):
        module = made()  # type: ignore[operator]
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"must make a torch.nn.Module, not {type(module).__name__}")
    return module.to("meta", getattr(torch, dtype)) if dtype else module.to("meta")


def _parameters(module: Any) -> list[tuple[str, int, str]]:
    """(name, elements, dtype) of every trained parameter; shared tensors count once."""
    return [
        (name, tensor.numel(), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in module.named_parameters()
        if tensor.requires_grad
    ]


def _activations(module: Any, shape: str) -> dict[str, Any]:
    """Count for one sample the bytes of the outputs of all modules without children, and the elements of each module's output."""
    import torch

    sizes, _, dtype = shape.partition(":")
    dims = [_BATCH, *(int(size) for size in sizes.replace(",", "x").split("x"))]
    first = next(iter(module.parameters()), None)
    kind = getattr(torch, dtype) if dtype else (first.dtype if first is not None else torch.float32)
    sample = torch.empty(dims, dtype=kind, device="meta")
    total = 0
    outputs: dict[str, int] = {}

    def leaf(_module: Any, _inputs: Any, output: Any) -> None:
        nonlocal total
        total += sum(tensor.numel() * tensor.element_size() for tensor in _tensors(output))

    hooks = [child.register_forward_hook(leaf) for child in module.modules() if not list(child.children())]
    hooks += [child.register_forward_hook(_recorded(outputs, name)) for name, child in module.named_modules() if name]
    try:
        module(sample)
    finally:
        for hook in hooks:
            hook.remove()
    return {
        "activations": total // _BATCH,
        "input": sample.numel() * sample.element_size() // _BATCH,
        "outputs": {name: elements // _BATCH for name, elements in outputs.items()},
    }


def _recorded(outputs: dict[str, int], name: str) -> Any:
    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        outputs[name] = sum(tensor.numel() for tensor in _tensors(output))

    return hook


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, list | tuple) else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
