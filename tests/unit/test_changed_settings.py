"""A change of each variable of an inventory, one at a time: what a second `up` makes of nodes that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.app import up
from orchestrator.core.bed import container_requests, diff, nodes_from_inventory
from orchestrator.core.bed.engine_kind import Engine
from orchestrator.core.inventory import parse_inventory, variables
from orchestrator.model.bed import BedSpec, BedStatus
from orchestrator.model.container import fill_incarnation
from orchestrator.model.errors import UsageError
from orchestrator.model.requirements import CPU_IMAGE
from orchestrator.providers.docker import docker_provider, engines
from orchestrator.slurm import allocation, job_steps
from orchestrator.slurm import inventory_variables as slurm_options

from . import beds
from .test_cli import Desk

LOCAL = {"ansible_connection": "local"}
#: Provider -> the hosts, and the variables that are there before the change.
BEFORE: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "process": ({"localhost": LOCAL}, {"ccbed_nodes": 2}),
    "docker": ({"h1": {"ansible_host": "10.0.0.1"}, "h2": {"ansible_host": "10.0.0.2"}}, {"ccbed_workdir": "/w"}),
    "slurm": ({"cluster": LOCAL}, {"ccbed_nodes": 2, "ccbed_workdir": "/w", "ccbed_container": "apptainer", "ccbed_image": "/i.sif"}),
}  # fmt: skip
RE_CREATED, IN_PLACE, NO_EFFECT, DOWN_FIRST = (
    "re-created",
    "changed in place",
    "no effect on running nodes",
    "down first",
)
CREATED = "others are created"
SWITCH = {"off": ["a", "{node}"], "on": ["b", "{node}"]}
#: Variable -> the value that it gets, and what becomes of nodes that run; by provider where they differ.
EXPECTED: Mapping[str, tuple[object, str | Mapping[str, str]]] = {
    "bed": ("other", CREATED),
    "provider": ("other", DOWN_FIRST),
    "nodes": (3, {"process": CREATED, "docker": RE_CREATED, "slurm": DOWN_FIRST}),
    "spares": (1, {"process": CREATED, "docker": RE_CREATED, "slurm": DOWN_FIRST}),
    "max_nodes": (9, {"process": IN_PLACE, "docker": RE_CREATED}),
    "gpus": (1, RE_CREATED),
    "address": ("127.0.0.9", RE_CREATED),
    "interface": ("eth7", RE_CREATED),
    "workdir": ("/other", DOWN_FIRST),
    "shared_dir": ("/s", {"process": IN_PLACE, "docker": RE_CREATED, "slurm": RE_CREATED}),
    "data_dir": ("/d", {"process": IN_PLACE, "docker": RE_CREATED, "slurm": RE_CREATED}),
    "env": ({"A": "b"}, RE_CREATED),
    "python": ("/opt/own/bin/python", RE_CREATED),
    "isolation": ("namespace", RE_CREATED),
    "link": ({"rate": "1gbit"}, RE_CREATED),
    "allow_faults": ("node", IN_PLACE),
    "start_timeout": ("90s", NO_EFFECT),
    "standby": (1, RE_CREATED),
    "container": ("pyxis", RE_CREATED),
    "image": ("/other.sif", RE_CREATED),
    "mounts": (["/a:/b"], RE_CREATED),
    "user": ("1000:7", RE_CREATED),
    "rdma": (True, RE_CREATED),
    "cpus": (2, RE_CREATED),
    "memory": ("1g", RE_CREATED),
    "shm_size": ("8g", RE_CREATED),
    "network": ("private", DOWN_FIRST),
    "http_proxy": ("http://proxy:3128", RE_CREATED),
    "https_proxy": ("http://proxy:3128", RE_CREATED),
    "no_proxy": ("a.example", RE_CREATED),
    "engine": ("/run/other.sock", DOWN_FIRST),
    "engine_control": ({"start": ["a"], "stop": ["b"]}, IN_PLACE),
    "power": (SWITCH, IN_PLACE),
    "ssh_control": ({"start": ["a"], "stop": ["b"]}, IN_PLACE),
    "switch_port": ({"down": ["a"], "up": ["b"]}, IN_PLACE),
    "known_hosts": ("/k", IN_PLACE),
    "ssh_first_contact": (True, IN_PLACE),
    "ports": ("30000-30100", IN_PLACE),
    "time": ("30m", DOWN_FIRST),
    **dict.fromkeys(slurm_options.NAMED, ("a100", DOWN_FIRST)),
    "sbatch": ({"mem": "64G"}, DOWN_FIRST),
}
CASES = [
    (name, provider)
    for name, variable in variables.KNOWN.items()
    for provider in variable.honoured_by
    if (name, provider) != ("max_nodes", "slurm")
]


def bed(provider: str, changed: Mapping[str, object], before: BedSpec | None = None) -> BedSpec:
    hosts, settings = BEFORE[provider]
    given = {"ccbed_provider": provider, "ccbed_bed": "b", **settings, **changed}
    if provider == "docker" and str(given.get("ccbed_image", "")).startswith("/"):
        given["ccbed_image"] = "other:1"
    document = yaml.safe_dump({"all": {"hosts": dict(hosts), "vars": given}})
    return nodes_from_inventory.assemble_bed(
        parse_inventory.parse(document, "b.yml"),
        agent="a" * 64,
        state="/state",
        home="/h",
        recorded=lambda name: before,
    )


def requests(spec: BedSpec) -> dict[str, Any]:
    """The request of each running container."""
    ready = engines.Ready(
        engine=Engine(version="24"), images={"ccbed/cpu": "sha256:a"}, addresses=engines.addresses(spec)
    )
    made = {node.name: docker_provider._request(spec, node, "/w/agent.pyz", (1000, 1000), ready) for node in spec.nodes}
    label = {"incarnation": "i7", "ordinal": 2}
    return {name: fill_incarnation(request, process_tag="t", label=label) for name, request in made.items()}


def observed(before: BedSpec, after: BedSpec) -> BedStatus:
    """All nodes run as ``before`` wants them."""
    status = beds.up(before)
    python = next((node.python for node in before.nodes if not node.container), "")
    status = replace(status, keeper_python=python)
    if before.provider != "docker":
        return status
    running = requests(before)
    specs = {node.name: node for node in after.nodes}
    nodes = tuple(
        replace(node, changed=docker_provider._changes(after, specs[node.name], running[node.name]))
        for node in status.nodes
        if node.name in specs
    )
    return replace(status, nodes=nodes)


def effect(before: BedSpec, after: BedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if after.name != before.name:
        return CREATED
    try:
        up._refuse_moved(after, before)
    except UsageError:
        return DOWN_FIRST
    if before.provider == "slurm" and not _step_stays(before, after, tmp_path, monkeypatch):
        return RE_CREATED
    plan = diff.diff(after, observed(before, after), before)
    known = {node.name for node in before.nodes}
    if any(change.action == "replace" for change in plan.changes if change.node in known):
        return RE_CREATED
    if not plan.empty:
        return CREATED
    return diff.describe_settings(before, after).partition(":")[0]


def _step_stays(before: BedSpec, after: BedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the job step of a host runs with what the bed wants now."""
    job = allocation.Allocation(
        job_id=7, nodes=("n1", "n2"), addresses=("n1", "n2"), ports=(), ends_at=None, is_owned=True
    )  # fmt: skip
    monkeypatch.setattr(job_steps, "_is_own", lambda step: True)
    step = job_steps.Step(
        job=7, node="n1", machine="m", boot="b", pid=1, start=1, container=job_steps.fingerprint(before),
        options=str(job_steps._fixed_options(before, "h0")),
    )  # fmt: skip
    (tmp_path / "steps").mkdir(exist_ok=True)
    job_steps._write(replace(before, workdir=str(tmp_path)), "h0", step)
    return not job_steps.end_reason(replace(after, workdir=str(tmp_path)), job, "h0")


