"""What `auto` measures where its cost model cannot tell algorithms apart, and what it takes by it; ranks always agree."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.collectives.rank import algorithm_choice, link_fit, memory_demand
from orchestrator.rank.exchange import cases

BETA = 8 / 145e6


def choice(operation: str, size: int, world: int = 7, **more: Any) -> algorithm_choice.Choice:
    entry = case(operation, size, world)
    return algorithm_choice.choose(
        entry, algorithm_choice.candidates(entry), link_fit.Fit(more.pop("alpha", 5e-5), BETA), **more
    )


def case(operation: str, size: int, world: int) -> cases.Case:
    return cases.cases([cases.Item(operation=operation, bytes=size, algorithm="auto")], world)[0]


class Machine:
    """Runs algorithms that take these seconds, turn by turn; the last one is repeated. ``turns``: what ran in each."""

    def __init__(self, **seconds: Sequence[float]) -> None:
        self._seconds = {name.replace("_", "-"): list(times) for name, times in seconds.items()}
        self.turns: list[tuple[str, ...]] = []

    def __call__(self, names: Sequence[str]) -> list[float]:
        self.turns.append(tuple(names))
        turn = len(self.turns) - 2  # the first is not timed
        return [999.0 if turn < 0 else self._seconds[name][min(turn, len(self._seconds[name]) - 1)] for name in names]

    def measure(self, is_time_left: Callable[[], bool] = lambda: True) -> dict[str, list[float]]:
        return algorithm_choice.measure_in_turns(list(self._seconds), self, is_time_left)


def test_of_equal_ones_auto_prefers_one_message_at_a_time() -> None:
    """Bidirectional ring is the fastest by the model, by a start-up; two messages at once share a port unevenly."""
    result = choice("all-gather", 27720 * 32, world=3)
    assert next(iter(result.seconds)) == "bidirectional-ring" and result.name in ("ring", "bruck")
    assert result.seconds[result.name] <= result.seconds["bidirectional-ring"] * (1 + algorithm_choice.EQUAL)
    assert f"of {result.name}, no more than 3% from" in result.why


def test_a_clear_winner_of_the_model_needs_no_measurement() -> None:
    result = choice("broadcast", 27720 * 4 * 64)
    assert result.rivals == ("chain",) and not algorithm_choice.can_measure(result, 1e9)


def test_one_rank_measures_nothing() -> None:
    entry = case("all-reduce", 4096, 1)
    result = algorithm_choice.choose(entry, algorithm_choice.candidates(entry), None)
    assert result.rivals == () and not algorithm_choice.can_measure(result, 1e9)


def test_start_ups_of_a_busy_machine_make_more_rivals() -> None:
    idle, busy = (choice("all-reduce", 27720 * 4, busy_alpha=alpha) for alpha in (0.0, 2e-3))
    assert {"ring", "bidirectional-ring"} <= set(idle.rivals) < set(busy.rivals)
    assert idle.seconds == busy.seconds, "the expected times are those of the probe"


def test_what_takes_too_long_is_not_measured() -> None:
    result = choice("all-reduce", 27720 * 4 * 64)
    turns_s = sum(result.seconds[name] for name in result.rivals) * (algorithm_choice.LEAST_TURNS + 1)
    assert algorithm_choice.can_measure(result, turns_s) and not algorithm_choice.can_measure(result, turns_s * 0.99)
    assert not algorithm_choice.can_measure(result, 0.0), "auto_s 0: the model alone decides"


def test_the_least_median_wins_whatever_the_model_expects() -> None:
    expected = choice("all-reduce", 27720 * 4)
    assert expected.name == "ring"
    machine = Machine(ring=[4e-3, 9e-3, 4.2e-3], bidirectional_ring=[5e-3, 5e-3, 3.9e-3])
    result = algorithm_choice.after_measurement(expected, machine.measure())
    assert (result.name, result.measured) == ("bidirectional-ring", {"bidirectional-ring": 3.9e-3, "ring": 4.2e-3})
    text = "chosen from 2, in turn in the warm-up, medians of up to 12: bidirectional-ring 3.9 ms, ring 4.2 ms; "
    assert result.why.startswith(text)
    assert result.why.endswith(expected.why)


def test_what_cannot_be_told_apart_is_decided_by_messages_at_a_time() -> None:
    """Bidirectional ring has the least median, and ring's is within 3 % of it; ring sends one message at a time."""
    expected = choice("all-reduce", 27720 * 4)
    near = {"ring": [3.0, 4.1, 5.0] * 3, "bidirectional-ring": [3.0, 4.0, 5.0] * 3}
    clear = {"ring": [4.5, 4.6, 4.7] * 3, "bidirectional-ring": [3.9, 4.0, 4.1] * 3}
    far = {"ring": [3.0, 4.2, 9.0] * 3, "bidirectional-ring": [3.0, 4.0, 5.0] * 3}
    for times, name in ((near, "ring"), (far, "bidirectional-ring")):
        result = algorithm_choice.after_measurement(expected, times)
        assert result.name == name
        assert "; not resolved against bidirectional-ring: ring; " in result.why, "it says what it chose from"
    assert algorithm_choice.after_measurement(expected, clear).name == "bidirectional-ring"


