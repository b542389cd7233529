"""States of random generators, as Python, numpy and torch give them."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import random
import sys
from collections.abc import Mapping
from typing import Any

#: Name of a generator -> its state.
States = dict[str, Any]
#: Bytes of the state of torch's CPU generator.
TORCH_BYTES = 5056
#: Libraries with a random generator of their own that is neither read nor put back.
UNREAD = ("cupy", "mxnet", "nvidia.dali", "paddle", "tensorflow")


def is_generator(path: str, value: Any) -> bool:
    """Return whether a tensor is the state of a torch generator: bytes, of the CPU's size or by a name that says so."""
    if getattr(value, "dtype", None) is not sys.modules["torch"].uint8 or value.dim() != 1:
        return False
    return bool(
        value.numel() == TORCH_BYTES or (value.numel() == 16 and ("rng" in path.lower() or "cuda" in path.lower()))
    )


def fingerprint(kind: str, value: Any) -> str:
    """Digest of a generator's state as Python, numpy or torch give it."""
    if kind == "torch":
        state = value.cpu().contiguous()
        return _hash(ctypes.string_at(state.data_ptr(), state.numel()))
    if kind == "numpy":
        inner = value["state"] if isinstance(value, Mapping) else {"key": value[1], "pos": value[2]}
        gauss = (value["has_gauss"], value["gauss"]) if isinstance(value, Mapping) else value[3:5]
        return _hash(
            repr(([int(word) for word in inner["key"]], int(inner["pos"]), [float(item) for item in gauss])).encode()
        )
    return _hash(repr(value).encode())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def read() -> States:
    """The state of each random generator of this process."""
    import torch

    states = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        states["numpy"] = numpy.random.get_state()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def write(states: States) -> None:
    """Give each generator its state, which has been JSON since it was read."""
    import torch

    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    for name, put in (("torch", torch.set_rng_state), ("cuda", torch.cuda.set_rng_state)):
        if name in states:
            put(torch.tensor(states[name], dtype=torch.uint8))
    if "numpy" in states:
        importlib.import_module("numpy.random").set_state(states["numpy"])