@pytest.mark.parametrize(("name", "provider"), CASES)
def test_a_change_of_one_variable_has_the_effect_that_it_must_have(
    name: str, provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, expected = EXPECTED[name]
    base = {"ccbed_isolation": "namespace"} if name == "link" else {}
    before = bed(provider, base)
    if name == "provider":
        after = replace(before, provider="other")
    else:
        after = bed(provider, {**base, f"ccbed_{name}": value}, before)
    wanted = expected if isinstance(expected, str) else expected[provider]
    assert effect(before, after, tmp_path, monkeypatch) == wanted


def test_without_a_change_nothing_is_re_created() -> None:
    for provider in BEFORE:
        before = bed(provider, {})
        after = bed(provider, {}, before)
        assert diff.diff(after, observed(before, after), before).empty
        assert diff.describe_settings(before, after) == ""


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        ({"ccbed_shared_dir": "/s"}, ["ccbed_shared_dir /w/shared -> /s"]),
        ({"ccbed_data_dir": "/d"}, ["mount /d none -> /d:ro"]),
        ({"ccbed_mounts": ["/a:/b"]}, ["mount /b none -> /a"]),
        ({"ccbed_memory": "1g", "ccbed_cpus": 2.5}, [
            "ccbed_cpus changed", "ccbed_memory changed", "ccbed_shm_size changed",
        ]),
        ({"ccbed_env": {"TOKEN": "open-sesame"}, "ccbed_http_proxy": "http://u:open-sesame@p:1"}, [
            "ccbed_env http_proxy HTTP_PROXY TOKEN",
        ]),
        ({"ccbed_image": "other:1"}, [f"ccbed_image {CPU_IMAGE} -> other:1"]),
    ],
)  # fmt: skip
def test_each_changed_field_has_a_short_line_in_the_words_of_the_inventory(
    changed: Mapping[str, object], lines: list[str]
) -> None:
    before = bed("docker", {})
    after = bed("docker", changed, before)
    (reason,) = {change.reason for change in diff.diff(after, observed(before, after), before).of("replace")}
    assert sorted(reason.split("\n")) == sorted(lines)
    assert "open-sesame" not in reason and max(map(len, reason.split("\n"))) < 120


