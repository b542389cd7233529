"""What a trial needs installed on its nodes is asked of what they say they have, before anything starts."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.spec import parse_trial, planning
from orchestrator.model.errors import InfrastructureError
from orchestrator.model.trial import Trial
from orchestrator.node.agent import system_facts

from . import beds
from .test_plan import CATALOGUE

BARE = {"missing": {"mpirun": "not found", "mpi4py": "not found"}}
WHOLE = {"mpirun": "/usr/bin/mpirun", "mpi4py": "/x/mpi4py/__init__.py", "missing": {}}


def trial(algorithms: str, workload: str = "collective") -> Trial:
    params = f"algorithm: [{algorithms}]" if workload == "collective" else f"items: [{algorithms}]"
    return parse_trial.parse(f"trial: t\nworkload: {workload}\nparams: {{{params}}}", "t.yml", CATALOGUE)


def required(of: Trial, **facts: Any) -> None:
    planning.require_programs(of, dataclasses.replace(beds.local(), provider="docker"), CATALOGUE, facts)


def test_process_nodes_get_their_programs_from_the_machine() -> None:
    with pytest.raises(InfrastructureError) as raised:
        planning.require_programs(trial("mpi"), beds.local(), CATALOGUE, {"n0": BARE})
    assert "or install it for the nodes (pip install mpi4py" in raised.value.hint


def test_open_mpi_that_containers_lack_is_refused_with_the_nodes_and_the_way_out() -> None:
    with pytest.raises(InfrastructureError) as raised:
        required(trial("ring, mpi, 'mpi:ring'"), n0=BARE, n1=BARE, n2=WHOLE)
    assert raised.value.problems == (
        "algorithm mpi: n0 n1: no mpirun, no mpi4py", "algorithm mpi:ring: n0 n1: no mpirun, no mpi4py",
    )  # fmt: skip
    assert raised.value.hint.startswith(
        "remove it from --algorithm; or set ccbed_image to an image that has it (pip install mpi4py"
    )
    assert raised.value.hint.endswith("and: ccbed up local.yml")


def test_a_replayed_item_by_open_mpi_is_refused_as_well() -> None:
    with pytest.raises(InfrastructureError, match="algorithm mpi:ring: n0: no mpi4py"):
        required(
            trial("{operation: all-reduce, bytes: 4, algorithm: 'mpi:ring'}", "emulate"),
            n0={"missing": {"mpi4py": "not found"}},
        )


def test_whoever_has_it_or_does_not_say_or_need_it_is_not_refused() -> None:
    required(trial("ring, mpi"), n0=WHOLE)
    required(trial("ring, mpi"), n0={}, n1={"node": "n1"})
    required(trial("ring, library"), n0=BARE)
    required(parse_trial.parse("trial: t\nworkload: train-dp", "t.yml", CATALOGUE), n0=BARE)


def test_a_node_says_where_its_programs_are_and_which_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {"mpirun": "/opt/bin/mpirun"}
    monkeypatch.setattr(shutil, "which", lambda name, path=None: paths.get(name))
    facts = system_facts.collect_facts({"node": "n0", "incarnation": "1"}, tmp_path)
    assert facts["mpirun"] == "/opt/bin/mpirun" and "mpi4py" in {**facts, **facts["missing"]}
    del paths["mpirun"]
    facts = system_facts.collect_facts({"node": "n0", "incarnation": "1"}, tmp_path)
    assert facts["missing"]["mpirun"] == "not found"
