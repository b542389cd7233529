"""`run -i INVENTORY --ephemeral`: the bed is created, used and taken down by one command."""

from __future__ import annotations

import pytest

from orchestrator.model.errors import Interrupted
from orchestrator.store import bed_files as store

from .test_cli import Desk, ccbed

__all__ = ["ccbed"]

LINE = ("run", "dp-ring", "-i", "local.yml", "--ephemeral")


@pytest.mark.parametrize("error", [Interrupted("interrupted"), KeyboardInterrupt(), RuntimeError("a defect")])
def test_the_bed_is_taken_down_however_the_run_ends(
    ccbed: Desk, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise error

    monkeypatch.setattr("orchestrator.app.audited.launch", fail)
    assert ccbed(*LINE) != 0
    assert "up in" in ccbed.out and "bed local is down" in ccbed.out
    assert store.names(ccbed.root / "state") == ()


def test_a_bed_that_is_up_stays(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    assert ccbed(*LINE) == 3
    assert "bed local is up; --ephemeral would end it" in ccbed.err
    assert store.names(ccbed.root / "state") == ("local",)


def test_it_is_for_the_bed_of_an_inventory(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    assert ccbed("run", "dp-ring", "--ephemeral") == 3
    assert "--ephemeral is for the bed of an inventory" in ccbed.err
