"""Describe a user's torch module as a model, from facts that a child process read on the meta device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .model_description import DTYPES, Layer, Model, Part


def describe(facts: Mapping[str, Any]) -> Model:
    """Layers are the modules that hold parameters, in order. Raises ValueError for a module that cannot be sized."""
    dtypes = {dtype for _, _, dtype in facts["parameters"]}
    name = facts["name"]
    if not dtypes:
        raise ValueError(f"--model {name}: has no trainable parameter")
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise ValueError(
            f"--model {name}: its parameters have the types {', '.join(sorted(dtypes))}; choose one with --dtype"
        )
    outputs = facts.get("outputs", {})
    parts: dict[str, list[Part]] = {}
    for path, elements, _ in facts["parameters"]:
        owner, _, last = path.rpartition(".")
        parts.setdefault(owner, []).append(Part(last, elements))
    layers = tuple(
        Layer(name=owner or facts["class"], parts=tuple(tensors), output=outputs.get(owner))
        for owner, tensors in parts.items()
    )
    return Model(
        name=name,
        dtype=dtypes.pop(),
        layers=layers,
        source=f"{facts['class']}, parameters summed in order",
        sample_bytes=None,
        activation_bytes=facts.get("activations"),
        activation_source="outputs of the modules, by hooks on the meta device",
    )
