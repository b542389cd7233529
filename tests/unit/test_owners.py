"""Whose a bed is: an id that outlives the name of a machine, and what people are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.bed import BedStatus, HostStatus
from orchestrator.model.errors import OwnedError, UsageError
from orchestrator.node.files import label
from orchestrator.node.hostlink import host_operations
from orchestrator.node.keeper import keeper_start
from orchestrator.providers import host_problems, owners
from orchestrator.system import plain_files

from . import beds

ANN = "ann@desk:/state/beds/b"


def test_the_id_is_made_once_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    first = owners.identity(tmp_path / "state")
    assert len(first) == 32 and owners.identity(tmp_path / "state") == first
    assert (tmp_path / "state/owner").stat().st_mode & 0o777 == 0o600
    assert owners.identity(tmp_path / "other") != first
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["owner"], "nothing is left beside it"


def test_of_two_that_make_it_at_once_both_have_the_first(tmp_path: Path) -> None:
    first = owners.identity(tmp_path)
    owners._make(tmp_path / owners.FILE)
    assert owners.identity(tmp_path) == first


@pytest.mark.parametrize(
    ("labels", "foreign"),
    [
        ({"owner": "ann@renamed:/state/beds/b", "owner_id": "1"}, False),
        ({"owner": ANN, "owner_id": "2"}, True),
        ({"owner": ANN}, False),
        ({"owner": "ben@desk:/state/beds/b"}, True),
        ({"owner": "ben@desk:/state/beds/b", "owner_id": ""}, True),
        ({}, False),
    ],
)
def test_ids_are_compared_and_texts_where_a_label_has_none(labels: dict[str, Any], foreign: bool) -> None:
    assert label.is_foreign(labels, ANN, "1") is foreign


def test_whoever_is_refused_reads_whose_it_is() -> None:
    bed = beds.local()
    probes = {"h1": {"keeper": {"alive": True, "owner": "ben@desk:/x", "owner_id": "2"}}}
    with pytest.raises(OwnedError, match=r"belongs to ben@desk:/x$"):
        host_problems.refuse_foreign(bed, "1", probes)
    host_problems.refuse_foreign(bed, "2", probes)


@pytest.mark.parametrize(("second", "third"), [("b:1:8", ""), ("", ""), ("c:1:7", "b:2:7")])
def test_hosts_in_places_of_their_own_are_several(second: str, third: str) -> None:
    host_problems.refuse_duplicates(beds.local(), _placed("b:1:7", second, third))


def test_a_host_that_is_another_one_too_is_refused_wherever_it_is_reached() -> None:
    with pytest.raises(UsageError, match=r"^host h3: is the same machine as h1, which has .* already$"):
        host_problems.refuse_duplicates(beds.local(), _placed("b:1:7", "", "b:1:7"))


def _placed(*places: str) -> BedStatus:
    result = (HostStatus(name=f"h{number}", directory_id=place) for number, place in enumerate(places, start=1))
    return BedStatus(name="b", nodes=(), hosts=tuple(result))


def test_a_keeper_of_another_owner_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[tuple[Any, ...]] = []
    monkeypatch.setattr(keeper_start, "ensure_keeper", lambda *given: requested.append(given))
    (tmp_path / "keeper").mkdir()
    plain_files.write_json(tmp_path / "keeper" / label.KEEPER_LABEL, {"owner": ANN, "owner_id": "1"})
    given: dict[str, Any] = {"bed": "b", "archive": "agent-x.pyz", "engine": "", "python": "python3"}
    with pytest.raises(RuntimeError, match=f"bed b belongs to {ANN} here"):
        host_operations.start_keeper(str(tmp_path), owner=ANN, owner_id="2", **given)
    assert not requested
    host_operations.start_keeper(str(tmp_path), owner="ann@renamed:/x", owner_id="1", **given)
    assert requested[0][5][-2:] == ("--owner-id", "1")
