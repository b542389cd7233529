"""Nothing is left out in silence: where everything is required, a skip is a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = {
    "a test that skips": "import pytest\n\ndef test_it():\n    pytest.skip('no engine')\n",
    "a module that skips": "import pytest\npytest.importorskip('no_such_module')\n\ndef test_it():\n    pass\n",
    "a mark that skips": "import pytest\n\n@pytest.mark.skip(reason='later')\ndef test_it():\n    pass\n",
}


def run(folder: Path, text: str, required: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder of its own with this project's conftest."""
    (folder / "conftest.py").write_text((Path(__file__).parents[1] / "conftest.py").read_text())
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    env = {**os.environ, "CCBED_TESTS_REQUIRE": required}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, timeout=900, check=False)


@pytest.mark.parametrize("case", SKIPS)
def test_a_skip_fails_where_all_is_required(tmp_path: Path, case: str) -> None:
    done = run(tmp_path, SKIPS[case], "all")
    assert done.returncode not in (0, 5), done.stdout
    assert "CCBED_TESTS_REQUIRE=all, but this was skipped" in done.stdout


def test_a_skip_is_a_skip_elsewhere(tmp_path: Path) -> None:
    assert run(tmp_path, SKIPS["a test that skips"], "").returncode == 0


def test_an_expected_failure_stays_one(tmp_path: Path) -> None:
    text = "import pytest\n\n@pytest.mark.xfail\ndef test_it():\n    raise ValueError\n"
    assert run(tmp_path, text, "all").returncode == 0
