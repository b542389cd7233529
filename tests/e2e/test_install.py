"""What is installed outside of a checkout has everything that ccbed needs, the shipped inventories too."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = (
    "orchestrator/_shipped/images/README.md",
    "orchestrator/_shipped/inventories/local.yml",
    "orchestrator/_shipped/playbooks/README.md",
    "orchestrator/_shipped/playbooks/hosts.yml",
    "orchestrator/_shipped/playbooks/tasks/look.yml",
    "orchestrator/prepare/facts.py",
    "orchestrator/data/digits/train-images-idx3-ubyte",
    "orchestrator/reports/page/index.css",
    "orchestrator/reports/page/index.html.j2",
    "orchestrator/trials/dp-ring.yml",
)

FIND = """
from pathlib import Path
from orchestrator import plugins
from orchestrator.store import shipped
print(shipped.find(Path("inventories/local.yml")))
print(*sorted(plugins.discover().reports))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return next(folder.glob("ccbed-*.whl"))


@pytest.mark.e2e
def test_the_wheel_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    assert set(NEEDED) <= names
    assert not [name for name in names if name.startswith(("tests/", "runs/")) or "__pycache__" in name]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


@pytest.mark.e2e
def test_an_installed_ccbed_finds_its_inventories_and_plugins(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "site")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", FIND]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60, check=True)
    inventory, reports = done.stdout.splitlines()
    assert inventory == str(tmp_path / "site" / "orchestrator" / "_shipped" / "inventories" / "local.yml")
    assert reports.split() == ["collectives", "html", "junit", "metrics", "probes", "summary"]
