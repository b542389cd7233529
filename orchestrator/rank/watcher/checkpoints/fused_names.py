"""Parameters that a job saves as several tensors, as torchtitan does with ``wqkv``: they are recognised by their rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import digest

#: Tensors by name.
Tensors = Mapping[str, Any]


def split(saved: Tensors, matches: Mapping[str, str], live: Tensors) -> Iterator[tuple[str, Any]]:
    """(name, parameter) of each parameter without a tensor of its name, if tensors beside its place hold exactly its rows.

    ``matches``: the owner's name of a parameter -> its name in ``saved``; ``live``: the owner's name -> the parameter.
    """
    own, name = next(iter(matches.items()))
    if not name.endswith(own):
        return
    prefix, taken = name[: -len(own)], set(matches.values())
    for own in live.keys() - matches.keys():
        beside = [item for key, item in saved.items() if key not in taken and _place(key) == _place(prefix + own)]
        if beside and _holds(beside, live[own]):
            yield prefix + own, live[own]


def _place(name: str) -> tuple[str, str]:
    """``layer.wq.weight`` -> ``layer`` and ``weight``."""
    module, _, kind = name.rpartition(".")
    return module.rpartition(".")[0], kind


def _holds(saved: Sequence[Any], item: Any) -> bool:
    """Whether tensors have as many elements as a parameter, and every row of it that this process holds."""
    known = {item.dtype} == {x.dtype for x in saved} and sum(x.numel() for x in saved) == item.numel()
    if not known:
        return False
    torch, own = sys.modules["torch"], _rows(item)
    return bool(torch.isin(own, torch.cat([_rows(x).to(own.device) for x in saved])).all())


def _rows(item: Any) -> Any:
    """A number for each row of the first dimension that this process holds; of a vector each element is a row."""
    torch, held = sys.modules["torch"], digest.local(item).detach()
    rows = held.reshape(len(held), -1).contiguous()
    bits = rows.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[held.element_size()])
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator)
    return (bits.to(torch.int64) * factors.to(bits.device)).sum(1)
