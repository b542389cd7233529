"""Whether buffers fit: what a case needs on a rank, and who shares what is free."""

from __future__ import annotations

import pytest
import torch

from orchestrator import plugins
from orchestrator.collectives.rank import algorithm_choice, memory_demand
from orchestrator.core.spec import parse_trial
from orchestrator.model.errors import UsageError
from orchestrator.model.requirements import FreeMemory, available_in_cgroup, available_on_host
from orchestrator.model.trial import Trial
from orchestrator.rank.exchange import cases, receive_schedule, step_tensors

from .. import test_plan

GIB = float(1 << 30)


def need(case_: cases.Case, rank: int) -> int:
    return memory_demand.need((case_,), rank)


def case(operation: str, size: int, groups: str = "", algorithm: str = "library") -> cases.Case:
    return cases.cases([cases.Item(operation=operation, bytes=size, groups=groups, algorithm=algorithm)], 4)[0]


def test_a_rank_needs_its_buffer_the_input_and_the_result() -> None:
    assert need(case("all-reduce", 4096), 0) == 3 * 4096
    assert need(case("broadcast", 4096), 0) == 3 * 4096 and need(case("broadcast", 4096), 1) == 2 * 4096
    assert need(case("all-to-all", 4096), 2) == 4 * 4096 + 1024
    assert need(case("all-reduce", 4096, "0,1"), 3) == 0


def test_what_an_algorithm_receives_beside_the_buffer_counts() -> None:
    assert need(case("all-reduce", 4096, algorithm="star"), 0) == 5 * 4096
    assert need(case("all-reduce", 4096, algorithm="star"), 1) == 3 * 4096
    assert need(case("all-reduce", 4096, algorithm="ring"), 2) == 3 * 4096 + 3 * 1024


def test_algorithms_that_take_turns_hold_in_common_what_is_alike() -> None:
    def among(operation: str, *names: str) -> tuple[cases.Case, ...]:
        items = [cases.Item(operation=operation, bytes=4096, algorithm=name) for name in names]
        return cases.cases(items, 4, in_turn=True)

    assert memory_demand.need(among("all-reduce", "ring", "library", "star"), 0) == 3 * 4096 + 3 * 1024 + 2 * 4096
    apart = [memory_demand.need(among("all-gather", name), 0) for name in ("ring", "library")]
    assert memory_demand.need(among("all-gather", "ring", "library"), 0) == sum(
        apart
    )  # the library wants its own block apart


@pytest.mark.parametrize("name", algorithm_choice.doing("all-reduce"))
def test_the_scratch_that_is_made_is_the_scratch_that_is_said(name: str) -> None:
    """Of each rank of four, all that its receives get of memory beside the chunks of the buffer."""
    for me in range(4):
        algorithm = algorithm_choice.find(name)
        assert algorithm is not None
        schedule = algorithm.schedule("all-reduce", me, 4)
        parts = list(torch.zeros(algorithm.chunks("all-reduce", 4), 64).unbind())
        rows = step_tensors.rows(schedule, parts, range(4), torch.device("cpu"))
        into = [arrival.into for row in rows for arrival in row.arrivals if arrival.into is not None]
        held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in into}
        held.pop(parts[0].untyped_storage().data_ptr(), None)
        assert sum(held.values()) <= 1.5 * receive_schedule.scratch(schedule) * 64 * 4 + 4, (name, me)


def test_ranks_of_one_host_share_its_memory() -> None:
    apart = [(1.0, 3 * GIB, 4 * GIB), (2.0, 3 * GIB, 4 * GIB)]
    assert memory_demand.shortage(apart, "on one host") == ""
    together = [(9.0, GIB, 2 * GIB), (1.0, 3 * GIB, 4 * GIB), (1.0, 3 * GIB, 4 * GIB)]
    assert (
        memory_demand.shortage(together, "on one host")
        == "2 ranks from rank 1 on need 6 GiB on one host, 4 GiB are free"
    )
    assert (
        memory_demand.shortage([(0.0, 2 * GIB, GIB)], "on one GPU") == "rank 0 needs 2 GiB on one GPU, 1 GiB are free"
    )


