"""Scatter and ring all-gather: broadcasts large buffers by a binomial scatter, then an all-gather on a ring.

(L+p-1)a + 2((p-1)/p) n b, and (L-1)a more for the tokens between the rounds of the scatter. Van de Geijn's algorithm;
Barnett et al., "Interprocessor collective communication library (InterCom)", SHPCC 1994; Thakur, Rabenseifner and Gropp (2005).
"""

from __future__ import annotations

from ..model import schedule as model
from . import binomial_tree, ring

OPERATIONS = ("broadcast",)
_TREE = binomial_tree.Params()
chunks = ring.chunks


def schedule(operation: str, rank: int, world: int) -> model.Schedule:
    """The binomial tree's scatter and the ring's all-gather."""
    del operation
    scatter = binomial_tree.schedule("scatter", rank, world, _TREE)
    return scatter + ring.schedule("all-gather", rank, world)


def cost(operation: str, world: int) -> model.Cost:
    """The sum of both."""
    del operation
    scatter, gather = binomial_tree.cost("scatter", world, _TREE), ring.cost("all-gather", world)
    return model.Cost(scatter.rounds + gather.rounds, scatter.volume + gather.volume)
