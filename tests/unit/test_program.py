"""A user's program in a warm rank fails with the traceback that Python itself prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "syntax.py": "x = (\n",
    "raises.py": "def load():\n    raise ValueError('no data')\nload()\n",
    "chained.py": "try:\n    {}['a']\nexcept KeyError as error:\n    raise RuntimeError('no key') from error\n",
    "imports.py": "import no_such_module\n",
    "broken/__init__.py": "1 / 0\n",
    "broken/job.py": "",
    "whole/__init__.py": "",
    "whole/raises.py": "raise ValueError('here')\n",
}
RUN = "import sys; from orchestrator.rank.runtime import program; sys.path[0] = '.'; sys.exit(bool(program.execute({!r}, {!r})))"


def _run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    env = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("project")
    for name, text in PROGRAMS.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return directory


@pytest.mark.parametrize("name", ["syntax.py", "raises.py", "chained.py", "imports.py", "missing.py"])
def test_a_script_fails_with_the_traceback_of_python(project: Path, name: str) -> None:
    path = str(project / name)
    ours = _run(project, "-c", RUN.format(path, ""))
    assert ours.returncode == 1
    assert ours.stderr == _run(project, path).stderr != ""


@pytest.mark.parametrize("name", ["no.such", "nosuch", "whole", "whole.raises"])
def test_a_module_fails_with_the_traceback_of_python(project: Path, name: str) -> None:
    ours = _run(project, "-c", RUN.format("", name))
    assert ours.returncode == 1
    expected = _run(project, "-m", name).stderr.splitlines()
    assert ours.stderr.splitlines() == [line for line in expected if "<frozen runpy>" not in line]


def test_a_package_that_fails_shows_its_own_frame(project: Path) -> None:
    ours = _run(project, "-c", RUN.format("", "broken.job"))
    assert ours.returncode == 1
    assert "broken/__init__.py" in ours.stderr and "ZeroDivisionError" in ours.stderr
    assert str(ROOT / "orchestrator") not in ours.stderr
