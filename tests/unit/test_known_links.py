"""The link probe of an earlier run: when it is kept, when a later run gets it, and when it is confirmed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.collectives.rank import link_probe
from orchestrator.model import codec
from orchestrator.model.bed import LinkSpec
from orchestrator.run import known_links
from orchestrator.store import bundle

from . import simulated
from .collectives import collective_runs

HOUR = 3600.0
LINK = LinkSpec(rate=100_000_000, burst=32768)


class Bed:
    """A bed, its plan, and a run on it that has ended."""

    def __init__(self, folder: Path) -> None:
        self.notes: list[str] = []
        self.directory = folder
        (folder / "fingerprint.json").write_text(json.dumps({"torch": "2.13", "code": "abc"}))
        nodes = {f"n{n}": SimpleNamespace(host="h", incarnation=f"n{n}a", leaf=0) for n in range(4)}
        self.plan: Any = SimpleNamespace(
            run="first", slots=tuple(nodes), nodes=nodes, link=LINK, backend="gloo", threads=1
        )
        self.request: Any = SimpleNamespace(
            bed=SimpleNamespace(name="b", hash="1", workdir=str(folder), nodes=()), on_note=self.notes.append,
            trial=SimpleNamespace(faults=(), params={"probe_s": 3.0}, world=SimpleNamespace(nodes=4, ranks_per_node=1)),
        )  # fmt: skip

    @property
    def file(self) -> Path:
        return self.directory / known_links.FILE

    def keep(self) -> None:
        known_links.keep(self.request, self.plan, self.directory)

    def find(self) -> dict[str, Any] | None:
        return known_links.find(self.request, self.plan, self.directory)


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    gang = simulated.Gang(schedules=simulated.ring(4, 4096))
    run = collective_runs.run([collective_runs.Part(operation="all-reduce", algorithm="ring", bytes=4096, gang=gang)])
    monkeypatch.setattr(bundle, "has_ended", lambda directory: True)
    monkeypatch.setattr(bundle, "read_history", lambda directory: run.history)
    monkeypatch.setattr(time, "time", lambda: collective_runs.WALL + HOUR)
    bed = Bed(tmp_path)
    bed.keep()
    return bed


def test_the_next_run_gets_every_direction_and_the_run_that_measured_it(bed: Bed) -> None:
    known = bed.find()
    assert known is not None and known["run"] == "first" and len(known["directions"]) == 12
    part = known_links.of_ranks(known, (2,))
    assert [value["peer"] for value in part["directions"]] == [0, 1, 3] and part["fit"] == known["fit"]


def another_incarnation(bed: Bed) -> None:
    bed.plan.nodes["n1"].incarnation = "n1b"


def another_order(bed: Bed) -> None:
    bed.plan.slots = ("n1", "n0", "n2", "n3")


def another_rate(bed: Bed) -> None:
    bed.plan.link = replace(LINK, rate=99_000_000)


def another_torch(bed: Bed) -> None:
    (bed.directory / "fingerprint.json").write_text(json.dumps({"torch": "2.14", "code": "abc"}))


def another_code(bed: Bed) -> None:
    (bed.directory / "fingerprint.json").write_text(json.dumps({"torch": "2.13", "code": "abd"}))


def more_ranks(bed: Bed) -> None:
    bed.request.trial.world.ranks_per_node = 2


def another_backend(bed: Bed) -> None:
    bed.plan.backend = "nccl"


def another_bed(bed: Bed) -> None:
    bed.request.bed.hash = "2"


def a_fresh_probe(bed: Bed) -> None:
    bed.request.trial.params["fresh_probe"] = True


@pytest.mark.parametrize(
    "change",
    [
        another_incarnation, another_order, another_rate, another_torch, another_code, more_ranks, another_backend, another_bed,
        a_fresh_probe,
    ],
)  # fmt: skip
def test_another_fabric_is_measured(bed: Bed, change: Callable[[Bed], None]) -> None:
    change(bed)
    assert bed.find() is None and not bed.notes


def test_a_probe_of_yesterday_is_not_reused(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, is_reused in ((23 * HOUR, True), (25 * HOUR, False), (-HOUR, False)):
        monkeypatch.setattr(time, "time", lambda age=age: collective_runs.WALL + age)
        assert (bed.find() is not None) == is_reused


def test_a_run_with_faults_removes_it_before_they_act(bed: Bed) -> None:
    bed.request.trial.faults = ("slow-link",)
    assert bed.find() is None and not bed.file.exists()


@pytest.mark.parametrize("damage", [lambda text: text.replace("1", "2"), lambda text: text[:-9], lambda text: "[]"])
def test_a_damaged_file_is_measured_again_and_reported(bed: Bed, damage: Callable[[str], str]) -> None:
    bed.file.write_text(damage(bed.file.read_text()))
    assert bed.find() is None
    (note,) = bed.notes
    assert note.startswith(f"{bed.file}: damaged (") and note.endswith("; the links are measured again")


def test_a_probe_that_was_reused_keeps_its_age(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bed.file.read_bytes()
    history = bundle.read_history(bed.directory)
    fits = [
        replace(event, value={**event.value, "reused_from": "first"} if event.f == "link.fit" else event.value)
        for event in history.events
    ]
    monkeypatch.setattr(bundle, "read_history", lambda directory: replace(history, events=tuple(fits)))
    bed.plan.run = "second"
    bed.keep()
    assert bed.file.read_bytes() == before


def test_a_probe_that_lacks_a_direction_is_not_kept(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    history = bundle.read_history(bed.directory)
    last = max(number for number, event in enumerate(history.events) if event.f == "link.pair")
    fewer = (*history.events[:last], *history.events[last + 1 :])
    monkeypatch.setattr(bundle, "read_history", lambda directory: replace(history, events=fewer))
    bed.file.unlink()
    bed.keep()
    assert not bed.file.exists()


def test_its_checksum_covers_all_that_is_handed_on(bed: Bed) -> None:
    document = json.loads(bed.file.read_bytes())
    assert document["sha256"] == codec.digest(document["links"])


@pytest.mark.parametrize(
    ("factor", "is_confirmed"), [(1.0, True), (1.01, True), (1.03, False), (0.97, False), (1.1, False)]
)
def test_one_train_near_the_interval_confirms_a_direction_and_a_link_that_is_three_percent_slower_is_not_confirmed(
    factor: float, is_confirmed: bool
) -> None:
    interval = (0.998e-7, 1.002e-7)
    assert link_probe.is_confirmed([1.4e-7, factor * 1e-7], interval) == is_confirmed, "a disturbance only delays"
