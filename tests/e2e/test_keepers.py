"""A keeper that dies: the run says so, the next `up` starts another one, and nodes that live are adopted, not restarted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.model.event import Event
from orchestrator.node.files import label
from orchestrator.node.oslayer import processes
from orchestrator.store import bed_files

from ..patience import until
from . import trials
from .conftest import ROOT, Bed, ccbed

pytestmark = pytest.mark.e2e

INVENTORY = str(ROOT / "inventories/local.yml")
NODES = ("n0", "n1", "n2", "n3", "n4")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """A bed of its own: what happens to its keeper is no other test's concern."""
    state = tmp_path_factory.mktemp("state") / "ccbed"
    code, output = ccbed(state, "up", INVENTORY)
    assert code == 0, output
    spec = bed_files.read(state, "local")
    assert spec is not None
    yield Bed(state=state, runs=tmp_path_factory.mktemp("runs"), spec=spec, catalogue=plugins.discover(()))
    code, output = ccbed(state, "down", "local", "--force")
    assert code == 0, output


def _agent(bed: Bed, name: str) -> int:
    return int(label.live_label(Path(bed.spec.workdir) / "nodes" / name).get("pid", 0))


def _agents(bed: Bed) -> dict[str, int]:
    return {name: _agent(bed, name) for name in NODES}


def _keeper(bed: Bed) -> int:
    return int(label.live_label(Path(bed.spec.workdir) / "keeper", label.KEEPER_LABEL).get("pid", 0))


def _kill(pid: int) -> None:
    process = processes.find(pid)
    assert process is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not processes.is_alive(process.pid, process.start))


def _at_step(step: int, do: Callable[[], None]) -> Callable[[Event], None]:
    done: list[bool] = []

    def heard(event: Event) -> None:
        if event.f == "progress" and event.value["step"] >= step and not done:
            done.append(True)
            do()

    return heard


SLOW = {"step_min_ms": 100}


def test_a_run_whose_keeper_was_killed_is_no_clean_run_and_up_repairs_the_bed(own: Bed) -> None:
    keeper, agents = _keeper(own), _agents(own)
    ran = own.run(trials.dp(checks=(), params=SLOW), on_event=_at_step(2, lambda: _kill(keeper)))
    assert ran.run.history.events[-1].value["outcome"] == "finished"
    verdict = ran.verdict("planned-faults-only")
    assert verdict.outcome == "fail"
    assert f"(pid {keeper}) ended, which was not planned" in verdict.text
    assert ran.code == 1

    code, output = own.ccbed("up", INVENTORY)
    assert code == 0, output
    assert "a new one adopts it" in output
    assert _agents(own) == agents, "nothing was restarted"
    assert _keeper(own) not in (0, keeper)
    assert own.unchanged()


def test_the_exit_of_an_adopted_node_is_seen_and_recovered_from(own: Bed) -> None:
    _kill(_keeper(own))
    agents = _agents(own)
    assert own.ccbed("up", INVENTORY)[0] == 0
    assert _agents(own) == agents
    ran = own.run(trials.dp(trials.crash(2)))
    assert ran.bad() == []
    (first, *_) = [event for event in ran.of("node.exit") if event.node == "n2"]
    assert first.value["code"] is None, "only the host agent that forked it is told its exit code"
    assert own.unchanged()


def test_a_node_that_died_without_a_keeper_is_restarted_and_the_others_are_adopted(own: Bed) -> None:
    agents = _agents(own)
    _kill(_keeper(own))
    _kill(agents["n3"])
    code, output = own.ccbed("up", INVENTORY)
    assert code == 0, output
    assert "+ n3 " in output
    after = _agents(own)
    assert after.pop("n3") not in (0, agents.pop("n3"))
    assert after == agents


def test_what_an_agent_that_was_killed_by_hand_left_is_counted(own: Bed) -> None:
    """The node was forked by the keeper that lives: it counts at the exit, and nothing of the gang is an orphan."""
    code, output = own.ccbed("down", "local", "--force")
    assert code == 0, output
    assert own.ccbed("up", INVENTORY)[0] == 0
    ran = own.run(trials.dp(checks=(), params=SLOW), on_event=_at_step(2, lambda: _kill(_agent(own, "n1"))))
    (ended,) = [event for event in ran.of("node.ended") if event.node == "n1"]
    assert ended.value["left"] == 0
    assert ran.outcome("no-orphans") == "pass", ran.verdict("no-orphans").text
    assert ran.outcome("planned-faults-only") == "fail"
    assert own.unchanged()


def test_what_an_adopted_agent_that_was_killed_by_hand_left_is_not_known(own: Bed) -> None:
    _kill(_keeper(own))
    assert own.ccbed("up", INVENTORY)[0] == 0
    ran = own.run(trials.dp(checks=(), params=SLOW), on_event=_at_step(2, lambda: _kill(_agent(own, "n1"))))
    (ended,) = [event for event in ran.of("node.ended") if event.node == "n1"]
    assert "left" not in ended.value
    assert ran.outcome("no-orphans") == "unknown"
