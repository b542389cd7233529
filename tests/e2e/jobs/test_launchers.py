"""A job's own launcher on real processes: its environment, its exit code, its workers' records, and a node lost under it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.checkers import membership
from orchestrator.model import events, watch
from orchestrator.model.event import History
from orchestrator.model.plugin import NoParams
from orchestrator.model.trial import CheckSpec, FaultPlan, Recovery, Trial, Trigger, World
from orchestrator.store import bundle

from .. import trials
from ..conftest import ROOT, Bed, Ran
from ..stage import Stage

pytestmark = pytest.mark.e2e

#: A worker that trains three steps; its world has itself alone.
TRAINING = """
import os, sys, torch
from torch import nn
print("worker", os.environ["RANK"], "MASTER_ADDR" in os.environ, sys.argv[1:], flush=True)
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
sys.exit(3 * int(os.environ["RANK"]))
"""
#: A launcher whose worker 5 is watched, and whose worker 7 starts without PYTHONPATH.
LAUNCHER = """sh -c 'if [ {rank} = 0 ]; then RANK=0 WORLD_SIZE=2 exec {python} {script} {args}; fi;
exec env -i RANK=1 WORLD_SIZE=2 {python} -I {script} {args}'"""


def test_a_launcher_sets_the_ranks_and_one_that_strips_pythonpath_leaves_no_record(stage: Stage) -> None:
    played = stage.script(TRAINING, launcher=LAUNCHER, args=["a b"])
    assert played.codes == {0: 0, 1: 3}, "the launcher's exit code is that of its node"
    assert "worker 0 False ['a b']" in played.log(0)
    assert "worker 1 False ['a b']" in played.log(1)
    files = [path.name for path in stage.directory.rglob("watch-r*.jsonl")]
    assert [name.split("-")[1] for name in files] == ["r0"]
    steps = [json.loads(line) for line in next(stage.directory.rglob("watch-r0*.jsonl")).read_text().splitlines()]
    assert [line["n"] for line in steps if line["k"] == "step"] == [1, 2, 3]
    assert played.of("progress")[-1]["step"] == 3


#: A launcher that goes on when another node is lost, and leaves once the node has been replaced.
PATIENT = """
import os, pathlib, sys, time
slot, directory = sys.argv[1], pathlib.Path(sys.argv[2])
with open(directory / f"{slot}.started", "a") as out:
    out.write(f"{os.getpid()}\\n")
while len((directory / "2.started").read_text().split() if (directory / "2.started").exists() else []) < 2:
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def replaced(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    directory = tmp_path_factory.mktemp("launched")
    script = directory / "job.py"
    script.write_text(PATIENT)
    params = {
        "file": str(script), "cwd": str(directory), "launcher": "{python} {script} {rank} {args}", "args": (str(directory),),
    }  # fmt: skip
    trial = Trial(
        name="launched", workload="script", params=params, faults=(trials.crash(2, after_s=10.0),), world=World(nodes=4),
        recovery=Recovery(policy=("theirs",)), checks=(CheckSpec(name="planned-faults-only"),),
    )  # fmt: skip
    return bed.run(trial, twin=False), directory


def test_a_lost_node_is_replaced_and_the_launchers_on_the_others_go_on(replaced: tuple[Ran, Path]) -> None:
    ran, directory = replaced
    starts = {slot: (directory / f"{slot}.started").read_text().split() for slot in range(4)}
    assert [len(pids) for pids in starts.values()] == [1, 1, 2, 1], "only the lost node's launcher was started again"
    assert len(ran.of("recovery.replaced")) == 1 and not ran.of("recovery.decided")
    stops = [event for event in ran.of("gang.stop") if event.type == "invoke"]
    ends = [event.seq for event in ran.of("rank.exit")]
    assert all(stop.seq > max(ends) for stop in stops), "ranks were stopped only after they had left"
    assert {event.epoch for event in ran.of("gang.start")} == {0}


def test_the_history_replays_and_every_general_verdict_passes(replaced: tuple[Ran, Path]) -> None:
    ran, _ = replaced
    general = (
        "bundle-complete",
        "evidence-agrees",
        "fault-verified",
        "finished",
        "history-replays",
        "membership",
        "no-orphans",
    )
    assert {check: ran.outcome(check) for check in general} == dict.fromkeys(general, "pass")


def test_what_the_job_resumed_from_is_unknown_without_records(replaced: tuple[Ran, Path]) -> None:
    ran, _ = replaced
    judged = {verdict.check: verdict for verdict in bundle.load(ran.directory).verdicts}
    assert judged["resumed-from"].outcome == "unknown"
    assert "no rank has a record of its training" in judged["resumed-from"].text


def test_a_second_start_without_a_replacement_fails(replaced: tuple[Ran, Path]) -> None:
    """Negative control: the same history, but for the event that says why group rank 2 was started twice."""
    run = replaced[0].run
    kept = tuple(event for event in run.history.events if event.f != "recovery.replaced")
    verdict = membership.check(replace(run, history=History(kept)), NoParams())
    assert verdict.outcome == "fail"
    assert "rank 2 of 4 was assigned 2 times" in str(verdict.evidence)


#: Steps of both starts together: far more than the first one makes until an order to hold its ranks has come.
STOP = 300
#: A launcher as torchrun: it starts the workers of a node, and all of them again when one fails.
RESTARTING = """
import os, socket, subprocess, sys, time
count, script, *args = int(sys.argv[1]), *sys.argv[2:]
for restart in range(3):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common["TORCHELASTIC_RESTART_COUNT"] = str(restart)
    ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    workers = [subprocess.Popen([sys.executable, script, *args], env=own) for own in ranks]
    while all(worker.poll() is None for worker in workers):
        time.sleep(0.02)
    if not any(worker.poll() for worker in workers):  # one left with 0: so do the others
        sys.exit(max(worker.wait() for worker in workers))
    for worker in workers:
        worker.kill()
        worker.wait()