def test_sizes_beyond_all_memory_are_refused_and_what_fits_is_not() -> None:
    device = torch.device("cpu")
    memory_demand.require([(case("all-reduce", 4096),)], 0, 1, device)
    with pytest.raises(
        memory_demand.TooLarge, match=r"all-reduce library \d+ B float32 sum: rank 0 needs 293 TiB on one host"
    ):
        memory_demand.require([(case("all-reduce", 4096),), (case("all-reduce", 100000 << 30),)], 0, 1, device)


def measured(sizes: str) -> Trial:
    text = f"trial: t\nworkload: collective\nparams: {{sizes: [{sizes}]}}"
    return parse_trial.parse(text, "t.yml", plugins.discover())


def test_what_no_host_has_room_for_is_refused_before_the_start_and_the_size_that_fits_is_named() -> None:
    free_memory = [FreeMemory(location="host h1", nodes=("n0", "n1", "n2", "n3", "n4"), size_bytes=20 << 30)]
    with pytest.raises(UsageError) as caught:
        test_plan.planned(measured("1K, 16G"), free_memory=free_memory)
    (problem,) = caught.value.problems
    what, _, rest = problem.rpartition(": ")
    assert what == "trial t: all-reduce ring 17179869184 B float32 sum"
    assert rest.split("; ") == [
        "ranks 0 to 3 need 240 GiB of memory on host h1, 20 GiB are free", "--sizes of at most 1 GiB fit",
        "or free memory there, or run fewer ranks there",
    ]  # fmt: skip
    test_plan.planned(measured("1K, 1G"), free_memory=free_memory)


def test_a_container_has_no_more_than_its_limit_whatever_its_host_has() -> None:
    free_memory = [
        FreeMemory(location="host h1", nodes=("n0", "n1"), size_bytes=1 << 40),
        FreeMemory(location="the container of n1", nodes=("n1",), size_bytes=1 << 30),
    ]
    with pytest.raises(UsageError, match=r"rank 1 needs 3.8 GiB of memory on the container of n1, 1 GiB are free"):
        test_plan.planned(measured("1G"), free_memory=free_memory)


def test_a_replayed_list_and_ranks_that_share_a_node_are_counted() -> None:
    text = (
        "trial: t\nworkload: emulate\nparams: {items: [{operation: broadcast, bytes: 4294967296, algorithm: star}]}\n"
        "world: {nodes: 2, ranks_per_node: 2}\n"
    )
    free_memory = [FreeMemory(location="host h1", nodes=("n1",), size_bytes=15 << 30)]
    with pytest.raises(UsageError, match=r"ranks 2 to 3 need 16 GiB .* items of at most 2 GiB fit"):
        test_plan.planned(parse_trial.parse(text, "t.yml", plugins.discover()), free_memory=free_memory)


def test_a_workload_that_says_nothing_of_memory_is_not_refused() -> None:
    test_plan.planned(test_plan.trial(), free_memory=[FreeMemory(location="host h1", nodes=("n0",), size_bytes=0)])


def test_the_tightest_group_above_a_process_limits_it_and_files_nobody_needs_are_no_use() -> None:
    files = {
        "/proc/7/cgroup": "0::/a/b\n",
        "/sys/fs/cgroup/a/b/memory.max": "max\n",
        "/sys/fs/cgroup/a/b/memory.current": "5\n",
        "/sys/fs/cgroup/a/memory.max": "1000\n",
        "/sys/fs/cgroup/a/memory.current": "900\n",
        "/sys/fs/cgroup/a/memory.stat": "anon 300\ninactive_file 600\n",
        "/proc/8/cgroup": "4:cpu:/c\n3:memory:/c\n",
        "/sys/fs/cgroup/memory/c/memory.limit_in_bytes": "500\n",
        "/sys/fs/cgroup/memory/c/memory.usage_in_bytes": "100\n",
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 2 kB\n",
    }

    def read(path: str) -> str:
        return files.get(path, "")

    assert (available_in_cgroup(read, 7), available_in_cgroup(read, 8), available_in_cgroup(read, 9)) == (
        700,
        400,
        None,
    )
    assert (available_on_host(read), available_on_host(lambda path: "")) == (2048, None)
