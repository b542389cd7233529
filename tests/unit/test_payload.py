"""What travels with a run: all files of the plugins that a rank may need, none of them loaded here."""

from __future__ import annotations

from pathlib import Path

import orchestrator
from orchestrator import plugins
from orchestrator.store import payload

PACKAGE = Path(orchestrator.__file__).parent


def test_a_workload_that_nobody_asked_for_is_sent_and_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "torn.py").write_text("def (")
    files = payload.collect(PACKAGE, plugins.discover([tmp_path]))
    assert files["orchestrator/workloads/torn.py"] == b"def ("
    assert {
        "orchestrator/workloads/train_dp.py",
        "orchestrator/algorithms/ring.py",
        "orchestrator/rank/runtime/main.py",
    } <= set(files)