sys.exit(1)
"""


@pytest.fixture(scope="module")
def restarted(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Two workers on one node under a launcher that restarts them; the second one is killed after two checkpoints."""
    directory = tmp_path_factory.mktemp("restarted")
    job = shutil.copytree(ROOT / "orchestrator/jobs/examples", directory / "job")
    (directory / "launch.py").write_text(RESTARTING)
    args = ("--steps", "1000", "--save-every", "3", "--checkpoint", str(directory / "c.pt"))
    params = {
        "file": str(job / "gpt_ddp.py"), "cwd": str(job), "args": args, "nproc": 2, "stop_at": f"step={STOP}",
        "launcher": f"{{python}} {directory}/launch.py {{nproc}} {{script}} {{args}}",
    }  # fmt: skip
    at = Trigger(phase="backward", after_save=2, steps_later=3)
    fault = FaultPlan(id="f0", fault="crash-rank", node=0, at=at, params={"local_rank": 1})
    trial = Trial(
        name="restarted", workload="script", params=params, faults=(fault,), world=World(nodes=1),
        recovery=Recovery(policy=("theirs",)), checks=tuple(CheckSpec(name=name) for name in ("resumed-from", "no-step-lost")),
    )  # fmt: skip
    return bed.run(trial, twin=False)


def test_a_fault_holds_and_kills_the_workers_of_a_launcher(restarted: Ran) -> None:
    (held,) = restarted.run.history.of(events.RankHeld)
    assert (held.data.rank, held.data.phase) == (0, "backward")
    assert (held.data.step or 0) >= 9
    inside = restarted.run.history.of(events.RankInside)
    assert {event.data.rank for event in inside} <= {1}, (
        "only the other worker waits for the held one, if it is there in time"
    )
    (injected,) = restarted.run.history.of(events.FaultInjected)
    pids = {file.pid for file in restarted.run.files.watch() if file.rank == 1}
    assert set(dict(injected.data.evidence or {})["signalled"]) < pids, "the worker of local rank 1, not its launcher"
    assert restarted.outcome("fault-verified") == "pass", restarted.bad()


def test_the_planned_stop_counts_the_steps_of_both_starts(restarted: Ran) -> None:
    stops = restarted.run.history.of(events.RunStopped)
    assert [(stop.data.steps or 0) >= STOP for stop in stops] == [True], restarted.bad()
    starts = [file for file in restarted.run.files.watch() if file.rank == 0]
    assert len(starts) == 2
    assert len(starts[0].of(watch.Step)) < STOP, "the first start alone had fewer steps"
    assert (restarted.outcome("finished"), restarted.outcome("resumed-from")) == ("pass", "pass"), restarted.bad()
    (held,) = restarted.run.history.of(events.RankHeld)
    newest = ((held.data.step or 0) - 1) // 3 * 3  # the checkpoint after the ninth step may precede the hold
    assert f"step {newest} on" in restarted.verdict("resumed-from").text