def test_what_is_slower_than_the_best_is_measured_no_further() -> None:
    machine = Machine(ring=[1.0, 3.0, 1.0], direct=[20.0], pairwise=[2.0, 1.02, 2.0])
    times = machine.measure()
    assert machine.turns[:4] == [("ring", "direct", "pairwise")] * 4, "one that is not timed, and three"
    assert machine.turns[4] == ("ring", "pairwise") and len(times["direct"]) == algorithm_choice.LEAST_TURNS
    assert len(times["pairwise"]) == 9, "it is slower in two turns of three"
    assert 999.0 not in [seconds for values in times.values() for seconds in values]


def test_near_ones_are_measured_until_they_are_known_to_be_equal() -> None:
    assert len(Machine(ring=[1.0], direct=[1.01]).measure()["ring"]) == 3
    draw = random.Random(1)
    noisy = Machine(
        ring=[draw.uniform(1, 2) for _ in range(60)], direct=[draw.uniform(1, 2) for _ in range(60)]
    ).measure()
    assert [len(values) for values in noisy.values()] == [algorithm_choice.MOST_TURNS] * 2


def test_it_ends_when_one_is_left_or_the_time_is_over() -> None:
    assert len(Machine(ring=[1.0], direct=[2.0]).measure()["ring"]) == 3
    left = iter([True, True, False])
    assert len(Machine(ring=[1.0, 1.2] * 9, direct=[1.2, 1.0] * 9).measure(lambda: next(left))["ring"]) == 9


def test_auto_needs_the_memory_of_all_that_it_may_measure() -> None:
    entry = case("all-to-all", 27720 * 4, 4)
    alone = {
        algorithm.name: memory_demand.need([cases.chosen(entry, algorithm.name)], 0)
        for algorithm in algorithm_choice.candidates(entry)
    }
    assert max(alone.values()) <= memory_demand.need([entry], 0) <= sum(alone.values())


#: Two ranks of which each would choose for itself: what they measure and the order in which the model has them differ by rank.
RANKS = """
import datetime, sys
from dataclasses import replace
from types import SimpleNamespace

import torch
import torch.distributed as dist

from orchestrator.collectives.rank import algorithm_choice, link_fit, measure
from orchestrator.rank.exchange import cases

rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
choose, after = algorithm_choice.choose, algorithm_choice.after_measurement

def differing(*args):
    result = choose(*args)
    names = sorted(result.seconds)[:3]
    return replace(result, name=names[rank], rivals=tuple(names[rank : rank + 2]))

algorithm_choice.choose = differing
algorithm_choice.after_measurement = lambda choice, times: replace(after(choice, times), name=sorted(times)[rank])

def chosen(auto_s):
    notes = []
    params = SimpleNamespace(drain=0, precision="", auto_s=auto_s)
    ctx = SimpleNamespace(
        rank=rank, world=2, device=torch.device("cpu"), params=params, gang=SimpleNamespace(link=None), chunks=None, note=notes.append
    )
    items = [cases.Item(operation="all-reduce", bytes=4096, algorithm="auto", trials=trials) for trials in (1, 2)]
    meter = measure.Meter(ctx, cases.cases(items, 2))
    meter._link = link_fit.Fit(1e-5, 1e-9)
    meter._memberships[((0, 1),)] = measure.operations.join_groups([(0, 1)], rank, 2)
    names = [case.item.algorithm for case in meter._choose_algorithms()]
    print(*names, len(notes), len(notes[0].measured or ()) if notes else 0)

chosen(5.0)
chosen(0.0)
measure.Meter._of_rank_0 = lambda self, *values: list(values)
chosen(0.0)
dist.barrier()
"""


def test_ranks_that_would_choose_otherwise_take_what_rank_0_chose(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=900)[0].splitlines() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    (measured, expected, control), (other_measured, other_expected, other_control) = (
        [line.split() for line in lines] for lines in printed
    )
    assert measured[:2] == other_measured[:2] and expected[:2] == other_expected[:2]
    assert measured[0] == measured[1], "equal collectives have the same algorithm"
    assert (measured[2:], expected[2:], other_measured[2:]) == (["2", "2"], ["2", "0"], ["0", "0"])
    assert control[:2] != other_control[:2], "without rank 0's decision they differ"
