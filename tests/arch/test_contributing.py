"""The worked example of CONTRIBUTING.md is a real file that is found, planned and named as the text says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.model.act import HostFacts, Target

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "examples" / "plugins"
FILE = FOLDER / "faults" / "kill_rank.py"


def test_the_text_shows_the_file_as_it_is() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert FILE.read_text() in blocks


def test_a_fault_is_added_by_its_file_alone() -> None:
    assert "kill-rank" not in plugins.discover().faults
    found = plugins.discover([FOLDER]).faults["kill-rank"]
    assert found.summary == "Kills one rank and leaves its node alone"
    assert found.path == str(FILE)


def test_the_fault_of_the_example_is_planned() -> None:
    module = plugins.discover([FOLDER]).faults["kill-rank"].module
    host = HostFacts(name="localhost", provider="process", capabilities=frozenset({"signal"}))
    act = module.plan(module.Params(), Target(node="n2", rank=2), host)
    assert [primitive.args for primitive in act.inject] == [{"signal": "KILL", "rank": 2}]
    assert act.verify
    with pytest.raises(ValueError, match="must be KILL or TERM"):
        module.Params(signal="HUP")
