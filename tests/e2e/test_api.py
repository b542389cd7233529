"""The page api.md on a real bed: its program, its tests under pytest, and verdicts that are no pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import api
from orchestrator.node.oslayer import processes

from .conftest import ROOT, Bed

pytest_plugins = ("pytester",)
pytestmark = pytest.mark.e2e

PROGRAM, INI, TESTS = re.findall(r"```\w+\n(.*?)```", (ROOT / "orchestrator" / "api.md").read_text(), re.DOTALL)
SMALL = {"trial": "small", "workload": "train-dp", "params": {"epochs": 1}, "world": {"nodes": 2}}
#: Tests whose trials do not pass, and whose calls are wrong.
BAD = f"""
import pytest
from orchestrator import api

SMALL = {SMALL!r}

def test_fails(ccbed_run):
    ccbed_run({{**SMALL, "checks": [{{"recovered-within": "1ms"}}], "faults": [{{"crash-node": {{"node": 1}}}}]}})

def test_unknown(ccbed_run):
    ccbed_run({{**SMALL, "checks": ["bit-exact"]}}, reference=False)

def test_usage(ccbed_run):
    ccbed_run("dp-rin")

def test_expected(ccbed_run):
    with pytest.raises(api.UnknownError):
        ccbed_run({{**SMALL, "checks": ["bit-exact"]}}, reference=False)
"""


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of its own; nothing of its beds is left at the end."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / "state"
    left = [process.pid for process in processes.scan() if str(tmp_path / "state") in _arguments(process.pid)]
    assert left == []


def _arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def properties(case: ET.Element) -> dict[str, str]:
    return {item.attrib["name"]: item.attrib["value"] for item in case.iter("property")}


def test_the_program_of_the_page_runs_as_it_stands(own_state: Path, tmp_path: Path) -> None:
    without_cli = "import sys\nassert not {'click', 'rich'} & sys.modules.keys()\n"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + without_cli],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"pass Your job survived: node n2 lost at step \d+, back in .*\n", done.stdout)
    assert not list((own_state / "ccbed" / "beds").glob("*.json")), "the bed is taken down"


def test_the_tests_of_the_page_pass_on_two_workers_and_the_bed_ends_with_the_last(
    own_state: Path, pytester: pytest.Pytester
) -> None:
    pytester.makeini(INI.replace("\n", "\nccbed_runs = results\n", 1))
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-n2", "--junit-xml=junit.xml", timeout=900)
    result.assert_outcomes(passed=2)
    cases = list(ET.parse(pytester.path / "junit.xml").iter("testcase"))
    assert {properties(case)["ccbed_exit"] for case in cases} == {"0"}
    assert all(Path(properties(case)["ccbed_page"]).is_relative_to(pytester.path / "results") for case in cases)
    assert not list((own_state / "ccbed" / "beds").glob("*.json"))


def test_what_does_not_pass_fails_its_test_and_a_bed_that_was_up_stays(
    bed: Bed, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(bed.state.parent))
    pytester.makepyfile(BAD)
    result = pytester.runpytest_subprocess(
        "-p", "no:xdist", "-W", "error", "--ccbed-inventory=inventories/local.yml", "--junit-xml=junit.xml", timeout=900
    )
    result.assert_outcomes(passed=1, failed=3)
    cases = {case.attrib["name"]: case for case in ET.parse(pytester.path / "junit.xml").iter("testcase")}
    assert [properties(case).get("ccbed_exit") for case in cases.values()] == ["1", "2", None, "2"]
    errors = {name: "".join(failure.text or "" for failure in case.iter("failure")) for name, case in cases.items()}
    assert re.search(r"FailedError: .*-small-\w+: FAIL: .*recovered-within fails", errors["test_fails"])
    assert properties(cases["test_fails"])["ccbed_page"] in errors["test_fails"]
    assert re.search(
        r"UnknownError: .*-small-\w+: UNKNOWN: Whether your job computed what an undisturbed one does is not known",
        errors["test_unknown"],
    )
    assert "UsageError: no trial dp-rin; did you mean dp-ring?" in errors["test_usage"]
    assert "next: ccbed list trials" in errors["test_usage"]
    assert "pytest_plugin.py" not in "".join(errors.values()), "the trace ends at the line of the test"
    assert "api.py" not in errors["test_fails"] + errors["test_unknown"]
    assert bed.unchanged()


def test_without_an_inventory_the_error_says_how_to_name_one(own_state: Path, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(ccbed_bed): pass")
    result = pytester.runpytest_subprocess("-p", "no:xdist")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*UsageError: ccbed_bed: no inventory is named; name one by --ccbed-inventory FILE*"])


def test_a_project_that_does_not_use_it_loads_none_of_ccbed_but_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_modules():
            assert "ccbed.pytest_plugin" in sys.modules, "the control"
            assert not {"orchestrator", "torch"} & sys.modules.keys()
        """
    )
    pytester.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_a_project_may_have_a_package_named_orchestrator(pytester: pytest.Pytester) -> None:
    pytester.mkpydir("orchestrator")
    pytester.makepyfile(f"import orchestrator\ndef test_own(): assert '{pytester.path}' in orchestrator.__file__")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_project_with_a_package_of_the_same_name_leaves_the_plugin_out(pytester: pytest.Pytester) -> None:
    pytester.mkpydir("ccbed")
    pytester.makepyfile(f"import ccbed\ndef test_own(): assert '{pytester.path}' in ccbed.__file__")
    assert "No module named 'ccbed.pytest_plugin'" in pytester.runpytest_subprocess().stderr.str(), "the control"
    pytester.makeini("[pytest]\naddopts = -p no:ccbed")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_thread_may_run_a_trial(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(bed.state.parent))
    monkeypatch.chdir(tmp_path)
    results: list[api.Result] = []
    thread = threading.Thread(target=lambda: results.append(api.run(SMALL, bed="local", runs="runs")))
    thread.start()
    thread.join()
    assert [(result.outcome, result.bundle.parent) for result in results] == [("pass", tmp_path / "runs")]
    assert results[0].page == results[0].bundle / "report" / "index.html"
    assert os.listdir(tmp_path) == ["runs"]
