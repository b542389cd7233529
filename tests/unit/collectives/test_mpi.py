"""Open MPI as a peer: which algorithm is forced how, what is refused, and what happens where it is not installed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from orchestrator import plugins
from orchestrator.app import trials
from orchestrator.collectives.plugins.workloads import collective
from orchestrator.collectives.rank import algorithm_choice, mpi_names, mpi_peer
from orchestrator.model.bed import HostSpec
from orchestrator.model.errors import InfrastructureError
from orchestrator.model.trial import Trial
from orchestrator.rank.exchange import cases

from .. import beds

PROGRAMS = mpi_names.Programs(mpirun="/opt/bin/mpirun")


@pytest.mark.parametrize(
    ("text", "operation", "expected"),
    [
        ("mpi", "all-reduce", ("coll_tuned_allreduce_algorithm", 0)),
        ("mpi:ring", "all-reduce", ("coll_tuned_allreduce_algorithm", 4)),
        ("mpi:recursive_doubling", "all-reduce", ("coll_tuned_allreduce_algorithm", 3)),
        ("mpi:knomial", "broadcast", ("coll_tuned_bcast_algorithm", 7)),
        ("mpi:in-order_binary", "reduce", ("coll_tuned_reduce_algorithm", 6)),
        ("mpi", "send-recv", ("", 0)),
    ],
)
def test_an_algorithm_is_forced_by_the_parameter_of_its_operation(
    text: str, operation: str, expected: tuple[str, int]
) -> None:
    assert mpi_names.forced(text, operation) == expected
    assert algorithm_choice.problem(text, operation) == "" and algorithm_choice.find(text) is None


@pytest.mark.parametrize(
    ("text", "operation", "expected"),
    [
        (
            "mpi:bruck",
            "all-reduce",
            "unknown all-reduce of Open MPI; it has mpi, mpi:basic-linear, mpi:nonoverlapping",
        ),
        ("mpi:", "barrier", "it has mpi, mpi:linear"),
        ("mpi:ring", "send-recv", "unknown send-recv of Open MPI; it has mpi (got"),
    ],
)
def test_an_algorithm_that_open_mpi_lacks_is_refused_with_those_that_it_has(
    text: str, operation: str, expected: str
) -> None:
    (problem,) = collective.check(
        collective.Params(operation=operation, algorithm=("ring", text)[operation != "all-reduce" :])
    )
    assert problem.startswith("algorithm: ") and expected in problem


def test_mpi_is_among_what_an_operation_has() -> None:
    (problem,) = collective.check(collective.Params(algorithm=("rign",)))
    assert "library, auto, mpi (got 'rign')" in problem


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"asynchronous": True}, "asynchronous: mpi is measured with blocking calls only"),
        ({"dtype": "bfloat16"}, "dtype: MPI cannot reduce bfloat16"),
        ({"operation": "all-gather", "algorithm": "mpi:two_proc"}, "algorithm: mpi:two_proc is for groups of 2 ranks (got 3)"),
        ({"operation": "all-gather", "algorithm": "mpi:neighbor"}, "is for even numbers of ranks (got 3)"),
        ({"operation": "all-gather", "bytes": 1024}, "bytes: mpi does all-gather in 3 parts of one size; 1024 bytes"),
        ({"operation": "all-to-all", "algorithm": "mpi:pairwise", "bytes": 1024}, "for blocks of one size; use mpi"),
    ],
)  # fmt: skip
def test_what_open_mpi_cannot_do_is_told_before_it_starts(more: dict[str, Any], expected: str) -> None:
    item = cases.Item(**{"operation": "all-reduce", "bytes": 1200, "algorithm": "mpi", **more})
    (problem,) = algorithm_choice.infeasible(item, 3)
    assert expected in problem


def test_it_moves_what_it_cannot_combine_and_blocks_of_any_size() -> None:
    for item in (
        cases.Item(operation="broadcast", bytes=1200, dtype="bfloat16", algorithm="mpi:chain"),
        cases.Item(operation="all-to-all", bytes=1024, algorithm="mpi"),
    ):
        assert list(algorithm_choice.infeasible(item, 3)) == []


def test_mpirun_starts_one_program_per_rank_beside_itself_without_a_remote_shell() -> None:
    argv = mpi_peer.arguments(PROGRAMS, Path("/d/mpi-r0"), 4)
    assert argv[argv.index("-np") + 1] == "4" and argv[argv.index("plm") + 1] == "isolated"
    assert argv[-1] == "/d/mpi-r0" and "--host" not in argv


def test_open_mpi_uses_tcp_over_the_interface_alone_and_what_the_user_sets_stays() -> None:
    result = mpi_peer.settings("eth0", {})
    assert result["OMPI_MCA_btl"] == "tcp,self" and result["OMPI_MCA_btl_tcp_if_include"] == "eth0"
    assert result["OMPI_MCA_coll_tuned_use_dynamic_rules"] == "1" and result["PMIX_MCA_ptl_tcp_if_include"] == "eth0"
    assert "OMPI_MCA_pml" not in mpi_peer.settings("eth0", {"OMPI_MCA_pml": "cm"})
    assert "OMPI_MCA_btl_tcp_if_include" not in mpi_peer.settings("", {})


def program(folder: Path, name: str, says: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / name).chmod(0o755)


def test_another_release_is_not_taken_for_one_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path, "mpirun", "mpirun (Open MPI) 5.0.7")
    with pytest.raises(mpi_names.Missing, match=r"mpirun is Open MPI 5\.0\.7; required is Open MPI 4\.1 \(pip install"):
        mpi_names.find()
    program(tmp_path, "mpirun", "mpirun (Open MPI) 4.1.4")
    assert mpi_names.find() == mpi_names.Programs(mpirun=f"{tmp_path}/mpirun")
    program(tmp_path, "orterun_wrapper", "")
    assert mpi_names.find().environment() == {"OPAL_PREFIX": str(tmp_path.parent)}


def test_what_is_missing_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(mpi_names.Missing) as raised:
        mpi_names.find()
    assert str(raised.value) == f"Open MPI is not installed: no mpirun, no mpi4py ({mpi_names.ADVICE})"


@dataclass
class Recorded:
    """A terminal that keeps its warnings."""

    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def lacking() -> mpi_names.Programs:
    raise mpi_names.Missing("Open MPI is not installed: no mpirun (how to get it)")


def available(*algorithms: str, connection: Literal["local", "ssh"] = "local") -> tuple[Trial, list[str]]:
    message: Any = Recorded()
    bed = replace(beds.local(), hosts=(HostSpec(name="h1", connection=connection),))
    trial = Trial(name="t", workload="collective", params={"algorithm": list(algorithms), "sizes": ["1K"]})
    return trials.without_missing_libraries(message, trial, bed, plugins.discover()), message.warnings


def test_without_open_mpi_its_algorithms_are_skipped_by_name_and_the_others_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mpi_names, "find", lacking)
    trial, warnings = available("ring", "mpi", "library", "mpi:ring")
    assert trial.params == {"algorithm": ["ring", "library"], "sizes": ["1K"]}
    assert warnings == ["mpi, mpi:ring skipped: Open MPI is not installed: no mpirun (how to get it)"]
    with pytest.raises(InfrastructureError, match=r"^mpi: Open MPI is not installed"):
        available("mpi")
    assert available("ring")[1] == [] and available("ring", "mpi", connection="ssh")[0].params["algorithm"] == [
        "ring",
        "mpi",
    ]


def test_with_it_nothing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_names, "find", lambda: PROGRAMS)
    assert available("ring", "mpi")[0].params["algorithm"] == ["ring", "mpi"]


def test_a_rank_whose_node_lacks_it_says_so_before_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_names, "find", lacking)
    item = cases.Item(operation="all-reduce", bytes=4, algorithm="mpi:ring")
    with pytest.raises(mpi_names.Missing, match="not installed"):
        mpi_peer.is_needed([item], "gloo")
    with pytest.raises(mpi_names.Missing, match="with backend gloo"):
        mpi_peer.is_needed([item], "nccl")
    assert not mpi_peer.is_needed([replace(item, algorithm="ring")], "nccl")
