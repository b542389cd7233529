"""A bed of containers of rootless podman: up, a lost node, what it cannot do, and down leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.oslayer import processes
from orchestrator.providers.docker import engines
from orchestrator.providers.ssh.remote_host import RemoteSite

from . import rootless_podman, sshd
from .rootless_podman import Podman

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(rootless_podman.lacking()), reason=rootless_podman.lacking())]

NAME = "podtest"


@pytest.fixture(scope="module")
def service(engine: Any, image: str) -> Iterator[tuple[Podman, Any]]:
    """With the image of the tests, which is loaded there once."""
    with rootless_podman.running() as (podman, client):
        wanted = engine.images.get(image)
        if wanted.id not in {present.id for present in client.images.list()}:
            client.images.load(wanted.save(named=True))
        yield podman, client


@dataclass(frozen=True, kw_only=True)
class Box:
    podman: Podman
    client: Any
    inventory: Path

    def ccbed(self, *args: str, **env: str) -> tuple[int, str]:
        return self.podman.ccbed(*args, **env)

    def variant(self, name: str, **more: object) -> str:
        return str(inventory(self.podman, name, **more))


def inventory(podman: Podman, name: str, **more: object) -> Path:
    file = podman.home / f"{name}.yml"
    given = {"provider": "docker", "bed": name, "nodes": 2, "spares": 1, "start_timeout": "10m", **more}
    variables = ", ".join(f"ccbed_{field}: {value}" for field, value in given.items())
    file.write_text(f"all: {{hosts: {{localhost: {{ansible_connection: local}}}}, vars: {{{variables}}}}}\n")
    return file


@pytest.fixture(scope="module")
def box(service: tuple[Podman, Any], image: str) -> Iterator[Box]:
    podman, client = service
    file = inventory(podman, NAME, image=image)
    code, output = podman.ccbed("up", str(file))
    assert code == 0, output
    assert "engine podman 4" in output or "engine podman 5" in output
    yield Box(podman=podman, client=client, inventory=file)
    code, output = podman.ccbed("down", NAME, "--force")
    assert code == 0, output
    assert [container.name for container in client.containers.list(all=True)] == []
    assert [network.name for network in client.networks.list() if network.name.startswith("ccbed")] == []
    assert [process.pid for process in processes.scan() if process.tag.startswith(f"{NAME}-")] == []
    assert not (podman.home / ".local/state/ccbed/beds" / NAME).exists()


def owners(directory: Path) -> Iterator[int]:
    """The users of what is in a directory. The node that is up replaces some of its files meanwhile."""
    for folder, _, names in os.walk(directory):
        for name in ("", *names):
            with contextlib.suppress(FileNotFoundError):
                yield (Path(folder) / name).stat().st_uid


def test_nodes_are_containers_without_rights_whose_root_is_the_user(box: Box) -> None:
    attrs = box.client.containers.get(f"ccbed-{NAME}-n1").attrs
    assert attrs["HostConfig"]["ReadonlyRootfs"] is True and attrs["Config"]["User"] == "0:0"
    code, output = box.ccbed("exec", f"{NAME}/n1", "--", "sh", "-c", "hostname; grep CapEff /proc/self/status; exit 3")
    assert (code, output.split()) == (3, ["n1", "CapEff:", "0000000000000000"])
    directory = box.podman.home / ".local/state/ccbed/beds" / NAME / "nodes/n1"
    assert set(owners(directory)) == {rootless_podman.UID}
    facts = json.loads((directory / "system.json").read_text())
    assert facts["engine"].startswith("podman ") and facts["engine"].endswith(" without root")


def test_a_lost_node_is_recovered_and_the_bed_is_as_before(box: Box) -> None:
    runs = str(box.podman.home / "runs")
    args = ["--bed", NAME, "--nodes", "2", "--epochs", "1", "--runs-dir", runs]
    code, output = box.ccbed("run", "dp-ring", "--fail-node", "1", *args)
    assert code == 0, output
    assert "killed 4, by engine" in output or "killed 3, by engine" in output
    assert "ranks equal to the reference run" in output
    code, output = box.ccbed("run", "dp-ring", "--no-reference", *args)
    assert code == 0, f"the restarted node has the hardware address that its peers know: {output}"
    code, output = box.ccbed("up", str(box.inventory), DOCKER_HOST="")
    assert code == 0 and "nothing to change" in output, "a bed that is up keeps its engine"


def test_doctor_names_podman_and_the_faults_that_it_cannot_inject(box: Box) -> None:
    code, output = box.ccbed("doctor", str(box.inventory))
    assert code == 0, output
    assert "podman " in output and "without root" in output
    assert ("cannot inject slow-node" in output) is ("limit" in lacks(box))


@pytest.mark.parametrize(("fault", "need"), [("slow-node", "limit"), ("pause-node", "pause")])
def test_a_fault_that_podman_cannot_inject_is_rejected_before_the_run(box: Box, fault: str, need: str) -> None:
    if need not in lacks(box):
        pytest.skip(f"this podman can {need}")
    runs = box.podman.home / "rejected"
    trial = box.podman.home / f"{fault}.yml"
    trial.write_text(
        "{trial: t, workload: train-dp, params: {epochs: 1}, world: {nodes: 2}, "
        f"faults: [{{{fault}: {{node: 1, at: {{step: 5}}}}}}]}}\n"
    )
    for more in (["--dry-run"], []):
        args = ["run", str(trial), "--bed", NAME, "--no-reference", "--runs-dir", str(runs), *more]
        code, output = box.ccbed(*args)
        assert code == 3, output
        assert f"needs {need}; host localhost" in output and "its container engine lacks it" in output
    assert not runs.exists() or not list(runs.glob("*/history.jsonl"))


def lacks(box: Box) -> list[str]:
    """What the containers of the bed say of their engine."""
    labels = box.client.containers.get(f"ccbed-{NAME}-n0").labels
    return str(labels.get("ccbed.lacks", "")).split(",")


def test_a_limit_that_podman_would_leave_out_is_rejected(box: Box, image: str) -> None:
    api = box.client.api
    host = api.get(f"{api.base_url}/v4.0.0/libpod/info").json()["host"]
    if "memory" in (host["cgroupControllers"] or ()):
        pytest.skip("this podman has a cgroup for memory")
    file = box.variant("podlimits", image=image, memory="2g")
    code, output = box.ccbed("up", file)
    assert code == 4, output
    assert "ccbed_memory: podman" in output and "cannot limit it on this host" in output
    assert "ccbed_memory" in box.ccbed("doctor", file)[1]
    assert box.ccbed("down", "podlimits")[0] == 0


def test_gpus_and_a_user_are_rejected(box: Box, image: str) -> None:
    for more, text in (({"gpus": 1}, "GPUs in containers of podman are unsupported"), ({"user": 4242}, "ccbed_user")):
        code, output = box.ccbed("up", box.variant("podno", image=image, **more))
        assert code == 4 and text in output, output
        assert box.ccbed("down", "podno")[0] == 0


@pytest.mark.skipif(bool(sshd.lacking()), reason=sshd.lacking())
def test_a_host_behind_ssh_may_have_podman_without_docker(service: tuple[Podman, Any], tmp_path: Path) -> None:
    podman, _ = service
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "podman"):
        (programs / name).symlink_to(str(shutil.which(name)))
    with sshd.running(tmp_path / "sshd", f"SetEnv PATH={programs}") as server:
        host = replace(server.host(), engine=str(podman.socket), python=sys.executable)
        site = RemoteSite(sshd.bed(tmp_path, host), host)
        site.open(60)
        known = engines.Engine(host, site.call).identify()
        site.close()
    assert (known.is_podman, known.is_rootless) == (True, True)


def test_an_image_that_is_missing_names_the_command_with_its_engine(box: Box) -> None:
    code, output = box.ccbed("up", box.variant("podmissing", image="ccbed/none:1"))
    assert code == 4 and f"DOCKER_HOST=unix://{box.podman.socket} ccbed image build" in output
    assert box.ccbed("down", "podmissing")[0] == 0
