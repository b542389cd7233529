"""Who judges a run, then and later: its plugins, its twin, every one of its repetitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.store import bundle

from .. import trials
from ..conftest import Bed

STRICT = '''"""No rank may take more than a step."""

from dataclasses import dataclass

from .. import views

ALWAYS = False
TWIN = False


@dataclass(frozen=True, kw_only=True)
class Params:
    """``most``: steps."""

    most: int = 1


def check(run, params):
    steps = sum(1 for record in run.files.steps())
    wrong = [views.finding(f"{steps} steps")] if steps > params.most else []
    return views.conclude("strict", f"{steps} steps", failures=wrong)
'''
WORKLOAD = '''"""Training, judged by the strict check."""

from .train_dp import *
from .train_dp import check, last_step, run

CHECKS = ("strict",)
'''


def _own(root: Path) -> Path:
    for path, text in {"checkers/strict.py": STRICT, "workloads/strict_dp.py": WORKLOAD}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def _outcomes(text: str) -> dict[str, str]:
    return {verdict["check"]: verdict["outcome"] for verdict in json.loads(text)["verdicts"]}


def _trial(root: Path, **more: Any) -> str:
    file = root / "t.yml"
    document = {"trial": "judged", "workload": "train-dp", "params": {"epochs": 1}, "world": {"nodes": 2}, **more}
    file.write_text(json.dumps(document))
    return str(file)


def test_a_run_that_a_plugin_failed_fails_with_the_plugins_of_its_bundle_and_never_passes_without(
    bed: Bed, tmp_path: Path
) -> None:
    own, runs = str(_own(tmp_path / "own")), str(tmp_path / "runs")
    trial = _trial(tmp_path, workload="strict-dp")
    code, output = bed.ccbed("--plugins", own, "run", trial, "--no-reference", "--runs-dir", runs, "--json")
    assert (code, _outcomes(output)["strict"]) == (1, "fail")
    directory = json.loads(output)["directory"]
    plan = json.loads((Path(directory) / bundle.PLAN).read_text())
    assert plan["workload"]["source"] == "plugins/workloads/strict_dp.py"
    assert {"plugins/workloads/strict_dp.py", "plugins/checkers/strict.py"} < set(plan["inputs"])
    code, output = bed.ccbed("check", directory)
    assert code == 2
    assert "unknown strict" in output and "--plugins inputs/plugins" in output
    assert "checker strict, workload strict-dp (--plugins " in output
    code, output = bed.ccbed("--plugins", f"{directory}/{bundle.PLUGINS}", "check", directory, "--json")
    assert (code, _outcomes(output)["strict"]) == (1, "fail")
    assert bed.ccbed("bundle", "verify", directory)[0] == 0
    second = ("run", f"{directory}/trial.json", "--no-reference", "--runs-dir", runs)
    assert bed.ccbed("--plugins", f"{directory}/{bundle.PLUGINS}", *second)[0] == 1


def test_a_damaged_twin_is_made_again_and_that_is_said(bed: Bed, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    trial = _trial(tmp_path, checks=["bit-exact"], seed=4242)
    assert bed.ccbed("run", trial, "--runs-dir", runs)[0] == 0
    cached = max((bed.state / "twins").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    text = cached.read_text()
    document = json.loads(text)
    document["twin"]["digests"]["1"] = dict.fromkeys(document["twin"]["digests"]["1"], "0" * 64)
    cached.write_text(json.dumps(document))
    code, output = bed.ccbed("run", trial, "--runs-dir", runs)
    assert code == 0, output
    assert "damaged and is run again" in output and cached.name in output
    assert json.loads(cached.read_text())["twin"]["digests"] == json.loads(text)["twin"]["digests"]
    code, output = bed.ccbed("run", trial, "--runs-dir", runs)
    assert code == 0 and " UTC used again: " in output


def test_without_a_twin_what_the_trial_names_is_unknown_and_a_default_is_listed(bed: Bed, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    code, output = bed.ccbed("run", _trial(tmp_path), "--no-reference", "--runs-dir", runs, "--json")
    assert (code, _outcomes(output)["bit-exact"]) == (0, "skipped")
    assert bed.ccbed("check", json.loads(output)["directory"])[0] == 0
    code, output = bed.ccbed(
        "run", _trial(tmp_path, checks=["bit-exact"]), "--no-reference", "--runs-dir", runs, "--json"
    )
    assert (code, _outcomes(output)["bit-exact"], _outcomes(output)["baseline-clean"]) == (2, "unknown", "skipped")
    assert bed.ccbed("check", json.loads(output)["directory"])[0] == 2


def test_repeated_runs_are_one_document_of_what_each_came_to(bed: Bed, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    code, output = bed.ccbed("run", _trial(tmp_path), "--no-reference", "--repeat", "2", "--runs-dir", runs, "--json")
    document = json.loads(output)
    assert (code, document["exit"], [run["exit"] for run in document["runs"]]) == (0, 0, [0, 0])
    assert len({run["directory"] for run in document["runs"]}) == 2
    assert all(len(run["verdicts"]) > len(trials.CHECKS) for run in document["runs"])
