"""What ccbed ships is found from any directory, and what the user has comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.store import shipped

LOCAL = Path("inventories/local.yml")


def test_a_shipped_inventory_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = shipped.find(LOCAL)
    assert result.is_absolute()
    assert result.is_file()


def test_the_users_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventories").mkdir()
    (tmp_path / LOCAL).write_text("all: {}\n")
    assert shipped.find(LOCAL) == LOCAL


@pytest.mark.parametrize("name", ["inventories/nowhere.yml", "inventories/../pyproject.toml", "tests/conftest.py", "x"])
def test_nothing_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped.find(Path(name)) == Path(name)
