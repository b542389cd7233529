"""What ended runs leave is removed by age, then by size; what is in use and what is not ccbed's stays."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.bed import prunable
from orchestrator.core.bed.prunable import Leftover
from orchestrator.node.hostlink import bed_files
from orchestrator.store import controller_leftovers

DAY = 86_400.0
RUN = "2026-11-21T02-00-07Z-dp-ring-3f9c"
OTHER = "2026-11-20T02-00-07Z-dp-ring-aaaa"


def leftover(name: str, days: float, size: int = 10, place: str = "lab", in_use: str = "") -> Leftover:
    return Leftover(kind="run", name=name, location=place, size_bytes=size, age_s=days * DAY, in_use=in_use)


def chosen(*result: Leftover, days: float = 7, keep: int = 100) -> list[str]:
    return [removal.leftover.name for removal in prunable.removals(result, older_than_s=days * DAY, keep_bytes=keep)]


def test_what_is_old_goes_oldest_first_and_what_is_young_stays() -> None:
    assert chosen(leftover("a", 8), leftover("b", 1), leftover("c", 9)) == ["c", "a"]


def test_what_is_too_much_goes_oldest_first_until_it_fits() -> None:
    assert chosen(leftover("a", 3, 60), leftover("b", 2, 60), leftover("c", 1, 60), keep=130) == ["a"]
    assert chosen(leftover("a", 3, 60), leftover("b", 2, 60), place_of_another(), keep=130) == []


def place_of_another() -> Leftover:
    return leftover("c", 1, 60, place="other")


def test_what_is_in_use_stays_whatever_its_age_and_size() -> None:
    assert chosen(leftover("a", 100, 1000, in_use="run a is open"), leftover("b", 1, 10), keep=0) == ["b"]


def test_what_is_minutes_old_stays_for_its_size_unless_a_shorter_age_is_given() -> None:
    young = leftover("a", 60 / DAY, 1000)
    assert chosen(young, keep=0) == []
    assert chosen(young, keep=0, days=0) == ["a"]


def test_the_newest_of_each_kind_stay_whatever_their_age_and_others_are_not_counted() -> None:
    runs = [leftover(f"r{number}", number / DAY) for number in range(4)]
    others = [replace(item, kind="bundle") for item in runs]
    elsewhere = [replace(item, location="other") for item in runs[:2]]
    removals = prunable.removals([*runs, *others, *elsewhere], keep={"run": 2})
    assert [(item.leftover.kind, item.leftover.name, item.reason) for item in removals] == [
        ("run", "r3", "not of the newest 2"), ("run", "r2", "not of the newest 2"),
    ]  # fmt: skip
    held = [replace(runs[3], in_use="it is open"), *runs[:3]]
    assert [item.leftover.name for item in prunable.removals(held, keep={"run": 2})] == ["r2"], (
        "what is in use is no part of it"
    )


def test_every_removal_has_its_reason() -> None:
    removals = prunable.removals(
        [leftover("a", 8), leftover("b", 1, 60)], keep_bytes=5, age=lambda s: f"{s / DAY:g} d", size=lambda n: f"{n} B"
    )
    assert [removal.reason for removal in removals] == ["older than 7 d", "more than 5 B in total"]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for name in (
        f"nodes/n0/runs/{RUN}/i1-e0/rank-0.log", f"nodes/n1/runs/{RUN}/i1-e0/rank-1.log", f"nodes/n0/done/{RUN}.k.json",
        f"keeper/done/{RUN}.k.json", f"shared/{RUN}/checkpoints/a.pt", "shared/of-the-user/file", "shared/data.bin",
        f"nodes/n0/runs/{OTHER}/i1-e0/rank-0.log", "payloads/0123/orchestrator/x.py", "payloads/.4567.tmp/x.py",
        "nodes/n0/exec/ab12/stdout", "nodes/n0/home/.cache/x", "nodes/n0/agent.log", "agent/agent-1.pyz", "agent/agent-2.pyz",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x" * 5000)
    os.utime(tmp_path / "agent/agent-1.pyz", (0, 0))
    return tmp_path


def listed(host: Path) -> dict[tuple[str, str], float]:
    return {
        (entry["kind"], entry["name"]): entry["size_bytes"]
        for entry in bed_files.list_prunable(str(host), str(host / "shared"))
    }


def test_a_host_lists_runs_payloads_outputs_and_archives_of_before(host: Path) -> None:
    entries = listed(host)
    assert set(entries) == {
        ("run", RUN), ("run", OTHER), ("payload", "0123"), ("payload", ".4567.tmp"), ("exec", "ab12"), ("archive", "agent-1.pyz"),
    }  # fmt: skip
    assert entries["run", RUN] >= 5 * 5000
    ages = {entry["name"]: entry["age_s"] for entry in bed_files.list_prunable(str(host), str(host / "shared"))}
    assert ages["agent-1.pyz"] > 1e9
    assert ages[RUN] < 600


def test_a_host_removes_what_it_lists_and_nothing_else(host: Path) -> None:
    entries = [["run", RUN], ["payload", ".4567.tmp"], ["run", "of-the-user"], ["run", "../shared"], ["run", "*"]]
    assert bed_files.remove_prunable(str(host), str(host / "shared"), entries) == 2
    assert set(listed(host)) == {("run", OTHER), ("payload", "0123"), ("exec", "ab12"), ("archive", "agent-1.pyz")}
    rest = {str(path.relative_to(host)) for path in host.rglob("*") if path.is_file()}
    assert not [path for path in rest if RUN in path]
    assert {"shared/of-the-user/file", "shared/data.bin", "nodes/n0/agent.log", "nodes/n0/home/.cache/x"} <= rest


def test_of_a_run_whose_files_were_gathered_checkpoints_and_outcomes_stay(host: Path) -> None:
    bed_files.remove_run(str(host), str(host / "shared"), RUN, is_gathered=True)
    left = [str(path.relative_to(host)) for path in sorted(host.rglob("*")) if path.is_file() and RUN in str(path)]
    assert left == [f"keeper/done/{RUN}.k.json", f"nodes/n0/done/{RUN}.k.json", f"shared/{RUN}/checkpoints/a.pt"]
    assert ("run", RUN) in listed(host)


def test_a_shared_directory_outside_of_the_bed_keeps_what_is_of_other_beds_and_of_the_user(host: Path) -> None:
    shared = host / "elsewhere"
    for name in (RUN, OTHER, "2026-11-19T02-00-07Z-of-another-bed-bbbb", "llama"):
        (shared / name / "checkpoints").mkdir(parents=True)
        (shared / name / "checkpoints/a.pt").write_text("x" * 5000)
    entries = bed_files.list_prunable(str(host), str(shared))
    assert {entry["name"] for entry in entries if entry["kind"] == bed_files.RUN} == {RUN, OTHER}
    assert (
        bed_files.remove_prunable(str(host), str(shared), [[bed_files.RUN, path.name] for path in shared.iterdir()])
        == 2
    )
    assert {path.name for path in shared.iterdir()} == {"2026-11-19T02-00-07Z-of-another-bed-bbbb", "llama"}


def test_a_link_is_removed_and_not_followed(host: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("x")
    (host / "payloads/link").symlink_to(tmp_path / "precious")
    assert bed_files.remove_prunable(str(host), str(host / "shared"), [["payload", "link"]]) == 1
    assert (tmp_path / "precious/file").exists()


def test_a_directory_of_runs_offers_what_never_began_and_bundles_only_when_asked(tmp_path: Path) -> None:
    for name in (RUN, OTHER, "2026-11-19T02-00-07Z-dp-ring-bbbb", ".gather-x-1", "of-the-user"):
        (tmp_path / name).mkdir()
    for name in (RUN, OTHER):
        (tmp_path / name / "trial.json").write_text("{}")

    def offered(*, bundles: bool) -> dict[str, str]:
        result = controller_leftovers.of_runs(tmp_path, 2e9, {OTHER}, bundles=bundles)
        return {local.leftover.name: local.leftover.in_use for local in result}

    assert offered(bundles=False) == {".gather-x-1": "", "2026-11-19T02-00-07Z-dp-ring-bbbb": ""}
    assert offered(bundles=True) == {**offered(bundles=False), RUN: "", OTHER: "open on its bed"}


def test_copies_of_scripts_are_offered_and_their_bundles_stay(tmp_path: Path) -> None:
    for name in (RUN, OTHER, "of-the-user"):
        (tmp_path / name / "work").mkdir(parents=True)
        (tmp_path / name / "work/snapshot.pt").write_text("1")
        (tmp_path / name / "trial.json").write_text("{}")
    (tmp_path / "latest").symlink_to(RUN)
    listed = controller_leftovers.of_runs(tmp_path, 2e9, {OTHER}, bundles=False)
    assert {local.leftover.name: local.leftover.in_use for local in listed} == {
        f"{RUN}/work": "",
        f"{OTHER}/work": "the run is open on its bed",
    }
    assert {local.leftover.kind for local in listed} == {controller_leftovers.WORK}
    free = next(local for local in listed if not local.leftover.in_use)
    controller_leftovers.remove(free)
    assert [path.name for path in (tmp_path / RUN).iterdir()] == ["trial.json"]
    assert all((tmp_path / name / "work" / "snapshot.pt").exists() for name in (OTHER, "of-the-user"))


def test_a_run_that_a_person_named_is_never_removed(tmp_path: Path) -> None:
    for name in (RUN, "before-the-upgrade"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trial.json").write_text("{}")
    offered = {
        item.leftover.name: item.leftover.in_use
        for item in controller_leftovers.of_runs(tmp_path, 2e9, (), bundles=True)
    }
    assert offered == {RUN: "", "before-the-upgrade": controller_leftovers.NAMED}
