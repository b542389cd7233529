"""The engine that builds the lab's image: one that answers is used, else one runs for as long as a command takes."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ..lab import own_engine


class Client:
    def close(self) -> None: ...


def test_an_engine_that_answers_is_used_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_engine, "_client", Client)
    monkeypatch.setattr(own_engine, "_start", lambda folder: pytest.fail("one is there already"))
    assert own_engine.main([sys.executable, "-c", "raise SystemExit(7)"]) == 7


def test_one_that_is_started_ends_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    messages: list[str] = []

    def start(folder: Path) -> tuple[Any, Client]:
        messages.append("start")
        return SimpleNamespace(pid=os.getpid()), Client()

    monkeypatch.setattr(own_engine, "_client", lambda: None)
    monkeypatch.setattr(own_engine, "_start", start)
    monkeypatch.setattr(own_engine, "_stop", lambda process: messages.append("stop"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert own_engine.main([sys.executable, "-c", ""]) == 0
    assert messages == ["start", "stop"]


@pytest.mark.parametrize(("user", "expected"), [(1000, "only root can start one"), (0, "there is no dockerd; next: ")])
def test_what_keeps_one_from_being_started_is_said(
    user: int, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_engine, "_client", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert own_engine.main(["true"]) == 3
    assert expected in capsys.readouterr().err


def test_the_lab_is_brought_up_with_one() -> None:
    text = (Path(__file__).parents[2] / "Makefile").read_text()
    recipe = text.partition("\nlab-up:")[2].partition("\n\n")[0]
    assert "tests/lab/own_engine.py" in recipe.partition("image build")[0]
