"""Every provider keeps the contract; a provider that is wrong on purpose does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.inventory import parse_inventory
from orchestrator.model.bed import BedSpec
from orchestrator.model.event import Command
from orchestrator.providers import archive
from orchestrator.providers.docker.docker_provider import DockerProvider
from orchestrator.providers.process.process_provider import ProcessProvider

from ..e2e import sshd
from ..fakes.fake import FakeBed
from .provider_contract import BEHAVIOURS, RUN, Behaviour, Stage

NAMED = [pytest.param(check, id=name) for name, check in BEHAVIOURS.items()]


def bed_of(directory: Path, variables: str, name: str) -> BedSpec:
    """Two nodes, as an inventory with these variables describes them."""
    text = f"all: {{hosts: {{h1: {{}}}}, vars: {{ccbed_bed: {name}, ccbed_nodes: 2, {variables}}}}}\n"
    inventory = parse_inventory.parse(text, str(directory / f"{name}.yml"))
    state = str(directory / "state")
    return nodes_from_inventory.assemble_bed(inventory, agent=archive.agent_hash(), state=state, home=str(directory))


def fake_stage() -> tuple[FakeBed, Stage]:
    bed = FakeBed(("n0", "n1"))
    spec = bed_of(Path("/fake"), "ansible_connection: local", "fake")
    return bed, Stage(provider=bed, bed=spec, clock=lambda: bed.time)


@pytest.fixture(scope="module")
def process_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("process")
    spec = bed_of(directory, "ansible_connection: local", "contract")
    yield from running(Stage(provider=ProcessProvider(directory / "state"), bed=spec))


@pytest.fixture(scope="module")
def docker_stage(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("docker")
    variables = f"ansible_connection: local, ccbed_start_timeout: 10m, ccbed_provider: docker, ccbed_image: '{image}'"
    spec = bed_of(directory, variables, "contract-docker")
    yield from running(Stage(provider=DockerProvider(directory / "state"), bed=spec))


@pytest.fixture(scope="module")
def ssh_stage(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Containers of a host behind a real sshd: what another machine would be, on this one."""
    if sshd.lacking():
        pytest.skip(sshd.lacking())
    directory = tmp_path_factory.mktemp("ssh")
    with sshd.running(directory / "sshd") as server:
        host = server.host()
        variables = (
            f"ansible_host: {host.address}, ansible_port: {host.port}, ansible_user: {host.user},"
            f" ansible_ssh_private_key_file: {host.key}, ansible_python_interpreter: /usr/bin/python3,"
            f" ccbed_known_hosts: {host.known_hosts}, ccbed_start_timeout: 10m, ccbed_provider: docker, ccbed_image: '{image}',"
            f" ccbed_network: host, ccbed_address: 127.0.0.1, ccbed_interface: lo, ccbed_workdir: {directory / 'host'}"
        )
        spec = bed_of(directory, variables, "contract-ssh")
        yield from running(Stage(provider=DockerProvider(directory / "state"), bed=spec))


def running(stage: Stage) -> Iterator[Stage]:
    """The stage, up; afterwards nothing of it is left."""
    try:
        yield stage.up()
    finally:
        stage.provider.retire(stage.bed)


@pytest.mark.parametrize("check", NAMED)
def test_the_fake_provider(check: Behaviour, tmp_path: Path) -> None:
    check(fake_stage()[1].open(), tmp_path)


@pytest.mark.e2e
@pytest.mark.parametrize("check", NAMED)
def test_the_process_provider(check: Behaviour, process_stage: Stage, tmp_path: Path) -> None:
    check(process_stage.open(), tmp_path)


@pytest.mark.e2e
@pytest.mark.parametrize("check", NAMED)
def test_the_docker_provider_on_this_machine(check: Behaviour, docker_stage: Stage, tmp_path: Path) -> None:
    check(docker_stage.open(), tmp_path)


@pytest.mark.e2e
@pytest.mark.parametrize("check", NAMED)
def test_the_docker_provider_behind_ssh(check: Behaviour, ssh_stage: Stage, tmp_path: Path) -> None:
    check(ssh_stage.open(), tmp_path)


# --- negative controls: each of these providers is wrong in one thing, and the contract says which ---------------------------


def acknowledge_without_killing(bed: FakeBed) -> None:
    bed.cluster.kill = lambda name: None  # type: ignore[method-assign]


