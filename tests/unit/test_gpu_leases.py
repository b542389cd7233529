"""A GPU belongs to one bed of a host, whatever user has the other; a dead owner frees it. With UUIDs that no GPU has."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.oslayer import gpus
from orchestrator.node.oslayer.gpus import GpuLeases, LeaseError

OTHER_USER = 65534
UUIDS = {str(index): f"GPU-{index}111-2222" for index in range(4)}
HOLDER = """
import sys
from pathlib import Path
from orchestrator.node.oslayer.gpus import GpuLeases
leases = GpuLeases("theirs", Path(sys.argv[1]), lambda: {"3": "GPU-3111-2222"})
leases.take("n0", ["3"])
print("held", flush=True)
sys.stdin.read()
"""


def leases(directory: Path, bed: str = "mine") -> GpuLeases:
    return GpuLeases(bed, directory / "leases", lambda: UUIDS)


def hold(directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory / "leases")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_another_bed_is_refused_by_name_and_takes_nothing(tmp_path: Path) -> None:
    first, second = leases(tmp_path, "x"), leases(tmp_path, "y")
    first.take("n0", ["3"])
    with pytest.raises(LeaseError) as caught:
        second.take("n0", ["2", "3"])
    begin = f"GPU 3 of {socket.gethostname()} is used by bed x of user "
    assert str(caught.value).startswith(begin)
    assert f"(pid {os.getpid()}, since 20" in str(caught.value)
    leases(tmp_path, "z").take("n0", ["2"])


def test_an_index_and_a_uuid_and_all_are_the_same_gpu(tmp_path: Path) -> None:
    leases(tmp_path, "x").take("n0", [])
    holder = leases(tmp_path, "x")
    holder.take("n0", ["GPU-1111-2222"])
    for names in (["1"], ["0", "1"], ["all"]):
        with pytest.raises(LeaseError, match="GPU 1 of "):
            leases(tmp_path, "y").take("n0", names)


def test_nodes_of_one_bed_share_a_gpu_until_the_last_has_ended(tmp_path: Path) -> None:
    bed = leases(tmp_path)
    bed.take("n0", ["0"])
    bed.take("n1", ["0"])
    bed.take("n1", ["0"])
    bed.release("n0")
    with pytest.raises(LeaseError):
        leases(tmp_path, "y").take("n0", ["0"])
    bed.release("n1")
    leases(tmp_path, "y").take("n0", ["0"])


def test_a_node_that_is_refused_more_gpus_keeps_those_that_it_has(tmp_path: Path) -> None:
    bed, other = leases(tmp_path), leases(tmp_path, "y")
    other.take("n0", ["3"])
    bed.take("n0", ["0"])
    with pytest.raises(LeaseError):
        bed.take("n0", ["1", "3"])
    with pytest.raises(LeaseError):
        other.take("n1", ["0"])
    other.take("n1", ["1"])


def test_a_killed_owner_frees_its_gpus(tmp_path: Path) -> None:
    process = hold(tmp_path)
    with pytest.raises(LeaseError, match=f"bed theirs of user .* .pid {process.pid},"):
        leases(tmp_path).take("n0", ["3"])
    process.send_signal(signal.SIGKILL)
    process.wait()
    leases(tmp_path).take("n0", ["3"])


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a process of another user")
def test_another_user_is_refused_and_may_take_what_is_free() -> None:
    """A user without rights takes a GPU that root had, and root is refused by the name of that user."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        before = leases(directory, "x")
        before.take("n0", ["3"])
        before.release("n0")
        pid, ready = fork_as(OTHER_USER, lambda: leases(directory, "theirs").take("n0", ["3"]))
        assert ready == b"held"
        with pytest.raises(LeaseError, match=r"GPU 3 of .* is used by bed theirs of user nobody .pid"):
            leases(directory).take("n0", ["3"])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        leases(directory).take("n0", ["3"])


def fork_as(user: int, take: Callable[[], None]) -> tuple[int, bytes]:
    """The pid of a child of that user which took a lease and waits, and what it says of it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            take()
            os.write(write, b"held")
            signal.pause()
        except BaseException as error:  # noqa: BLE001 the parent shows it
            os.write(write, repr(error).encode())
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pid, pipe.read(4) if select.select([pipe], [], [], 30)[0] else b""


def test_a_link_in_the_place_of_a_lease_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / "gpu-GPU-0111-2222").symlink_to(target)
    with pytest.raises(LeaseError, match="cannot be leased"):
        leases(tmp_path).take("n0", ["0"])
    assert target.read_text() == "precious"


def test_without_a_usable_directory_no_node_gets_a_gpu(tmp_path: Path) -> None:
    """A lease that nothing records would let two beds take one GPU. A node without GPUs needs none."""
    (tmp_path / "leases").write_text("a file in its place")
    leases(tmp_path).take("n0", [])
    with pytest.raises(LeaseError) as caught:
        leases(tmp_path).take("n0", ["3"])
    text = str(caught.value)
    assert text.startswith(f"GPU 3 of {socket.gethostname()} cannot be leased: {tmp_path}/leases")
    assert "(-rw-" in text or "is -rw" in text
    assert text.endswith(f"install -d -m 1777 {tmp_path}/leases")


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a process of another user")
def test_a_directory_of_another_user_that_is_not_shared_is_named_with_its_owner() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "leases").mkdir(mode=0o700)

        def take() -> None:
            with pytest.raises(LeaseError, match=r"Permission denied \(.* is drwx------, of user root\)"):
                leases(directory).take("n0", ["3"])

        pid, ready = fork_as(OTHER_USER, take)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert ready == b"held", ready


def test_all_gpus_of_a_host_without_nvidia_smi_belong_to_one_bed(tmp_path: Path) -> None:
    first, second = (GpuLeases(bed, tmp_path / "leases", dict) for bed in "xy")
    first.take("n0", ["all"])
    with pytest.raises(LeaseError, match=r"GPU all of .* is used by bed x"):
        second.take("n0", ["all"])


def test_the_text_of_a_lease_is_not_trusted(tmp_path: Path) -> None:
    first = leases(tmp_path, "x")
    first.take("n0", ["0"])
    (tmp_path / "leases" / "gpu-GPU-0111-2222").write_text('{"bed": "\\u001b[2J", "user": "u", "pid": 1, "since": "s"}')
    with pytest.raises(LeaseError, match=r"is used by another bed$"):
        leases(tmp_path, "y").take("n0", ["0"])


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, ()),
        ({"gpus": 2, "env": {"CUDA_VISIBLE_DEVICES": "2,3"}}, ("2", "3")),
        ({"gpus": -1, "env": {}}, ("all",)),
        ({"gpus": 0, "env": {"CUDA_VISIBLE_DEVICES": "2"}}, ()),
        ({"request": {"HostConfig": {"DeviceRequests": [{"Count": -1}]}}}, ("all",)),
        ({"request": {"HostConfig": {"DeviceRequests": [{"DeviceIDs": ["0", "GPU-7"]}]}}}, ("0", "GPU-7")),
        (
            {"request": {"HostConfig": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=1"]}]}}},
            ("1",),
        ),
        ({"request": {"HostConfig": {}}, "gpus": 0}, ()),
    ],
)
def test_the_gpus_of_a_node_are_those_of_its_command(wanted: dict[str, Any], names: tuple[str, ...]) -> None:
    assert gpus.devices(wanted) == names
