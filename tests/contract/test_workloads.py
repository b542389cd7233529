"""What every file of workloads/ must offer to the orchestrator, by existing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from orchestrator.core.spec import parameter_docs
from orchestrator.model import codec
from orchestrator.model.plugin import Plugin
from orchestrator.model.trial import PHASES

from ..unit.catalogue import CATALOGUE

WORKLOADS = [pytest.param(plugin, id=name) for name, plugin in CATALOGUE.workloads.items()]
READ = """
import sys
from tests.unit.catalogue import CATALOGUE
module = CATALOGUE.workloads[sys.argv[1]].module
module.check(module.Params())
module.last_step(module.Params(), None)
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("plugin", WORKLOADS)
def test_the_docstring_begins_with_a_sentence_for_the_catalogue(plugin: Plugin) -> None:
    assert plugin.summary
    assert len(plugin.summary) <= 140


@pytest.mark.parametrize("plugin", WORKLOADS)
def test_params_have_defaults_and_survive_the_way_to_the_rank(plugin: Plugin) -> None:
    cls: Any = plugin.module.Params
    params = cls()
    assert cls.__dataclass_params__.frozen
    assert codec.build(cls, json.loads(json.dumps(codec.plain(params)))) == params
    assert fields(cls)


@pytest.mark.parametrize("plugin", WORKLOADS)
def test_every_parameter_has_a_meaning(plugin: Plugin) -> None:
    meanings = parameter_docs.read_meanings(plugin.module.Params)
    assert {field.name for field in fields(plugin.module.Params)} - set(meanings) == set()
    assert all(text[0].isalnum() and len(text) < 400 for text in meanings.values())


@pytest.mark.parametrize("plugin", WORKLOADS)
def test_metrics_checks_and_phases_are_known(plugin: Plugin) -> None:
    module: Any = plugin.module
    assert all(better in ("higher", "lower") and unit for unit, better in module.METRICS.values())
    assert isinstance(module.CHECKS, tuple)
    assert set(module.CHECKS) <= CATALOGUE.checkers.keys()
    assert set(getattr(module, "PHASES", ())) <= set(PHASES)


@pytest.mark.parametrize("plugin", WORKLOADS)
def test_a_problem_with_its_params_begins_with_the_name_of_one(plugin: Plugin) -> None:
    """The defaults of a workload are valid, but for what only the user can name (the script)."""
    module: Any = plugin.module
    problems = list(module.check(module.Params()))
    names = {field.name for field in fields(module.Params)}
    assert {problem.partition(":")[0] for problem in problems} <= names


@pytest.mark.parametrize("plugin", WORKLOADS)
def test_reading_it_imports_no_torch(plugin: Plugin) -> None:
    done = subprocess.run([sys.executable, "-c", READ, plugin.name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