def kill_without_exit(bed: FakeBed) -> None:
    emit = bed.cluster.emit

    def emit_no_exit(node: str, writer: str, f: str, *rest: object, **more: object) -> None:
        if f != "node.exit":
            emit(node, writer, f, *rest, **more)  # type: ignore[arg-type]

    bed.cluster.emit = emit_no_exit  # type: ignore[method-assign]


def perform_every_command_again(bed: FakeBed) -> None:
    bed.cluster.is_repeated = lambda command, writer: False  # type: ignore[method-assign]


def ignore_incarnations(bed: FakeBed) -> None:
    receive = bed.keepers.receive

    def receive_unfenced(command: Command) -> None:
        receive(replace(command, incarnation=None))

    bed.keepers.receive = receive_unfenced  # type: ignore[method-assign]


def verify_without_injecting(bed: FakeBed) -> None:
    bed.keepers.perform = lambda node, primitives: None  # type: ignore[method-assign]


def deliver_once_only(bed: FakeBed) -> None:
    poll = bed.poll

    def poll_and_drop(cursors: object, timeout_s: float) -> object:
        events, _ = poll({"received": 0}, timeout_s)
        bed.cluster.received.clear()
        return events, {"received": 0}

    bed.poll = poll_and_drop  # type: ignore[method-assign, assignment]


def beat_after_death(bed: FakeBed) -> None:
    heartbeats = bed.heartbeats
    counts = iter(range(1000, 1_000_000))
    bed.heartbeats = lambda: {name: (beat[0], next(counts)) for name, beat in heartbeats().items()}  # type: ignore[method-assign]


def ignore_limits(bed: FakeBed) -> None:
    fetch = bed.fetch
    bed.fetch = lambda node, path, to, limit: fetch(node, path, to, 1 << 20)  # type: ignore[method-assign]


def miss_without_a_reason(bed: FakeBed) -> None:
    fetch = bed.fetch
    bed.fetch = lambda node, path, to, limit: replace(fetch(node, path, to, limit), reason="")  # type: ignore[method-assign]


def keep_what_is_forgotten(bed: FakeBed) -> None:
    bed.forget = lambda bed, run, **which: None  # type: ignore[method-assign]


def retire_nothing(bed: FakeBed) -> None:
    bed.retire = lambda bed: (1,)  # type: ignore[method-assign]


def one_path_for_all_payloads(bed: FakeBed) -> None:
    bed.put = lambda files: "/payload"  # type: ignore[method-assign]


WRONG: tuple[tuple[Callable[[FakeBed], None], str], ...] = (
    (acknowledge_without_killing, "an_acknowledged_kill_has_ended_the_node"),
    (kill_without_exit, "an_acknowledged_kill_has_ended_the_node"),
    (acknowledge_without_killing, "a_killed_node_comes_back_as_a_new_incarnation"),
    (perform_every_command_again, "a_repeated_command_is_not_performed_again"),
    (ignore_incarnations, "a_command_for_another_incarnation_is_rejected"),
    (verify_without_injecting, "a_fault_is_acknowledged_only_once_it_is_verified"),
    (deliver_once_only, "poll_delivers_from_any_cursors_and_nothing_twice_after_them"),
    (beat_after_death, "a_living_node_beats_and_a_killed_one_stops"),
    (ignore_limits, "a_fetch_stops_at_its_limit_and_says_so"),
    (ignore_limits, "fetch_all_keeps_the_order_and_one_limit_for_all"),
    (miss_without_a_reason, "a_file_that_is_not_there_is_missing_with_a_reason"),
    (keep_what_is_forgotten, "a_run_and_a_payload_are_left_over_until_they_are_removed"),
    (retire_nothing, "retire_ends_every_node_and_a_second_time_nothing"),
    (one_path_for_all_payloads, "equal_payloads_have_one_path_and_different_ones_two"),
)


@pytest.mark.parametrize(("damage", "name"), WRONG, ids=[f"{damage.__name__}" for damage, _ in WRONG])
def test_a_wrong_provider_breaks_the_contract(damage: Callable[[FakeBed], None], name: str, tmp_path: Path) -> None:
    bed, stage = fake_stage()
    stage.open(RUN)
    damage(bed)
    with pytest.raises(AssertionError):
        BEHAVIOURS[name](stage, tmp_path)
