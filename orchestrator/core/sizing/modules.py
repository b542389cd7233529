"""The model that a user's torch module is, from what a child process found out about it on the meta device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .described import DTYPES, Layer, Model, Part


def build(facts: Mapping[str, Any]) -> Model:
    """Layers are the modules that hold parameters, in order. Raises ValueError for a module that cannot be sized."""
    dtypes = {dtype for _, _, dtype in facts["parameters"]}
    name = facts["name"]
    if not dtypes:
        raise ValueError(f"--model {name}: has no parameter that is trained")
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise ValueError(f"--model {name}: its parameters are of {', '.join(sorted(dtypes))}; --dtype makes them one")
    outputs = facts.get("outputs", {})
    parts: dict[str, list[Part]] = {}
    for path, elements, _ in facts["parameters"]:
        owner, _, last = path.rpartition(".")
        parts.setdefault(owner, []).append(Part(last, elements))
    layers = tuple(
        Layer(name=owner or facts["class"], parts=tuple(found), output=outputs.get(owner))
        for owner, found in parts.items()
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
