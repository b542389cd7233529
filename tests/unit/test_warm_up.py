"""`run` connects the hosts of its bed while the trial is read, and only where it needs them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from pathlib import Path

import click
import pytest

from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.cli.verbs import run_verb
from orchestrator.model.bed import BedSpec
from orchestrator.model.errors import CcbedError
from orchestrator.store import bed_files as store

from . import beds
from .fake_bed import FakeProvider


class Provider(FakeProvider):
    """It records the beds whose hosts it connects."""

    def warm_up(self, bed: BedSpec) -> None:
        self.commands.append(f"warm_up {bed.name}")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    provider = Provider()
    out = terminal.Terminal(out=io.StringIO(), err=io.StringIO())
    return Session(state=tmp_path, terminal=out, providers={"process": lambda state: provider})


def warmed_up(session: Session, *args: str) -> list[str]:
    """What the provider recorded after `run` with these arguments was parsed; the script need not exist."""
    parent = click.Context(click.Group(), obj=session, auto_envvar_prefix="CCBED")
    with contextlib.suppress(CcbedError, click.ClickException, click.exceptions.Exit):
        run_verb.command.make_context("run", list(args), parent)
    provider = session._opened[0] if session._opened else None
    return provider.commands if isinstance(provider, Provider) else []


def up(session: Session, *names: str) -> None:
    for name in names:
        store.write(session.state, dataclasses.replace(beds.local(), name=name))


@pytest.mark.parametrize("line", ["x.py", "x.py --nodes 2 -- --bed no --help", "--bed=a x.py", "x.py --foo --bed a"])
def test_the_only_bed_is_warmed_up(session: Session, line: str) -> None:
    up(session, "a")
    assert warmed_up(session, *line.split()) == ["warm_up a"]


def test_of_several_beds_the_named_one_is_warmed_up(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    up(session, "a", "b")
    assert warmed_up(session, "x.py") == []
    assert warmed_up(session, "x.py", "--bed", "b") == ["warm_up b"]
    monkeypatch.setenv("CCBED_BED", "a")
    assert warmed_up(session, "x.py") == ["warm_up b", "warm_up a"]


@pytest.mark.parametrize("line", ["x.py --help", "-h", "x.py -i beds.yml", "x.py --inventory=b.yml", "x.py --bed"])
def test_no_host_is_connected_without_need(session: Session, line: str) -> None:
    up(session, "a")
    assert warmed_up(session, *line.split()) == []


def test_an_unreadable_bed_is_reported_later(session: Session) -> None:
    up(session, "a")
    (session.state / "beds" / "a.json").write_text("{torn")
    assert warmed_up(session, "x.py") == []


def test_the_provider_that_was_warmed_up_is_used(session: Session) -> None:
    up(session, "a")
    bed = store.read(session.state, "a")
    assert bed
    warmed_up(session, "x.py")
    assert session.provider(bed) is session._opened[0]
