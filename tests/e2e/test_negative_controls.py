"""A real bundle that passes, and what becomes of it when one thing about it is wrong: it must not pass any more."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.run import Run
from orchestrator.run.judging import conclude
from orchestrator.store import bundle

from . import trials
from .conftest import ROOT, Bed, Ran, ccbed, with_damage

pytestmark = pytest.mark.e2e
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def good(bed: Bed) -> Ran:
    ran = bed.run(trials.dp(trials.crash(2), checks=(*trials.CHECKS, "spare-warm")))
    assert ran.bad() == []
    return ran


@pytest.fixture
def copy(good: Ran, tmp_path: Path) -> Path:
    shutil.copytree(good.directory, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def _judged(bed: Bed, directory: Path) -> tuple[int, Run]:
    result = conclude(bed.catalogue, directory)
    return result.code, bundle.load(directory)


def _bad(run: Run) -> dict[str, str]:
    return {verdict.check: verdict.outcome for verdict in run.verdicts if verdict.outcome != "pass"}


def _rewrite(directory: Path, change: Callable[[Lines], Lines]) -> None:
    file = directory / bundle.HISTORY
    lines = change([json.loads(line) for line in file.read_text().splitlines()])
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def test_the_copy_itself_passes_and_its_seal_holds(bed: Bed, copy: Path) -> None:
    code, run = _judged(bed, copy)
    assert (code, _bad(run)) == (0, {})
    assert bed.ccbed("bundle", "verify", str(copy))[0] == 0


def test_resume_of_an_ended_run_believes_no_verdict_that_was_edited(bed: Bed, copy: Path) -> None:
    shutil.copytree(copy, named := copy.parent / bundle.load_plan(copy).run)
    verdicts = tuple(replace(verdict, outcome="fail") for verdict in bundle.read_verdicts(named))
    bundle.write_derived(named, verdicts, {})
    code, printed = bed.ccbed("resume", str(named))
    assert (code, "the saved verdict is fail, this one is pass" in printed) == (0, True), printed


def test_a_later_version_with_more_fields_judges_alike(copy: Path, tmp_path: Path) -> None:
    """Fields with a default, of trials, plans and events, are no change of evidence."""
    package = tmp_path / "later" / "orchestrator"
    shutil.copytree(ROOT / "orchestrator", package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, cls in (("trial", "Trial"), ("plan", "Plan"), ("event", "Event"), ("events/ranks", "RankStart")):
        path = package / "model" / f"{file}.py"
        head, opening, body = re.split(rf"(class {cls}\b.*:\n)", path.read_text(), maxsplit=1)
        *_, last = re.finditer(r"^    \w+: .* = .*\n", body.split("\n@", 1)[0], re.MULTILINE)
        body = f"{body[: last.end()]}    later: tuple[str, ...] = ()\n{body[last.end() :]}"
        path.write_text(f"{head}{opening}{body}")
    command = [sys.executable, "-m", "orchestrator.cli", "check", str(copy), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    outcomes = {verdict["check"]: verdict["outcome"] for verdict in json.loads(done.stdout)["verdicts"]}
    assert (done.returncode, {*outcomes.values()}) == (0, {"pass"}), done.stdout


def test_a_bundle_that_calls_itself_format_one_is_judged_by_what_its_history_states(bed: Bed, copy: Path) -> None:
    about = json.loads((copy / bundle.BUNDLE).read_text())
    (copy / bundle.BUNDLE).write_text(json.dumps({**about, "format": 1}))
    assert _bad(_judged(bed, copy)[1])["evidence-agrees"] == "fail"
    added = {"format", "trial", "twin", "plan", "inputs", "documents", "code"}

    def strip(lines: Lines) -> Lines:
        value = {name: item for name, item in lines[0]["value"].items() if name not in added}
        return [{**lines[0], "value": value}, *lines[1:]]

    _rewrite(copy, strip)
    assert _bad(_judged(bed, copy)[1])["evidence-agrees"] == "fail"


def test_any_event_dropped_is_caught(bed: Bed, copy: Path) -> None:
    original = (copy / bundle.HISTORY).read_text()
    for place in range(len(original.splitlines())):
        _rewrite(copy, lambda lines, place=place: _renumbered(lines[:place] + lines[place + 1 :]))  # type: ignore[misc]
        assert _caught(bed, copy), f"line {place + 1} was dropped: {original.splitlines()[place][:120]}"
        (copy / bundle.HISTORY).write_text(original)


def test_any_event_doubled_is_caught(bed: Bed, copy: Path) -> None:
    original = (copy / bundle.HISTORY).read_text()
    for place in range(0, len(original.splitlines()), 3):
        _rewrite(copy, lambda lines, place=place: _renumbered(lines[: place + 1] + lines[place:]))  # type: ignore[misc]
        assert _caught(bed, copy), f"line {place + 1} was doubled"
        (copy / bundle.HISTORY).write_text(original)


def test_two_events_of_one_writer_that_changed_places_are_caught(bed: Bed, copy: Path) -> None:
    original = (copy / bundle.HISTORY).read_text()
    for place in range(0, len(original.splitlines()) - 1, 3):
        _rewrite(copy, lambda lines, place=place: _renumbered(_swapped(lines, place)))  # type: ignore[misc]
        assert _caught(bed, copy), f"line {place + 1} and the next of its writer changed places"
        (copy / bundle.HISTORY).write_text(original)


def test_a_hash_that_differs_from_the_twins_fails(bed: Bed, copy: Path) -> None:
    twin = json.loads((copy / bundle.TWIN).read_text())
    name = next(iter(twin["digests"]["3"]))
    twin["digests"]["3"][name] = "0" * 64
    (copy / bundle.TWIN).write_text(json.dumps(twin))
    assert _bad(_judged(bed, copy)[1])["bit-exact"] == "fail"


def test_a_tensor_that_the_twin_lacks_fails(bed: Bed, copy: Path) -> None:
    twin = json.loads((copy / bundle.TWIN).read_text())
    del twin["digests"]["0"][next(iter(twin["digests"]["0"]))]
    (copy / bundle.TWIN).write_text(json.dumps(twin))
    assert _bad(_judged(bed, copy)[1])["bit-exact"] == "fail"


def test_a_twin_of_another_seed_fails(bed: Bed, copy: Path) -> None:
    other = bed.run(trials.dp(trials.crash(2), seed=8))
    shutil.copy(other.directory / bundle.TWIN, copy / bundle.TWIN)
    assert "bit-exact" in _bad(_judged(bed, copy)[1])


def test_without_the_twin_that_it_began_with_the_run_does_not_pass(bed: Bed, copy: Path) -> None:
    (copy / bundle.TWIN).unlink()
    code, run = _judged(bed, copy)
    assert code == 1
    assert _bad(run)["evidence-agrees"] == "fail"
    assert _bad(run)["bit-exact"] == "unknown"


def test_logs_of_two_nodes_that_were_swapped_are_caught(bed: Bed, copy: Path) -> None:
    ours, theirs = (next((copy / "nodes" / node).glob("i*-e0")) for node in ("n0", "n1"))
    first_log, two = ours / "rank-0.log", theirs / "rank-1.log"
    first, second = first_log.read_text(), two.read_text()
    first_log.write_text(second)
    two.write_text(first)
    assert _bad(_judged(bed, copy)[1])["bundle-complete"] == "fail"


def test_a_file_that_is_gone_is_missed(bed: Bed, copy: Path) -> None:
    next((copy / "nodes" / "n1").glob("i*-e0/steps-r1.jsonl")).unlink()
    assert _caught(bed, copy)


def test_a_checkpoint_earlier_than_the_newest_is_caught(bed: Bed) -> None:
    """The engine is told that the newest checkpoint is not there: it is hidden while the run is recovering."""
    directory: list[Path] = []

    def hide(event: Any) -> None:
        if event.f == "checkpoint.commit" and event.value["name"] == "e0-s10":
            manifest = Path(bed.spec.shared_dir) / directory[-1].name / "checkpoints" / "e0-s10.json"
            manifest.with_suffix(".pt").unlink()
            manifest.unlink()

    ran = bed.run(
        trials.dp(trials.crash(2), params={"step_min_ms": 20}), on_event=hide, on_begin=lambda path: directory.append(Path(path))
    )  # fmt: skip
    assert [event.value["step"] for event in ran.of("resume.chosen")] == [0, 5]
    assert ran.outcome("resumed-newest") == "fail"
    assert ran.code == 1


def test_a_fault_that_does_nothing_is_unknown_never_a_pass(bed: Bed) -> None:
    ran = with_damage(bed).run(trials.dp(replace(trials.crash(2), fault="crash-nothing")))
    assert ran.outcome("fault-verified") == "unknown"
    assert ran.code == 2
    assert not ran.of("node.exit", "fault.verified")


def _renumbered(lines: Lines) -> Lines:
    """As an attentive forger would: places and times fit again."""
    return [{**line, "seq": place} for place, line in enumerate(lines, start=1)]


def _swapped(lines: Lines, place: int) -> Lines:
    """The line and the next one of the same writer change places, if there is one."""
    who = _writer(lines[place])
    later = next((k for k in range(place + 1, len(lines)) if _writer(lines[k]) == who), None)
    if later is None:
        return lines[:place] + lines[place + 1 :]
    lines = list(lines)
    lines[place], lines[later] = lines[later], lines[place]
    return lines


def _writer(line: dict[str, Any]) -> tuple[Any, ...]:
    source = line["source"]
    return (source["writer"], source.get("node"), source.get("incarnation"))


def _caught(bed: Bed, directory: Path) -> bool:
    return bool(_bad(_judged(bed, directory)[1]))


def test_nothing_of_this_needs_the_bed(bed: Bed, copy: Path, tmp_path: Path) -> None:
    """`check` works anywhere: another state directory, no bed."""
    assert ccbed(tmp_path / "elsewhere", "check", str(copy))[0] == 0
    assert not (tmp_path / "elsewhere" / "beds").exists()
