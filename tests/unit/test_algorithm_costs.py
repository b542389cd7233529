"""What algorithms say that they cost, against their schedules played on equal links."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from orchestrator.model import algorithm
from orchestrator.model.schedule import Cost
from tests.contract import algorithms
from tests.unit import timing

#: (seconds per message, seconds per byte): start-ups count, bytes count, both.
LINKS = ((1e-3, 0.0), (0.0, 1e-6), (1e-3, 1e-8))
#: Simulated / cost where the two are not equal: (least, most).
BOUNDS = {
    # No power of two: a rank that took in nobody begins at once, and its message holds up the one that is folded in.
    ("halving-doubling", "all-reduce"): (1.0, 1.25),
    # Ranks with a small branch begin the ring before the scatter is over.
    ("scatter-ring-all-gather", "broadcast"): (0.99, 1.15),
    # In slots, of which a tree that is no full one leaves some unused. 16 ranks need one more to turn from the sum to the broadcast.
    ("double-binary-tree", "all-reduce"): (0.8, 1.08),
}
#: Without acknowledgement the cost says what queued messages that share a link do; here they follow one another.
UNACKNOWLEDGED = (0.0, 1.0)


def size(operation: str, n: float, world: int, chunks: int) -> float:
    """Bytes of a chunk."""
    return {"send-recv": n, "all-to-all": n / world}.get(operation, n / max(chunks, 1))


def played(chosen: algorithm.Chosen, operation: str, world: int, n: float, alpha: float, beta: float) -> float:
    chunk = size(operation, n, world, chosen.chunks(operation, world))
    schedules = algorithms.schedules(chosen, operation, world)
    return timing.seconds(schedules, lambda _: chunk, alpha, beta, token=0.0)


@pytest.mark.parametrize(
    ("chosen", "operation"), algorithms.cases(algorithms.defaults() + algorithms.variants()), ids=algorithms.named
)
def test_the_cost_is_what_the_schedule_takes(chosen: algorithm.Chosen, operation: str) -> None:
    least, most = BOUNDS.get((chosen.name, operation), (1.0, 1.0))
    if not getattr(chosen.params, "acknowledged", True) and operation in ("broadcast", "scatter", "all-reduce"):
        least, most = UNACKNOWLEDGED
    for world in algorithms.worlds(chosen, operation, 16, least=2):
        for alpha, beta in LINKS:
            cost = chosen.cost(operation, world).seconds(1e6, alpha, beta)
            took = played(chosen, operation, world, 1e6, alpha, beta)
            assert (least - 1e-9) * cost <= took <= (most + 1e-9) * cost, f"{world} ranks, alpha {alpha}, beta {beta}"


#: p -> (rounds, volume) by the books, for powers of two; d = log2 p. Tokens between rounds come on top, as the files say.
BOOKS: Mapping[tuple[str, str], Callable[[int, int], tuple[float, float]]] = {
    ("ring", "all-reduce"): lambda p, d: (2 * (p - 1), 2 * (p - 1) / p),
    ("ring", "all-gather"): lambda p, d: (p - 1, (p - 1) / p),
    ("ring", "reduce-scatter"): lambda p, d: (p - 1, (p - 1) / p),
    ("bidirectional-ring", "all-reduce"): lambda p, d: (2 * (p - 1), 2 * (p - 1) / p),
    ("halving-doubling", "all-reduce"): lambda p, d: (2 * d, 2 * (p - 1) / p),
    ("halving-doubling", "reduce-scatter"): lambda p, d: (d, (p - 1) / p),
    ("recursive-doubling", "all-reduce"): lambda p, d: (d, d),
    ("recursive-doubling", "all-gather"): lambda p, d: (d, (p - 1) / p),
    ("recursive-doubling", "barrier"): lambda p, d: (d, 0),
    ("star", "all-reduce"): lambda p, d: (2 * (p - 1), 2 * (p - 1)),
    ("binomial-tree", "reduce"): lambda p, d: (d, d),
    ("binomial-tree", "gather"): lambda p, d: (d, (p - 1) / p),
    ("binomial-tree", "broadcast"): lambda p, d: (d + (d - 1), d),
    ("binomial-tree", "all-reduce"): lambda p, d: (2 * d + (d - 1), 2 * d),
    ("sequential", "broadcast"): lambda p, d: (p - 1 + (p - 2), p - 1),
    ("scatter-ring-all-gather", "broadcast"): lambda p, d: (d + p - 1 + (d - 1), 2 * (p - 1) / p),
    ("chain", "broadcast"): lambda p, d: (p - 2 + 16, (p - 2 + 16) / 16),
    ("pairwise", "all-to-all"): lambda p, d: (p - 1, (p - 1) / p),
    ("bruck", "all-to-all"): lambda p, d: (d, d / 2),
    ("bruck", "all-gather"): lambda p, d: (d, (p - 1) / p),
    ("dissemination", "barrier"): lambda p, d: (d, 0),
}


@pytest.mark.parametrize(("name", "operation"), list(BOOKS))
def test_the_cost_is_that_of_the_books(name: str, operation: str) -> None:
    chosen = next(entry for entry in algorithms.defaults() if entry.name == name)
    for bits in range(1, 6):
        assert chosen.cost(operation, 1 << bits) == Cost(*BOOKS[name, operation](1 << bits, bits))


@pytest.mark.parametrize("world", [4, 8, 16, 32])
def test_two_trees_come_near_to_twice_the_buffer(world: int) -> None:
    chosen = next(entry for entry in algorithms.defaults() if entry.name == "double-binary-tree")
    fine = algorithm.choose("double-binary-tree:segments=256", chosen.module)
    depth = (world - 1).bit_length()
    assert chosen.cost("all-reduce", world).rounds <= 4 * 16 + 4 * depth
    assert fine.cost("all-reduce", world).volume == pytest.approx(2, rel=0.05)


def test_queued_sends_of_a_tree_share_the_link() -> None:
    tree = next(entry for entry in algorithms.variants() if entry.name == "binomial-tree")
    assert tree.cost("broadcast", 8) == Cost(3, 6)
    assert tree.cost("scatter", 8) == Cost(3, (7 + 3 + 1 + 0) / 8)


@pytest.mark.parametrize(
    ("name", "operation", "seconds"),
    [("sequential", "broadcast", 35), ("binomial-tree", "broadcast", 15), ("binomial-tree", "reduce", 15)],
)
def test_eight_ranks_and_five_megabytes_at_one_per_second(name: str, operation: str, seconds: float) -> None:
    chosen = next(entry for entry in algorithms.defaults() if entry.name == name)
    assert played(chosen, operation, 8, 5e6, 1e-4, 1e-6) == pytest.approx(seconds, rel=0.001)
    assert chosen.cost(operation, 8).seconds(5e6, 1e-4, 1e-6) == pytest.approx(seconds, rel=0.001)
