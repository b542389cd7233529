"""A play that is ended at its deadline is late on every host, whatever Ansible reports while it is ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.prepare import playbook_runs

#: As of an Ansible whose workers were ended before it noticed that it is to end itself.
DEAD = {"host": "h1", "task": "look", "res": {"msg": "A worker was found in a dead state"}}
STATS = {"ok": {"h1": 1, "h2": 3}, "failures": {"h1": 1}}


@pytest.mark.parametrize("is_late", [False, True])
def test_what_ansible_reports_while_it_is_ended_is_no_result(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    def play(wanted: Any, folder: Any, options: Any, listener: Any, cancelled: Callable[[], bool]) -> str:
        while is_late and not cancelled():
            time.sleep(0.01)
        listener.handle_event({"event": "runner_on_failed", "event_data": DEAD})
        listener.handle_event({"event": "playbook_on_stats", "event_data": STATS})
        return ""

    steps: list[playbook_runs.Step] = []
    monkeypatch.setattr(playbook_runs, "_runner", play)
    wanted = playbook_runs.PlaybookRun(
        playbook="prepare", inventory="lab.yml", hosts=("h1", "h2"), deadline_s=0.1 if is_late else 600.0
    )
    result = playbook_runs.run(wanted, steps.append)
    failed = {host: step.message for host, step in result.failed.items()}
    if is_late:
        assert (result.done, failed) == ((), dict.fromkeys(("h1", "h2"), "not done after 0 s"))
        assert steps == []
    else:
        assert (result.done, failed) == (("h2",), {"h1": "A worker was found in a dead state"})
