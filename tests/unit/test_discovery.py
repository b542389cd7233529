"""Plugins are found by their place, loaded when asked for, and a broken one is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.model.errors import UsageError


def folder(root: Path, kind: str, name: str, text: str) -> Path:
    (root / kind).mkdir(parents=True, exist_ok=True)
    (root / kind / name).write_text(text)
    return root


def test_built_in_plugins_are_found_by_file_name() -> None:
    catalogue = plugins.discover()
    assert {"crash-node", "pause-node"} <= set(catalogue.faults)
    assert {"train-dp", "script"} <= set(catalogue.workloads)
    assert "dp-ring" in catalogue.trials
    assert catalogue.faults["crash-node"].summary.startswith("Kills every process of a node")


def test_a_users_file_may_import_as_a_built_in_one_does(tmp_path: Path) -> None:
    text = '"""My fault."""\n\nfrom ..model.act import Act\n\nSAFETY = "process"\nKIND = Params = plan = Act\n'
    plugin = plugins.discover([folder(tmp_path, "faults", "my_fault.py", text)]).faults["my-fault"]
    assert (plugin.summary, plugin.module.SAFETY) == ("My fault", "process")


def test_a_broken_file_is_named_with_its_line_when_it_is_used_and_not_before(tmp_path: Path) -> None:
    catalogue = plugins.discover([folder(tmp_path, "faults", "broken.py", '"""X."""\nx = 1\ny = x / 0\n')])
    assert "broken" in catalogue.faults
    with pytest.raises(UsageError, match=r"broken\.py:3: cannot be loaded: ZeroDivisionError"):
        catalogue.faults["broken"]


def test_a_name_that_is_taken_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fault crash-node already exists"):
        plugins.discover([folder(tmp_path, "faults", "crash_node.py", "")])


def test_a_folder_without_plugins_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has none of faults"):
        plugins.discover([tmp_path])
    with pytest.raises(UsageError, match="no such directory"):
        plugins.discover([tmp_path / "nothing"])


def test_the_whole_catalogue_is_read_without_torch() -> None:
    program = (
        "import sys; from orchestrator import plugins; c = plugins.discover();"
        "[plugin.module for kind in plugins.KINDS for plugin in getattr(c, kind).values()];"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_file_that_lacks_what_its_kind_must_offer_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    catalogue = plugins.discover([folder(tmp_path, "faults", "my_fault.py", '"""My fault."""\n\nSAFETY = "process"\n')])
    with pytest.raises(UsageError, match=r"must offer Params, SAFETY, plan; Params, plan is missing"):
        catalogue.faults["my-fault"]
