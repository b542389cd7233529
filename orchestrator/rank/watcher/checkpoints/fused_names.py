"""Parameters that a job saves as several tensors, as torchtitan does with ``wqkv``: they are recognised by their rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import digest

#: Tensors by name.
Tensors = Mapping[str, Any]
#: Elements that are multiplied at once.
PART = 1 << 20


def split(saved: Tensors, matches: Mapping[str, str], live: Tensors) -> Iterator[tuple[str, Any]]:
    """(name, parameter) of each parameter without a tensor of its name, if tensors beside its place hold exactly its rows.

    ``matches``: the owner's name of a parameter -> its name in ``saved``; ``live``: the owner's name -> the parameter.
    """
    own, name = next(iter(matches.items()))
    if not name.endswith(own):
        return
    prefix, taken = name[: -len(own)], set(matches.values())
    places: dict[tuple[str, str], list[Any]] = {}
    for key in saved.keys() - taken:
        places.setdefault(_place(key), []).append(saved[key])
    for own in live.keys() - matches.keys():
        beside = places.get(_place(prefix + own), ())
        if beside and _holds(beside, live[own]):
            yield prefix + own, live[own]


def _place(name: str) -> tuple[str, str]:
    """``layer.wq.weight`` -> ``layer`` and ``weight``."""
    module, _, kind = name.rpartition(".")
    return module.rpartition(".")[0], kind


def _holds(saved: Sequence[Any], item: Any) -> bool:
    """Return whether tensors have as many elements as a parameter, and every row of it that this process holds;
    if it holds all, no other.
    """
    is_known = {item.dtype} == {x.dtype for x in saved} and sum(x.numel() for x in saved) == item.numel()
    held = [digest.local(x) for x in (*saved, item)]
    if not is_known or not all(x.dim() and (not x.numel() or digest.has_floats(x)) for x in held):
        return False
    torch, own = sys.modules["torch"], _rows(item)
    others = torch.cat([_rows(x).to(own.device) for x in saved])
    is_whole = held[-1].numel() == item.numel()
    return bool(torch.isin(own, others).all()) and (not is_whole or bool(torch.isin(others, own).all()))


def _rows(item: Any) -> Any:
    """A number for each row of the first dimension that this process holds; of a vector each element is a row."""
    torch, held = sys.modules["torch"], digest.local(item).detach()
    rows = held.flatten(1) if held.dim() > 1 else held.unsqueeze(1)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[held.element_size()]
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator).to(held.device)
    parts = rows.split(max(1, PART // max(1, rows.shape[1])))  # integers of 64 bits need up to four times the memory
    return torch.cat([(x.contiguous().view(kind).to(torch.int64) * factors).sum(1) for x in parts])
