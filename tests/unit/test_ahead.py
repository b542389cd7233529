"""Hosts are reached as soon as the line tells which: before the verb is loaded, and only where it will ask them."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from orchestrator.cli.inputs import prefetch
from orchestrator.cli.inputs.session import Session
from orchestrator.cli.render import terminal
from orchestrator.model.bed import BedSpec
from orchestrator.store import beds as store

from . import beds
from .fake_bed import FakeProvider


class Provider(FakeProvider):
    """It remembers whose hosts it was told to reach."""

    def warm_up(self, bed: BedSpec) -> None:
        self.told.append(f"ahead {bed.name}")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    provider = Provider()
    out = terminal.Terminal(out=io.StringIO(), err=io.StringIO())
    return Session(state=tmp_path, terminal=out, providers={"process": lambda state: provider})


def reached(session: Session, line: str) -> list[str]:
    prefetch.begin(session, line.split())
    opened = session._opened[0] if session._opened else None
    return opened.told if isinstance(opened, Provider) else []


def up(session: Session, *names: str) -> None:
    for name in names:
        store.write(session.state, dataclasses.replace(beds.local(), name=name))


@pytest.mark.parametrize("line", ["run x.py", "run x.py --nodes 2 -- --bed no --help", "run --bed=one x.py"])
def test_the_only_bed_is_reached(session: Session, line: str) -> None:
    up(session, "one")
    assert reached(session, line) == ["ahead one"]


def test_of_several_the_one_that_is_named(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    up(session, "one", "two")
    assert reached(session, "run x.py") == []
    assert reached(session, "run x.py --bed two") == ["ahead two"]
    monkeypatch.setenv("CCBED_BED", "one")
    assert reached(session, "run x.py") == ["ahead two", "ahead one"]


@pytest.mark.parametrize(
    "line",
    ["run x.py --help", "run -h", "run x.py -i beds.yml", "run x.py --inventory=b.yml", "list", "run x.py --bed"],
)
def test_nobody_is_reached_in_vain(session: Session, line: str) -> None:
    up(session, "one", "two")
    assert reached(session, line) == []


def test_what_is_wrong_with_a_bed_is_told_by_whoever_reads_it(session: Session) -> None:
    up(session, "one")
    (session.state / "beds" / "one.json").write_text("{torn")
    assert reached(session, "run x.py") == []


def test_the_provider_that_has_begun_is_the_one_that_is_used(session: Session) -> None:
    up(session, "one")
    bed = store.read(session.state, "one")
    assert bed
    reached(session, "run x.py")
    begun = session._opened[0]
    session.ahead(bed)
    assert session.provider(bed) is begun
