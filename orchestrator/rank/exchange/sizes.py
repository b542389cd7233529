"""Parses the sizes, groups and shares that users write. Pure, without torch."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence

#: The most sizes of a range; a factor near 1 is a mistake.
MOST = 1000
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}

#: Disjoint groups of ranks that run the same collective at the same time.
Groups = tuple[tuple[int, ...], ...]


def size(text: str) -> int:
    """``64K`` -> 65536: K, M and G are powers of 1024, as in nccl-tests. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"must be bytes such as 971048 or 64K (got {text!r})")
    value = float(match[1]) * _UNITS[match[2].upper()]
    if value < 1 or not value.is_integer():
        raise ValueError(f"must be a whole number of bytes, at least 1 (got {text!r})")
    return int(value)


def sizes(texts: Iterable[str], width: int = 1, unit: int = 1) -> tuple[int, ...]:
    """``1K:64M`` (doubled), ``1K:64M:4`` (times 4) and single sizes, in this order, without duplicates. Raises ValueError.

    ``width``: bytes of an element; sizes within a range are rounded down to whole elements. ``unit``: bytes to which all sizes of
    a range are rounded down, if they are not smaller.
    """
    expanded = [size // unit * unit or size if ":" in text else size for text in texts for size in _range(text, width)]
    if not expanded:
        raise ValueError("needs at least one size such as 1M, or a range such as 1K:64M")
    return tuple(dict.fromkeys(expanded))


def _range(text: str, width: int) -> tuple[int, ...]:
    first, *rest = text.split(":")
    if not rest:
        return (size(first),)
    if len(rest) > 2:
        raise ValueError(f"must be FIRST:LAST or FIRST:LAST:FACTOR (got {text!r})")
    try:
        low, high = size(first), size(rest[0])
        factor = float(rest[1]) if len(rest) == 2 else 2.0
    except ValueError as error:
        raise ValueError(f"{error} in {text!r}" if text not in str(error) else str(error)) from None
    if high < low:
        raise ValueError(f"the last size of a range must be at least the first (got {text!r})")
    if not factor > 1 or not math.isfinite(factor):
        raise ValueError(f"the factor of a range must be above 1 (got {text!r})")
    if math.log(high / low) / math.log(factor) > MOST:
        raise ValueError(f"a range must have at most {MOST} sizes (got {text!r})")
    values = [low]
    while (following := round(low * factor ** len(values))) <= high:
        values.append(following)
    return (low, *(value if value == high else value // width * width for value in values[1:]))


def groups(text: str, world: int | None = None) -> Groups:
    """ "" (all ranks), ``2`` (two contiguous groups) or ``0,1/2,3``. Raises ValueError.

    ``world`` None: report only problems of any world; the result then has only groups that are written out.
    """
    text = text.strip()
    if not text:
        return (tuple(range(world or 0)),)
    if text.isdigit():
        return _contiguous(int(text), world)
    try:
        result = tuple(tuple(sorted(int(rank) for rank in part.split(","))) for part in text.split("/"))
        if min(itertools.chain(*result)) < 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"must be a number of groups, or ranks such as 0,1/2,3 (got {text!r})") from None
    ranks = [rank for group in result for rank in group]
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"a rank may be in one group only (got {text!r})")
    if len({len(group) for group in result}) > 1:
        raise ValueError(f"all groups must have the same number of ranks (got {text!r})")
    if world is not None and max(ranks) >= world:
        raise ValueError(f"the world has ranks 0..{world - 1} (got {text!r})")
    return result


def _contiguous(count: int, world: int | None) -> Groups:
    if count < 1:
        raise ValueError(f"must be at least 1 group (got {count})")
    if world is None:
        return ()
    if world % count:
        raise ValueError(f"{world} ranks do not divide into {count} groups of one size (got {count})")
    size = world // count
    return tuple(tuple(range(index * size, (index + 1) * size)) for index in range(count))


def shares_problem(shares: Sequence[float]) -> str:
    """The problem with the shares of an uneven split of any size; empty if there is none."""
    if any(not (math.isfinite(share) and share > 0) for share in shares):
        return "each must be above 0"
    if shares and not math.isclose(math.fsum(shares), 1.0, abs_tol=1e-6):
        return f"must sum to 1 (they sum to {math.fsum(shares):g})"
    return ""


def split(count: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Split ``count`` elements by ``shares``; every part has at least one. Raises ValueError if there are too few elements."""
    edges = [round(count * math.fsum(shares[:index])) for index in range(len(shares))] + [count]
    parts = tuple(high - low for low, high in itertools.pairwise(edges))
    if min(parts) < 1:
        index = parts.index(min(parts))
        raise ValueError(f"share {shares[index]:g} of {count} elements is none")
    return parts
