"""Open MPI as a peer, for real: every operation by every algorithm of its own, and proof on the wire that they are forced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.collectives.plugins.workloads import emulate
from orchestrator.collectives.rank import algorithm_choice, mpi_names
from orchestrator.core.bed import links
from orchestrator.model.schedule import OPERATIONS
from orchestrator.model.trial import Recovery, Trial, World
from orchestrator.providers.process import fabric_checks
from orchestrator.rank.exchange import cases
from orchestrator.rank.exchange.cases import REDUCING
from orchestrator.store import bed_files

from .. import trials
from ..conftest import ROOT, Bed, ccbed, with_damage

pytestmark = pytest.mark.e2e

SIZE, TIMES = 1 << 20, 3


@pytest.fixture(autouse=True)
def open_mpi() -> None:
    try:
        mpi_names.find()
    except mpi_names.Missing as missing:
        pytest.skip(str(missing))


def trial(workload: str, nodes: int = 4, **params: Any) -> Trial:
    return Trial(
        name="mpi", workload=workload, params={"warmup": 1, "probe": False, **params}, world=World(nodes=nodes),
        recovery=Recovery(policy=("none",)), liveness=replace(trials.LIVENESS, lost_s=12),
    )  # fmt: skip


def every_item() -> list[dict[str, Any]]:
    """What Open MPI can do among four ranks: all names; then dtypes and operators, roots, groups, shares."""
    items: list[dict[str, Any]] = []
    for operation in OPERATIONS:
        every = {"operation": operation, "bytes": 4096, "trials": 2}
        items += [{**every, "algorithm": name} for name in mpi_names.of(operation)]
        item = {"operation": operation, "bytes": 4096, "algorithm": "mpi"}
        items.append({**item, "groups": [[2, 0], [1, 3]]})
        if operation in REDUCING:
            items += [{**item, "dtype": "float64", "operator": "avg"}, {**item, "dtype": "int8", "operator": "bxor"}]
        elif operation != "barrier":
            items.append({**item, "dtype": "bfloat16"})
        if operation in ("broadcast", "reduce", "gather", "scatter"):
            items.append({**item, "root": 2})
    items.append({"operation": "all-to-all", "bytes": 4096, "algorithm": "mpi", "shares": [0.25, 0.25, 0.1, 0.4]})
    return [item for item in items if not list(algorithm_choice.infeasible(emulate.parse_item(item), 4))]


def test_every_operation_by_every_algorithm_of_open_mpi_is_exact_on_all_ranks(bed: Bed) -> None:
    items = every_item()
    ran = bed.run(trial("emulate", items=[*items, {"operation": "all-reduce", "bytes": 4096}]))
    assert ran.bad() == [] and ran.code == 0
    steps = sum(emulate.parse_item(item).trials for item in items) + 1
    assert ran.verdict("results-exact").text == f"{steps} results of {len(items) + 1} cases exact, all ranks equal"
    assert len(items) > 50 and {item["operation"] for item in items} == set(cases.OPERATIONS)


def test_a_wrong_result_of_open_mpi_fails_the_run_and_nothing_is_left(bed: Bed) -> None:
    damaged = trial("damaged-collective", sizes=["1K"], algorithm=["mpi:ring"], wrong_rank=2, wrong_element=5)
    ran = with_damage(bed).run(damaged)
    assert ran.code == 1 and ran.outcome("no-orphans") == "pass"
    assert "element 5" in ran.verdict("results-exact").text and "rank 2" in ran.verdict("results-exact").text


def test_its_rows_stand_in_the_same_table(bed: Bed) -> None:
    code, output = bed.ccbed(
        "run", "allreduce", "--sizes", "1K,4K", "--algorithm", "ring,library,mpi,mpi:ring", "--iterations", "2",
        "--bed", "local", "--probe", "false", "--warmup", "1", "--runs-dir", str(bed.runs),
    )  # fmt: skip
    assert code == 0 and " skipped: " not in output, "Open MPI takes part"
    rows = [line.split()[2] for line in output.splitlines() if line.lstrip().startswith(("1 KiB", "4 KiB"))]
    assert rows[:1] == ["ring"] and output.count("\n        mpi:ring") + output.count(" mpi:ring ") >= 2


@pytest.fixture
def isolated(tmp_path: Path) -> Iterator[Bed]:
    """Four nodes in network namespaces, where every node counts what it sends."""
    if lacking := "; ".join(lack.text for lack in fabric_checks.lacking(links.parse({"rate": "1gbit"}))):
        pytest.skip(f"no emulated fabric here: {lacking}")
    state = tmp_path / "state" / "ccbed"
    code, output = ccbed(state, "up", str(ROOT / "inventories/fabric.yml"))
    assert code == 0, output
    spec = bed_files.read(state, "fabric")
    assert spec is not None
    yield Bed(state=state, runs=tmp_path / "runs", spec=spec, catalogue=plugins.discover(()))
    assert ccbed(state, "down", "fabric", "--force")[0] == 0


def sent(bed: Bed, node: str) -> int:
    """Bytes so far, as the node's own kernel counts them."""
    code, output = bed.ccbed("exec", node, "--", "cat", "/proc/self/net/dev")
    assert code == 0, output
    (line,) = (line for line in output.splitlines() if "eth0:" in line)
    return int(line.partition("eth0:")[2].split()[8])


@pytest.mark.root
def test_between_namespaces_the_forced_algorithm_is_what_goes_over_the_wire(isolated: Bed) -> None:
    """Linear: the root sends the sum to all others, n each. Ring: every rank sends 2 (p - 1)/p n. Times: warm-up and trials."""
    volumes = {}
    for name in ("mpi:basic-linear", "mpi:ring"):
        before = [sent(isolated, f"n{node}") for node in range(4)]
        ran = isolated.run(
            trial("collective", sizes=[str(SIZE)], algorithm=[name], iterations=TIMES, verify=False, drain=0)
        )
        assert ran.code == 2 and ran.outcome("results-exact") == "unknown"  # nothing but the collective is to be sent
        volumes[name] = [
            (sent(isolated, f"n{node}") - start) / (SIZE * (TIMES + 1)) for node, start in enumerate(before)
        ]
    assert volumes["mpi:basic-linear"] == pytest.approx([3, 1, 1, 1], rel=0.15)
    assert volumes["mpi:ring"] == pytest.approx([1.5] * 4, rel=0.15)
