"""Which tests belong to which circle, and the list of slow ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .. import circles, durations

ROOT = Path(__file__).parents[2]
AXIS = circles.Axis(tests="tests/e2e/test_x.py::test_y", keep=("a",), because="z")


def test_an_axis_leaves_out_all_parameters_but_those_to_keep() -> None:
    assert AXIS.leaves_out("tests/e2e/test_x.py::test_y[b]")
    assert not AXIS.leaves_out("tests/e2e/test_x.py::test_y[a]")
    assert not AXIS.leaves_out("tests/e2e/test_x.py::test_y_too[b]")


def test_an_axis_of_a_file_leaves_it_out_whole() -> None:
    axis = circles.Axis(tests="tests/e2e/test_x.py", because="z")
    assert axis.leaves_out("tests/e2e/test_x.py::test_y") and axis.leaves_out("tests/e2e/test_x.py::test_y[a]")
    assert not axis.leaves_out("tests/e2e/test_x_too.py::test_y")


def test_an_axis_without_tests_and_parameters_that_no_test_has_are_named() -> None:
    assert circles.stale([AXIS], ["tests/e2e/test_x.py::test_y[a]"]) == []
    assert circles.stale([AXIS], ["tests/e2e/test_x.py::test_y[b]"]) == [
        "tests/e2e/test_x.py::test_y: no test has the parameters 'a'"
    ]
    assert circles.stale([AXIS], ["tests/e2e/test_z.py::test_y[a]"]) == ["tests/e2e/test_x.py::test_y: no such test"]


def test_every_file_of_tests_belongs_to_one_part_and_every_part_has_files() -> None:
    files = [str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")]
    assert {circles.part_of(file) for file in files} == set(circles.PARTS)
    named = [place for places in circles.PARTS.values() for place in places]
    assert [place for place in named if not (ROOT / place).exists()] == []


def test_what_is_slow_is_by_its_slowest_test_and_files_by_their_sum() -> None:
    rows = [("a.py::test_b[1]", 0.01, 0.6), ("a.py::test_b[2]", 0.3, 0.6), ("a.py::test_c", 0.02, 0.1)]
    assert durations.summarised(rows) == "1.30 a.py\n0.30 a.py::test_b\n"


SLOW = "def test_it():\n    while __import__('time').process_time() < 2.5: pass\n"


@pytest.mark.slow
def test_a_slow_test_fails_make_check_with_the_marker_to_add_and_with_it_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "unit" / "test_it.py"
    file.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.circles", "-p", "tests.durations",
               "--rootdir", str(tmp_path), "--circle", "check", str(file)]  # fmt: skip
    codes = []
    for marker in ("", "import pytest\npytestmark = pytest.mark.slow\n"):
        file.write_text(marker + SLOW)
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900, check=False)
        codes.append(done.returncode)
        if not marker:
            assert "mark it with @pytest.mark.slow" in done.stdout
    assert codes == [1, 5], "failed; then no test is left"
