"""Divides n elements into p parts by quotient and remainder, without padding."""

from __future__ import annotations

import itertools


def bounds(total: int, parts: int) -> tuple[tuple[int, int], ...]:
    """(start, stop) of every part; the first ``total % parts`` parts hold one element more than the rest."""
    quotient, remainder = divmod(total, parts)
    edges = [index * quotient + min(index, remainder) for index in range(parts + 1)]
    return tuple(itertools.pairwise(edges))
