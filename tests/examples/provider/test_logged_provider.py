"""The provider that logs keeps the contract of all providers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from orchestrator.providers.process.logged_provider import LoggedProvider

from .provider_contract import BEHAVIOURS, Behaviour, Stage
from .test_providers import bed_of, running


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("logged")
    bed = bed_of(directory, "ansible_connection: local", "logged")
    yield from running(Stage(provider=LoggedProvider(directory / "state"), bed=bed))
    assert "node.kill n1" in (directory / "state" / "commands.log").read_text()


@pytest.mark.parametrize("check", BEHAVIOURS.values(), ids=BEHAVIOURS)
def test_the_logged_provider(check: Behaviour, stage: Stage, tmp_path: Path) -> None:
    check(stage.open(), tmp_path)