def test_any_field_of_the_request_counts_and_what_differs_with_each_start_does_not() -> None:
    spec = bed("docker", {})
    request = requests(spec)["n0"]
    other = fill_incarnation(request, process_tag="other", label={"incarnation": "i8", "ordinal": 3})
    assert container_requests.changes(request, other) == ()
    hardened = {**request, "HostConfig": {**request["HostConfig"], "ReadonlyRootfs": False}}
    assert container_requests.changes(hardened, request) == ("HostConfig.ReadonlyRootfs changed",)


# --- another inventory of the same name ---------------------------------------------------------------------------------


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Two inventories with one file name, of which the first is up."""
    monkeypatch.chdir(tmp_path)
    for name, count in (("a", 4), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hosts.yml").write_text(beds.LOCAL.replace("ccbed_nodes: 4", f"ccbed_nodes: {count}"))
    desk = Desk(root=tmp_path)
    assert desk("up", "a/hosts.yml") == 0
    return desk


@pytest.mark.parametrize(
    "args", ["up", "up --dry-run", "plan", "down", "set-aside localhost --reason x -i", "run dp-ring -i"]
)
def test_another_inventory_that_claims_the_name_of_a_bed_is_refused(clusters: Desk, args: str) -> None:
    before, commands = dict(clusters.bed.nodes), list(clusters.bed.commands)
    assert clusters(*args.split(), "b/hosts.yml") == 3
    first, second = (f"{clusters.root}/{name}/hosts.yml" for name in "ab")
    assert f"bed hosts is up from {first}; {second} describes another bed of this name" in clusters.err
    assert "ccbed_bed: hosts-2" in clusters.err and "ccbed down hosts" in clusters.err
    assert (clusters.bed.nodes, clusters.bed.commands) == (before, commands)


def test_the_same_inventory_by_a_link_a_copy_of_it_and_its_own_change_are_the_same_bed(clusters: Desk) -> None:
    root = clusters.root
    (root / "link").symlink_to("a")
    (root / "copy").mkdir()
    (root / "copy" / "hosts.yml").write_bytes((root / "a" / "hosts.yml").read_bytes())
    for path in ("link/hosts.yml", "copy/hosts.yml", f"{root}/a/../a/hosts.yml"):
        assert clusters("up", path) == 0, clusters.err
        assert "nothing to change" in clusters.out
    (root / "a" / "hosts.yml").write_text(beds.LOCAL.replace("ccbed_nodes: 4", "ccbed_nodes: 5"))
    (root / "copy" / "hosts.yml").write_text(beds.LOCAL.replace("ccbed_nodes: 4", "ccbed_nodes: 3"))
    assert clusters("up", "copy/hosts.yml") == 3, "a copy counts as long as it describes the same bed"
    assert clusters("up", "a/hosts.yml") == 0
    assert "1 to create" in clusters.out


def test_an_inventory_that_was_moved_keeps_its_bed_and_that_is_said(clusters: Desk) -> None:
    (clusters.root / "a" / "hosts.yml").unlink()
    assert clusters("up", "b/hosts.yml") == 0
    assert f"bed hosts came up from {clusters.root}/a/hosts.yml, which is gone" in clusters.err
    assert clusters("up", "b/hosts.yml") == 0
    assert "gone" not in clusters.err, "the bed remembers the new path"


def test_an_inventory_of_other_hosts_is_not_the_one_that_is_gone(clusters: Desk) -> None:
    (clusters.root / "a" / "hosts.yml").unlink()
    (clusters.root / "b" / "hosts.yml").write_text(beds.LOCAL.replace("localhost", "login1"))
    assert clusters("up", "b/hosts.yml") == 3
    assert f"bed hosts is up from {clusters.root}/a/hosts.yml; " in clusters.err and "ccbed down hosts" in clusters.err


def test_down_by_name_ends_the_bed_so_that_the_other_inventory_may_use_the_name(clusters: Desk) -> None:
    assert clusters("down", "hosts") == 0
    assert clusters("up", "b/hosts.yml") == 0
