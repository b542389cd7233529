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


#: Each file is kept by a module, so that the end of the script's own names does not close it.
UNFLUSHED = """import io, json

class Own(io.TextIOBase):
    def flush(self):
        open("flushed", "w").close()

json.kept = [open("text", "w"), open("bytes", "wb"), Own()]
json.kept[0].write("a")
json.kept[1].write(b"b")
"""
FINISH = "import os; from orchestrator.rank.runtime import program; program.execute({!r}); os._exit(program.finish(5.0, print))"


def _run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    env = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=900, check=False)


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


def test_files_that_are_still_open_are_flushed_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(UNFLUSHED)
    done = _run(tmp_path, "-c", FINISH.format(str(tmp_path / "job.py")))
    assert (done.returncode, done.stderr) == (0, "")
    assert [(tmp_path / name).read_text() for name in ("text", "bytes", "flushed")] == ["a", "b", ""]


@pytest.mark.parametrize("agent", ["pass", "program.omit_finalizers()", "program.omit_finalizers(); register()"])
def test_no_finalizer_of_the_agent_runs_at_the_end_of_a_script(tmp_path: Path, agent: str) -> None:
    (tmp_path / "job.py").write_text("import json, weakref; weakref.finalize(json, print, 'of the script')")
    register = "weakref.finalize(csv, print, 'of the agent')"
    begin = f"import csv, weakref; from orchestrator.rank.runtime import program; register = lambda: {register}"
    done = _run(
        tmp_path, "-c", f"{begin}; register(); {agent}; program.prepare(); {FINISH.format(str(tmp_path / 'job.py'))}"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "of the script\n", "")
