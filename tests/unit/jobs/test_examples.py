"""The shipped example scripts: listed, found by name, and plain."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from orchestrator import plugins
from orchestrator.app import trials
from orchestrator.model.errors import UsageError
from orchestrator.store import shipped


def test_an_example_is_opened_by_its_name() -> None:
    source = trials.open_source("example:gpt-ddp", ("--steps", "3"), plugins.discover())
    assert source.is_script
    assert source.params["file"] == str(shipped.examples()["gpt-ddp"])
    assert source.params["args"] == ["--steps", "3"]


def test_an_unknown_example_names_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="gpt-ddp"):
        trials.open_source("example:gpt-dpd", (), plugins.discover())


@pytest.mark.parametrize("name", shipped.examples())
def test_an_example_is_a_plain_script(name: str) -> None:
    """It imports nothing of ccbed, and its syntax is that of the oldest Python that torch 2.4 runs on."""
    tree = ast.parse(shipped.examples()[name].read_text(), feature_version=(3, 9))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not {module for module in modules if "ccbed" in module or "orchestrator" in module}
    assert ast.get_docstring(tree)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt-pp", "torch.__version__ = torch.torch_version.TorchVersion('2.4.0')", "gpt-pp needs torch 2.5 or newer (got 2.4.0)"),
        ("gpt-fsdp2", "del torch.distributed.fsdp.fully_shard", "gpt-fsdp2 needs torch 2.6 or newer (got "),
    ],
)  # fmt: skip
def test_an_example_names_the_torch_that_it_needs(name: str, change: str, message: str) -> None:
    file = shipped.examples()[name]
    code = f"import runpy, sys, torch, torch.distributed.fsdp; {change}; sys.path.insert(0, {str(file.parent)!r}); sys.argv = ['']"
    command = [sys.executable, "-c", f"{code}; runpy.run_path({str(file)!r}, run_name='__main__')"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(message) and done.stderr.count("\n") == 1
