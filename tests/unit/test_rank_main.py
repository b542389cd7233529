"""A rank's first act: none, if its epoch is over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.model.gang import GangSpec
from orchestrator.rank.runtime import rank_main


def test_a_rank_of_an_epoch_that_is_fenced_off_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fence.json").write_text('{"epoch": 1}')
    gang = GangSpec(
        run="r", epoch=0, world_size=1, nodes=1, group_rank=0, ranks=(0,), master_addr="127.0.0.1", master_port=1,
        backend="gloo", timeout_s=1.0, max_restarts=0, workload="not-there", params={}, seed=1, payload="",
        out=str(tmp_path), checkpoints=str(tmp_path), interface="lo",
    )  # fmt: skip
    before, events = dict(os.environ), tmp_path / "events.jsonl"
    assert rank_main.main(gang, 0, events_path=str(events), release_fd=-1, node="n0", incarnation="i") == 1
    assert not events.exists()
    assert dict(os.environ) == before
    assert "these ranks are of an earlier start" in capsys.readouterr().out
