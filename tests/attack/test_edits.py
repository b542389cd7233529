"""Evidence that was edited and sealed again is noticed: 500 edits over all classes of files, 96 % at least.

A sample of them may miss that by three standard deviations: which edits are drawn depends on what a run happened to record.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.core.verdict import judge
from orchestrator.model.plugin import Catalogue
from orchestrator.store import bundle, paths, seal

from ..e2e import trials
from ..e2e.conftest import Bed, bed
from . import forgery, scale

__all__ = ["bed"]
pytestmark = [pytest.mark.attack, pytest.mark.e2e, pytest.mark.timeout(3600)]

EDITS = 500
NOTICED = 0.96
#: Why an edit that was carried through all its places cannot be noticed without a signature.
REASONS = {
    "chunks": "a rank that was killed or stopped states no SHA-256, only gather does",
    "systems": "a node that was lost states no SHA-256 afterwards, only gather does",
    "keeper events": "the keeper's file, the history and gather say the same; bundle verify --bed-key notices it",
    "trial": "a limit that decided nothing",
}


@dataclass(frozen=True, kw_only=True)
class Bundles:
    """Two sealed runs of one trial: the one that is edited, and one whose files are put in its place."""

    edited: Path
    other: Path


@pytest.fixture(scope="session")
def bundles(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    root = tmp_path_factory.mktemp("edits")
    made = {}
    for name, seed in (("edited", 7), ("other", 8)):
        ran = bed.run(trials.dp(trials.crash(2), seed=seed), inputs={"e2e.yml": b"trial: e2e\nparams:\n  batch: 64\n"})
        assert ran.bad() == []
        made[name] = shutil.copytree(ran.directory, root / name, ignore=shutil.ignore_patterns("report"))
    return Bundles(edited=made["edited"], other=made["other"])


def is_noticed(directory: Path, catalogue: Catalogue) -> bool:
    """Whether the bundle, whose seal holds, is rejected or has a verdict that is no pass."""
    assert seal.verify_evidence(directory) == ()
    try:
        run = bundle.load(directory, judged=False)
        checks = judge.listed(run, bundle.planned_checks(run) or ())
        return any(verdict.outcome in ("fail", "unknown") for verdict in judge.judge(run, catalogue, checks))
    except paths.TornBundleError:
        return True


def restore(directory: Path, pristine: Mapping[str, bytes]) -> None:
    """Put back what an edit has changed."""
    for path in paths.walk(directory):
        if path not in pristine:
            (directory / path).unlink()
    for path, content in pristine.items():
        file = directory / path
        if not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)


def test_a_bundle_that_was_sealed_again_without_an_edit_passes(bed: Bed, bundles: Bundles, tmp_path: Path) -> None:
    copy = shutil.copytree(bundles.edited, tmp_path / "run")
    seal.seal(copy)
    assert not is_noticed(copy, bed.catalogue)


def test_edits_that_were_sealed_again_are_noticed(
    bed: Bed, bundles: Bundles, tmp_path: Path, tally: Callable[[str], None]
) -> None:
    dice = scale.generator("edits")
    made: list[tuple[forgery.Edit, bool]] = []
    copy = shutil.copytree(bundles.edited, tmp_path / "run")
    pristine = {path: (copy / path).read_bytes() for path in paths.walk(copy)}
    while len(made) < scale.count(EDITS):
        family, kind = dice.choice(list(forgery.CLASSES)), dice.choice(forgery.KINDS)
        edit = forgery.Edit(family=family, kind=kind, level=dice.choice(forgery.LEVELS))
        try:
            forgery.forge(copy, bundles.other, edit, dice)
            made.append((edit, is_noticed(copy, bed.catalogue)))
        except forgery.NoSuchEditError:
            pass
        restore(copy, pristine)
    _report(made, tally)
    unnoticed = [edit for edit, noticed in made if not noticed]
    error = 3 * math.sqrt(NOTICED * (1 - NOTICED) * len(made)) if len(made) < EDITS else 0
    assert len(unnoticed) <= (1 - NOTICED) * len(made) + error, unnoticed


def _report(made: list[tuple[forgery.Edit, bool]], tally: Callable[[str], None]) -> None:
    total = Counter((edit.family, edit.kind) for edit, _ in made)
    noticed = Counter((edit.family, edit.kind) for edit, is_noticed in made if is_noticed)
    tally(f"{len(made)} edits of bundles: {noticed.total()} noticed")
    tally(f"{'':<16}" + "".join(f"{kind:>10}" for kind in forgery.KINDS))
    for family in forgery.CLASSES:
        cells = (f"{noticed[family, kind]}/{total[family, kind]}" for kind in forgery.KINDS)
        tally(f"{family:<16}" + "".join(f"{cell:>10}" for cell in cells))
    for edit, is_noticed in made:
        if not is_noticed:
            reason = REASONS.get(edit.family, "all places that have it were edited alike, gather's SHA-256 included")
            tally(f"not noticed: level {edit.level} {edit.kind} {edit.what} ({reason})")
