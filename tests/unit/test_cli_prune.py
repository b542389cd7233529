"""`prune`, what `up` and `status` say of leftovers, and what an `up` that fails leaves."""

from __future__ import annotations

import json

from orchestrator.model.errors import InfrastructureError
from orchestrator.store import bed_files as store

from .nightly.run_archive import Archive
from .test_cli import Desk, ccbed

__all__ = ["ccbed"]


LEFT = {"kind": "run", "name": "r1", "size_bytes": 3 * 1024**3, "age_s": 8 * 86_400.0}


def test_prune_removes_what_is_old_and_a_dry_run_only_says_so(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    ccbed.bed.left = [LEFT, {**LEFT, "name": "r2", "age_s": 60.0}]
    assert ccbed("status") == 0
    assert "leftovers 2 of ended runs, 6 GiB     see: ccbed prune --dry-run" in ccbed.out
    assert ccbed("prune", "--dry-run") == 0
    assert "1 leftovers, 3 GiB, would be removed; 1, 3 GiB, kept" in ccbed.out
    rows = [line.split() for line in ccbed.out.splitlines() if line.startswith("  run ")]
    assert [(row[1], " ".join(row[7:])) for row in rows] == [("r1", "older than 7 d"), ("r2", "kept")]
    assert "remove run r1" not in ccbed.bed.commands
    assert ccbed("prune", "local", "--json") == 0
    assert [entry["leftover"]["name"] for entry in json.loads(ccbed.out)["removed"]] == ["r1"]
    assert "remove run r1" in ccbed.bed.commands and "remove run r2" not in ccbed.bed.commands
    assert ccbed("prune", "--older-than", "soon") == 3
    assert ccbed("prune", "nowhere") == 3


def test_prune_leaves_what_an_open_run_needs(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    workdir = ccbed.root / "state/beds/local"
    store.begin_run(workdir, "r1", ccbed.root / "runs/r1")
    ccbed.bed.left = [LEFT, {**LEFT, "kind": "payload", "name": "p"}, {**LEFT, "name": "r0"}]
    assert ccbed("prune", "--older-than", "0s") == 0
    assert [command for command in ccbed.bed.commands if command.startswith("remove")] == ["remove run r0"]
    with store.run_lock(workdir, "r1", ccbed.root / "runs/r1"):
        ccbed.bed.left = [{**LEFT, "name": "r00"}]
        assert ccbed("prune") == 4
    assert "bed local is left as it is" in ccbed.err
    assert "remove run r00" not in ccbed.bed.commands


def test_up_prunes_by_the_stated_limits(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    ccbed.bed.left = [LEFT]
    ccbed("up", "local.yml")
    assert "pruned 1 leftovers of ended runs, 3 GiB" in ccbed.out
    assert "remove run r1" in ccbed.bed.commands


def test_the_leftovers_of_many_runs_are_pruned_and_no_bundle_is(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    ccbed.bed.left = [
        {**LEFT, "name": f"r{number:03}", "age_s": float(number), "size_bytes": 1} for number in range(200)
    ]
    archive = Archive(ccbed.root / "runs")
    bundles = [archive.run() for _ in range(12)]
    assert ccbed("prune", "--runs") == 0
    assert len([line for line in ccbed.bed.commands if line.startswith("remove run")]) == 190
    assert all(directory.exists() for directory in bundles)


def test_prune_keeps_the_newest_runs_by_their_number_and_those_that_a_person_named(ccbed: Desk) -> None:
    archive = Archive(ccbed.root / "runs")
    bundles = [archive.run() for _ in range(5)]
    named = bundles[0].rename(bundles[0].with_name("before-the-upgrade"))
    (ccbed.root / "ccbed.toml").write_text("[prune]\nkeep = 2\n")
    assert ccbed("prune") == 0
    assert all(directory.exists() for directory in bundles[1:]), "without --runs"
    assert ccbed("prune", "--runs", "--dry-run") == 0
    assert ccbed.out.count(": not of the newest 2") == 2
    assert ccbed("prune", "--runs") == 0
    assert [directory.exists() for directory in bundles[1:]] == [False, False, True, True]
    assert named.exists()


def test_an_up_that_fails_says_what_is_left_running_and_how_to_remove_it(ccbed: Desk) -> None:
    ccbed.bed.broken = ("n1",)
    assert ccbed("up", "local.yml") == 4
    assert "left running: the host agent, nodes n0 n2 n3" in ccbed.err
    assert "to remove it: ccbed down local" in ccbed.err
    assert ccbed("down", "local") == 0
    ccbed.bed.prepare = lambda bed: (_ for _ in ()).throw(InfrastructureError("no host agent"))  # type: ignore[method-assign]
    assert ccbed("up", "local.yml") == 4
    assert "nothing of bed local is left running" in ccbed.err
