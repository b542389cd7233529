"""Edits that are stated again wherever somebody without a key can: with the bed's key all are noticed, without it those that contradict.

Three runs are edited: a training and a script that lost a node and passed, and a training that failed and is edited to pass.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.core.verdict import judge
from orchestrator.model.trial import CheckSpec
from orchestrator.store import bundle, index, paths, seal, signing

from ..e2e import trials
from ..e2e.conftest import ROOT, Bed, bed
from . import forgery, restatement, scale

__all__ = ["bed"]
pytestmark = [pytest.mark.attack, pytest.mark.e2e, pytest.mark.timeout(3600)]

EDITS = 200
PAGE = ROOT / "orchestrator/store/evidence.md"
#: Kind of evidence -> files below the bundle.
KINDS = {
    **{name: forgery.CLASSES[name] for name in ("trial", "plan", "fingerprint", "bundle", "inputs", "history")},
    "reference runs": "twin.json",
    "checks of the plan": "plan.json",
    "events of agents": "nodes/*/agent.*.jsonl",
    "events of ranks": "nodes/*/rank-*.jsonl",
    "events of keepers": "keepers/**/*.jsonl",
    "steps": "nodes/*/*/steps-r*.jsonl",
    "chunks": "nodes/*/*/chunks-r*.bin",
    "watcher's records": "nodes/*/*/watch-r*.jsonl",
    "environments": "nodes/*/*/env-r*.json",
    "systems": "nodes/*/system.json",
    "logs of ranks": "nodes/*/*/rank-*.log",
}
#: The names of forgery.py for the same files.
_CLASSES = {
    "reference runs": "twin",
    "events of agents": "agent events",
    "events of ranks": "rank events",
    "events of keepers": "keeper events",
}
#: What a forger does to a run that failed, so that it passes.
COVER_UPS = ("limit in trial and plan", "limit in the plan", "check left out", "check skipped", "detected earlier")


@dataclass(frozen=True, kw_only=True)
class Base:
    """A run that is edited, with its content by path. ``passed``: before the edit."""

    name: str
    directory: Path
    key: Path
    passed: bool
    pristine: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Made:
    """An edit; ``passes``: the edited run is judged to pass without the key."""

    base: Base
    kind: str
    what: str
    passes: bool
    is_signed: bool


@pytest.fixture(scope="module")
def bases(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Base, ...]:
    root, key = tmp_path_factory.mktemp("consistent"), Path(bed.spec.workdir) / "keeper/events.key"
    training = bed.run(trials.dp(trials.crash(2), seed=17))
    assert training.bad() == []
    trial = trials.dp(trials.crash(2), seed=17, checks=())
    late = bed.run(replace(trial, checks=(CheckSpec(name="detected-within", params={"seconds": 1e-6}),)))
    assert [text.split(":")[0] for text in late.bad()] == ["fail detected-within"]
    for name in ("gpt_ddp.py", "gpt.py", "text.txt"):
        shutil.copy(ROOT / "orchestrator/jobs/examples" / name, root / name)
    options = ("--fail-node", "2", "--runs-dir", str(root / "runs"), "--", "--checkpoint", "{out}/c.pt")
    code, output = bed.ccbed("run", str(root / "gpt_ddp.py"), *options)
    assert code == 0, output
    script = index.resolve("latest", root / "runs")
    made = (("training", training.directory, True), ("script", script, True), ("failed", late.directory, False))
    return tuple(_base(name, directory, root / name, key, passed) for name, directory, passed in made)


def _base(name: str, source: Path, target: Path, key: Path, passed: bool) -> Base:
    left_out = shutil.ignore_patterns("report", "work", "out")
    shutil.copytree(source, target, ignore=left_out)
    assert signing.unsigned(target, [key]) == ()
    pristine = {path: (target / path).read_bytes() for path in paths.walk(target)}
    return Base(name=name, directory=target, key=key, passed=passed, pristine=pristine)


def passes(bed: Bed, directory: Path) -> bool:
    """Whether the bundle, whose seal holds, is judged to pass."""
    assert seal.verify_evidence(directory) == ()
    try:
        run = bundle.load(directory, judged=False)
        verdicts = judge.judge(run, bed.catalogue, judge.listed(run, bundle.planned_checks(run) or ()))
    except paths.TornBundleError:
        return False
    return all(verdict.outcome in ("pass", "skipped") for verdict in verdicts)


def edit(base: Base, kind: str, dice: random.Random) -> str:
    """Edit the bundle and state everything again. Raises NoSuchEditError."""
    directory = base.directory
    if kind in COVER_UPS:
        what = _cover_up(directory, kind, dice)
    elif kind == "checks of the plan":
        what = _edit_checks(directory, dice)
    elif kind == "watcher's records":
        what = _edit_records(_draw(directory, kind, dice), dice)
    elif kind == "logs of ranks":
        what = _edit_log(_draw(directory, kind, dice), dice)
    else:
        made = forgery.Edit(family=_CLASSES.get(kind, kind), kind=dice.choice(forgery.KINDS), level=2)
        path = _draw(directory, kind, dice)
        forger = forgery.Forger(directory=directory, other=directory / "none", path=path, edit=made, dice=dice)
        what = f"{path.relative_to(directory)}: {made.kind}: {forger.change()}"
    try:
        restatement.restate(directory, dice)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):  # what is no history any more is only sealed
        seal.seal(directory)
    content = {path: (directory / path).read_bytes() for path in paths.walk(directory)}
    evidence = [path for path in content if path in base.pristine and not path.startswith(("manifest", "verdicts"))]
    if len(content) == len(base.pristine) and all(content[path] == base.pristine[path] for path in evidence):
        raise forgery.NoSuchEditError("nothing changed")
    return what


def _draw(directory: Path, kind: str, dice: random.Random) -> Path:
    files = sorted(path for path in directory.glob(KINDS[kind]) if path.is_file() and path.stat().st_size)
    if not files:
        raise forgery.NoSuchEditError(kind)
    return dice.choice(files)


def _edit_checks(directory: Path, dice: random.Random) -> str:
    plan = json.loads((directory / "plan.json").read_bytes())
    check = dice.choice(plan["checks"])
    how = dice.choice(("left out", "skipped", "other parameters"))
    if how == "left out":
        plan["checks"].remove(check)
    elif how == "skipped":
        check["skipped"] = "not checked: the run has no reference run to compare with (--no-reference): --reference"
    else:
        check["params"] = {**check["params"], "seconds": 999.0}
    (directory / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")
    return f"{check['name']} {how}"


def _edit_records(path: Path, dice: random.Random) -> str:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    place = dice.randrange(len(lines))
    kind = dice.choice(forgery.KINDS)
    if kind == "alter":
        forger = forgery.Forger(
            directory=path.parent, other=path.parent, path=path, dice=dice,
            edit=forgery.Edit(family="steps", kind="alter", level=1),
        )  # fmt: skip
        what = f"{lines[place]['k']}: {forger._edit_document(lines[place])}"
    else:
        what = f"{lines[place]['k']}: {forgery._structural_at(lines, kind, place, dice, lambda line: True)}"
    path.write_text(restatement.chained(lines))
    return f"{path.name}: {what}"


def _edit_log(path: Path, dice: random.Random) -> str:
    lines = path.read_text(errors="replace").splitlines(keepends=True)
    place = dice.randrange(len(lines))
    lines[place] = re.sub(r"\d+", lambda match: str(int(match[0]) + 1), lines[place]) + "x\n"
    path.write_text("".join(lines))
    return f"{path.name}: line {place + 1}"


def _cover_up(directory: Path, kind: str, dice: random.Random) -> str:
    """Make a failed detected-within pass."""
    trial, plan = (json.loads((directory / name).read_bytes()) for name in ("trial.json", "plan.json"))
    (check,) = (check for check in plan["checks"] if check["name"] == "detected-within")
    if kind == "limit in trial and plan":
        trial["checks"] = [{"name": "detected-within", "params": {"seconds": 99.0}}]
        check["params"] = {"seconds": 99.0}
    elif kind == "limit in the plan":
        check["params"] = {"seconds": 99.0}
    elif kind == "check left out":
        trial["checks"] = []
        plan["checks"].remove(check)
    elif kind == "check skipped":
        check["skipped"] = "not checked"
    else:
        _detect_earlier(directory)
    for name, document in (("trial.json", trial), ("plan.json", plan)):
        (directory / name).write_text(json.dumps(document, indent=1) + "\n")
    return kind


def _detect_earlier(directory: Path) -> None:
    """The first event after the injection gets its time, in the history and in the file of its writer."""
    lines = forgery._read(directory / "history.jsonl")
    fault = next(line for line in lines if line["f"] == "fault.injected")
    own = next(line for line in lines if line["f"] in ("node.exit", "rank.exit") and line["seq"] > fault["seq"])
    identity = restatement._identity(own)
    for file in (directory / "history.jsonl", *restatement._event_files(directory)):
        changed = forgery._read(file)
        for line in changed:
            if restatement._identity(line) == identity:
                line["at"] = fault["at"]
        restatement._write(file, changed)


def restore(base: Base) -> None:
    for path in paths.walk(base.directory):
        if path not in base.pristine:
            (base.directory / path).unlink()
    for path, content in base.pristine.items():
        file = base.directory / path
        if not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)


def test_runs_that_are_only_stated_again_keep_their_verdict(bed: Bed, bases: tuple[Base, ...]) -> None:
    for base in bases:
        restatement.restate(base.directory, random.Random(1))
        assert passes(bed, base.directory) == base.passed, base.name
        restore(base)


def test_edits_that_are_stated_again_everywhere_are_noticed_with_the_key(
    bed: Bed, bases: tuple[Base, ...], tally: Callable[[str], None]
) -> None:
    dice, made = scale.generator("consistent"), list[Made]()
    while len(made) < scale.count(EDITS):
        base = dice.choice(bases)
        is_cover_up = not base.passed and dice.random() < 0.4
        kind = dice.choice(COVER_UPS if is_cover_up else list(KINDS))
        try:
            what = edit(base, kind, dice)
            is_signed = signing.unsigned(base.directory, [base.key]) == ()
            passing = passes(bed, base.directory)
            made.append(Made(base=base, kind=kind, what=what, passes=passing, is_signed=is_signed))
        except forgery.NoSuchEditError:
            pass
        restore(base)
    _report(made, tally)
    assert [(edit.kind, edit.what) for edit in made if edit.is_signed] == [], "the key notices every edit"
    listed = set(re.findall(r"^\| (.+?) \| \d+ \| \d+ \| \S.*\|$", PAGE.read_text(), re.MULTILINE))
    unlisted = {edit.kind for edit in made if edit.passes} - listed
    assert unlisted == set(), "evidence.md lists the kinds of edits that nobody notices without the key"


def _report(made: list[Made], tally: Callable[[str], None]) -> None:
    passed = [edit for edit in made if edit.base.passed]
    unnoticed = [edit for edit in made if edit.passes]
    tally(
        f"{len(made)} edits stated again everywhere: {len(made)} noticed with the key, {len(made) - len(unnoticed)} without"
    )
    turned = [edit for edit in unnoticed if not edit.base.passed]
    tally(f"of {len(made) - len(passed)} edits of a run that failed, {len(turned)} make it pass without the key")
    total, missed = Counter(edit.kind for edit in made), Counter(edit.kind for edit in unnoticed)
    for kind, count in sorted(total.items()):
        tally(f"{kind:<24}{count:>4} edits, {missed[kind]:>3} not noticed without the key")
    for edit in unnoticed:
        tally(f"not noticed: {edit.base.name}, {edit.kind}: {edit.what}")
