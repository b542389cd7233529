"""A bed of containers on this machine's engine: lost nodes, a lost keeper, a lost orchestrator, others' containers, and down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.model.errors import Interrupted
from orchestrator.model.launch import Request
from orchestrator.model.trial import FaultPlan, Trial, World
from orchestrator.node.files import label
from orchestrator.node.oslayer import processes
from orchestrator.providers.docker.docker_provider import DockerProvider
from orchestrator.run import lifecycle
from orchestrator.store import bed_files, bundle
from orchestrator.system import plain_files

from ..patience import until
from . import trials
from .conftest import ROOT, Bed, ccbed, ran
from .test_interrupted import at, ctrl_c

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("own_interrupts")]

NAME = "boxtest"
#: The image's interpreter, by its path.
PYTHON = "/opt/ccbed/bin/python3"
#: All runs have the same run to compare with.
SLOW = {"step_min_ms": 20}


@dataclass(kw_only=True)
class Box(Bed):
    """Two nodes and a spare, each a container."""

    engine: Any
    inventory: Path

    def request(self, trial: Trial, **more: Any) -> Request:
        return super().request(trial, **{"provider": DockerProvider(self.state), **more})

    def unchanged(self) -> bool:
        return "nothing to change" in self.ccbed("up", str(self.inventory))[1]

    def container(self, node: str) -> Any:
        return self.engine.containers.get(f"ccbed-{NAME}-{node}")

    def containers(self) -> dict[str, str]:
        """Name -> id."""
        return {str(container.name): str(container.id) for container in labelled(self.engine, NAME)}

    def state_of(self, node: str) -> dict[str, Any]:
        """What `status` says of a node."""
        output = json.loads(self.ccbed("status", NAME, "--json")[1])
        return dict(next(row for row in output[0]["nodes"] if row["name"] == node))


def labelled(engine: Any, bed: str) -> list[Any]:
    return [container for container in engine.containers.list(all=True) if container.name.startswith(f"ccbed-{bed}-")]


def networks(engine: Any, bed: str) -> list[str]:
    return [network.name for network in engine.networks.list() if network.name == f"ccbed-{bed}"]


def inventory(directory: Path, image: str, name: str, nodes: int = 2, **more: object) -> Path:
    file = directory / f"{name}.yml"
    given = {"provider": "docker", "bed": name, "image": image, "nodes": nodes, "start_timeout": "10m", **more}
    variables = ", ".join(f"ccbed_{field}: {value}" for field, value in given.items())
    file.write_text(f"all: {{hosts: {{localhost: {{ansible_connection: local}}}}, vars: {{{variables}}}}}\n")
    return file


def dp(*faults: FaultPlan, **more: Any) -> Trial:
    return trials.dp(*faults, params=SLOW, world=World(nodes=2), **more)


@pytest.fixture(scope="module")
def box(engine: Any, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    directory = tmp_path_factory.mktemp("box")
    state, file = directory / "state" / "ccbed", inventory(directory, image, NAME, spares=1, python=PYTHON)
    code, output = ccbed(state, "up", str(file))
    assert code == 0, output
    assert f"image {image} · a private network" in output and "torch imported once" not in output
    spec = bed_files.read(state, NAME)
    assert spec is not None
    runs = directory / "runs"
    runs.mkdir()
    yield Box(state=state, runs=runs, spec=spec, catalogue=plugins.discover(()), engine=engine, inventory=file)
    code, output = ccbed(state, "down", NAME, "--force")
    assert code == 0, output
    nothing_is_left(engine, state, NAME)


def nothing_is_left(engine: Any, state: Path, name: str) -> None:
    """No container, network, process or directory."""
    assert labelled(engine, name) == [] and networks(engine, name) == []
    assert [process.pid for process in processes.scan() if process.tag.startswith(f"{name}-")] == []
    assert not (state / "beds" / name).exists() and bed_files.names(state) == ()


# --- the bed ----------------------------------------------------------------------------------------------------------


def test_up_again_changes_nothing(box: Box) -> None:
    before = box.containers()
    assert box.unchanged()
    assert (len(before), box.containers()) == (3, before)


def test_a_node_tells_its_image_and_engine_and_runs_without_rights(box: Box) -> None:
    facts = json.loads((Path(box.spec.workdir) / "nodes/n1/system.json").read_text())
    attrs = box.container("n1").attrs
    assert attrs["Config"]["Entrypoint"][0] == PYTHON
    assert (box.state_of("n1")["torch"], box.state_of("n1")["python"]) == (facts["torch"], facts["python"])
    assert facts["torch"].startswith("2.")
    assert (facts["image"], facts["engine"]) == (attrs["Image"], box.engine.version()["Version"])
    assert attrs["HostConfig"]["CapDrop"] == ["ALL"] and attrs["Config"]["User"].startswith(f"{os.getuid()}:")


def test_exec_and_logs_reach_into_the_container(box: Box) -> None:
    code, output = box.ccbed("exec", f"{NAME}/n1", "--", "sh", "-c", "hostname; exit 3")
    assert (code, output) == (3, "n1\n")
    assert box.ccbed("exec", f"{NAME}/n0", "--", "sh", "-c", "test ! -e /var/run/docker.sock")[0] == 0
    code, _ = box.ccbed("exec", f"{NAME}/n0", "--", "ls", str(Path(box.spec.workdir) / "nodes/n1"))
    assert code != 0, "it sees its own directory only"
    assert box.ccbed("logs", f"{NAME}/n1")[0] == 0
    assert box.ccbed("logs", f"{NAME}/keeper")[0] == 0


def test_a_container_that_somebody_started_again_is_nobodys_node(box: Box) -> None:
    before = box.containers()
    box.container("n0").kill()
    until(lambda: box.state_of("n0")["state"] == "dead")
    box.container("n0").start()
    state = box.state_of("n0")
    assert (state["state"], "started again by hand" in state["reason"]) == ("dead", True)
    repaired(box, before, "n0")


def test_a_container_that_somebody_removed_is_made_again(box: Box) -> None:
    before = box.containers()
    box.container("n1").remove(force=True)
    repaired(box, before, "n1")


def test_after_the_keeper_was_killed_up_starts_one_and_keeps_all_containers(box: Box) -> None:
    before, keeper = box.containers(), Path(box.spec.workdir) / "keeper"
    killed = int(plain_files.read_json(keeper / label.KEEPER_LABEL)["pid"])
    os.kill(killed, signal.SIGKILL)
    until(lambda: not label.live_label(keeper, label.KEEPER_LABEL))
    code, output = box.ccbed("up", str(box.inventory))
    assert code == 0, output
    assert label.live_label(keeper, label.KEEPER_LABEL)["pid"] != killed
    assert box.containers() == before
    assert box.unchanged()


def repaired(box: Box, before: dict[str, str], node: str) -> None:
    """`up` makes this node anew, and no other."""
    code, output = box.ccbed("up", str(box.inventory))
    assert code == 0, output
    changed = {name for name, id in box.containers().items() if before[name] != id}
    assert changed == {f"ccbed-{NAME}-{node}"}
    assert box.unchanged()


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_lost_node_on_the_command_line(box: Box) -> None:
    args = ["--bed", NAME, "--nodes", "2", "--epochs", "1", "--runs-dir", str(box.runs)]
    code, output = box.ccbed("run", "dp-ring", "--fail-node", "1", *args)
    assert code == 0, output
    assert "ranks equal to the reference run" in output
    assert box.unchanged()


def test_a_shipped_script_that_loses_its_container_resumes_from_its_own_checkpoint(box: Box) -> None:
    code, output = box.ccbed(
        "-v", "run", "example:gpt-ddp", "--fail-node", "1", "--bed", NAME, "--no-reference", "--runs-dir", str(box.runs), "--",
        "--steps", "60", "--save-every", "6",
    )  # fmt: skip
    assert code == 0, output
    assert "resumed-newest (resumed " in output and "no-step-lost (steps 1 to 60 once on 2 ranks" in output
    assert "resume-complete (weights, optimizer" in output


def test_a_frozen_container_that_thaws_in_time_costs_nothing_but_time(box: Box) -> None:
    done = box.run(dp(trials.pause(1, for_s=0.5), liveness=replace(trials.LIVENESS, lost_s=15.0)))
    assert done.bad() == []
    assert done.of("recovery.decided") == ()
    assert box.unchanged()


def test_a_frozen_container_is_found_by_silence(box: Box) -> None:
    done = box.run(dp(trials.pause(1)))
    assert done.bad() == []
    assert [dict(event.value["policy"]) for event in done.of("recovery.decided")] == [{"n1": "spare"}]
    assert box.unchanged()


def test_a_slow_container_is_proved_and_gets_its_cpus_back(box: Box) -> None:
    done = box.run(dp(trials.slow(1, cpu_percent=40)))
    assert done.bad() == []
    assert done.of("recovery.decided") == ()
    (verified,) = done.of("fault.verified")
    assert set(verified.value["evidence"]["cpu_percent"].values()) == {40.0}
    assert box.container("n1").attrs["HostConfig"]["CpuQuota"] == -1
    assert box.unchanged()


def test_a_container_removed_in_a_run_is_detected_and_recovered_and_said(box: Box) -> None:
    slow = trials.dp(params={"step_min_ms": 200}, world=World(nodes=2))  # the engine may take a second to kill it
    done = box.run(slow, on_event=at("checkpoint.commit", lambda: box.container("n1").remove(force=True)))
    assert (done.outcome("finished"), done.outcome("bit-exact")) == ("pass", "pass")
    assert [event.node for event in done.of("node.exit")] == ["n1"]
    assert done.outcome("planned-faults-only") == "fail"
    assert box.unchanged()


def test_no_node_shows_what_another_wrote(box: Box) -> None:
    done = box.run(dp())
    for node in ("n0", "n1"):
        (kept,) = (done.directory / "nodes" / node).glob("i*/rank-*.log")
        assert f"{done.directory.name} node {node} " in kept.read_text() and kept.name == f"rank-{node[1]}.log"
        assert json.loads((done.directory / "nodes" / node / "system.json").read_text())["hostname"] == node


def test_an_orchestrator_killed_in_the_recovery_is_gone_on_with(box: Box, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(box.state.parent), "PYTHONPATH": str(ROOT)}
    args = f"run dp-ring --fail-node 1 --bed {NAME} --nodes 2 --epochs 1 --no-reference --step-min-ms 100".split()
    argv = [sys.executable, "-m", "orchestrator.cli", *args, "--recovery", "restart", "--runs-dir", str(tmp_path)]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        until(lambda: b'"recovery.decided"' in written(tmp_path))
        process.kill()
    directory = (tmp_path / "latest").resolve()
    code, output = box.ccbed("run", "dp-ring", "--bed", NAME, "--nodes", "2")
    assert (code, "whose orchestrator is gone" in output) == (3, True)
    code, output = box.ccbed("resume", str(directory))
    assert code == 0, output
    done = ran(str(directory), box)
    assert len([event for event in done.of("fault.act") if event.type == "invoke"]) == 1
    assert box.unchanged()


def test_a_run_that_nobody_goes_on_with_is_healed(box: Box) -> None:
    event = at("fault.verified", lambda: ctrl_c(2))
    where: list[str] = []
    with pytest.raises(Interrupted):
        lifecycle.launch(box.request(dp(trials.pause(1)), on_begin=where.append, on_event=event))
    assert box.container("n1").status == "paused"
    code, output = box.ccbed("heal", NAME)
    assert code == 0, output
    assert box.container("n1").status == "running"
    assert "busy" not in box.ccbed("status")[1]
    assert box.unchanged()
    assert box.ccbed("resume", where[-1])[0] == 3


def written(runs: Path) -> bytes:
    return b"".join(file.read_bytes() for file in runs.glob(f"*/{bundle.HISTORY}"))


# --- others ----------------------------------------------------------------------------------------


def test_a_bed_of_somebody_else_with_our_name_is_refused_with_its_owner(box: Box, tmp_path: Path) -> None:
    before = box.containers()
    code, output = ccbed(tmp_path / "state", "up", str(box.inventory))
    assert code == 4
    assert f"another bed {NAME} exists on this engine" in output and box.spec.workdir in output
    assert box.containers() == before
    assert ccbed(tmp_path / "state", "down", NAME)[0] in (0, 4)
    assert box.containers() == before and box.unchanged()


def test_a_changed_mount_and_a_grown_bed_reach_all_containers(engine: Any, image: str, tmp_path: Path) -> None:
    state, grown = tmp_path / "state", {"python": PYTHON, "data_dir": tmp_path}
    (tmp_path / "digits").touch()
    file = str(inventory(tmp_path, image, "boxgrown", 1, python=PYTHON))

    def up() -> None:
        code, output = ccbed(state, "up", file)
        assert code == 0, output
        assert "nothing to change" in ccbed(state, "up", file)[1]

    up()
    inventory(tmp_path, image, "boxgrown", 2, **grown)
    plan = ccbed(state, "plan", file)[1]
    assert f"mount {tmp_path} none -> {tmp_path}:ro" in plan and "host n1 none -> 10." in plan
    up()
    for node in ("n0", "n1"):
        script = f"ls {tmp_path}/digits && getent hosts n1 && echo $no_proxy"
        code, output = ccbed(state, "exec", f"boxgrown/{node}", "--", "sh", "-c", script)
        assert code == 0 and " n1" in output and ",n1," in output, output
    inventory(tmp_path, image, "boxgrown", 1, **grown)
    up()
    assert len(labelled(engine, "boxgrown")) == 1
    code, output = ccbed(state, "down", "boxgrown")
    assert code == 0, output
    nothing_is_left(engine, state, "boxgrown")


def test_down_without_the_bed_file_leaves_nothing(engine: Any, image: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    code, output = ccbed(state, "up", str(inventory(tmp_path, image, "boxlost", 1)))
    assert code == 0, output
    (state / "beds" / "boxlost.json").unlink()
    code, output = ccbed(state, "status")
    assert (code, "its bed file is missing" in output) == (0, True)
    code, output = ccbed(state, "down", "boxlost")
    assert code == 0, output
    nothing_is_left(engine, state, "boxlost")


def test_events_of_a_node_killed_by_hand_say_how_it_ended(box: Box) -> None:
    log = Path(box.spec.workdir) / "keeper/events.jsonl"
    size = log.stat().st_size
    box.container("n2").kill()

    def ended_events() -> list[dict[str, Any]]:
        lines = log.read_bytes()[size:].rpartition(b"\n")[0].splitlines()  # the last one may be half written
        return [event for event in map(json.loads, lines) if event["f"] == "node.ended"]

    until(ended_events)
    (event,) = ended_events()
    assert (event["node"], event["value"]["code"], event["value"]["oom"]) == ("n2", -9, False)
    assert box.ccbed("up", str(box.inventory))[0] == 0
