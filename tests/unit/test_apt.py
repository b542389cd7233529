"""Packages on a machine that installs others in the background: the real apt-get on a tree of its own, whose locks are held."""

from __future__ import annotations

import fcntl
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "playbooks" / "files" / "apt.sh"
#: Holds the lock of a file as dpkg does, until its input ends.
HOLD = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
#: dpkg that notes how it was called, and completes what was interrupted.
DPKG = """#!/bin/sh
echo "$DEBIAN_FRONTEND $NEEDRESTART_MODE $*" >> "{log}"
rm -f "{updates}"/*
"""

pytestmark = pytest.mark.skipif(
    not (shutil.which("apt-get") and Path("/var/lib/dpkg/status").exists()), reason="no Debian or Ubuntu"
)


class Machine:
    """A tree with the packages of this machine as installed, without any repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("dpkg/updates", "lists/partial", "archives/partial", "etc", "bin"):
            (root / name).mkdir(parents=True)
        shutil.copyfile("/var/lib/dpkg/status", root / "dpkg" / "status")
        (root / "sources.list").touch()
        settings = {
            "Dir::State::status": "dpkg/status", "Dir::State::extended_states": "extended_states", "Dir::State::lists": "lists",
            "Dir::Cache::archives": "archives", "Dir::Etc::sourcelist": "sources.list", "Dir::Etc::sourceparts": "etc",
            "Dir::Cache::pkgcache": "pkgcache.bin", "Dir::Cache::srcpkgcache": "srcpkgcache.bin",
        }  # fmt: skip
        lines = [f'{name} "{root / path}";' for name, path in settings.items()]
        (root / "apt.conf").write_text("\n".join(['APT::Sandbox::User "root";', *lines, ""]))

    def source(self, line: str) -> None:
        (self.root / "sources.list").write_text(f"{line}\n")

    def start(self, command: str, wait_s: int = 60) -> subprocess.Popen[str]:
        env = {
            "APT_CONFIG": str(self.root / "apt.conf"),
            "APT_WAIT_S": str(wait_s),
            "PATH": f"{self.root}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        return subprocess.Popen(
            ["sh", "-euc", f". {shlex.quote(str(SCRIPT))}\n{command}"], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )  # fmt: skip

    def apt(self, command: str, wait_s: int = 60) -> tuple[int, str]:
        process = self.start(command, wait_s)
        out, errors = process.communicate(timeout=900)
        assert out == ""
        return process.returncode, errors

    @contextmanager
    def held(self, lock: str) -> Iterator[subprocess.Popen[str]]:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(self.root / lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        assert holder.stdout and holder.stdout.readline() == "held\n"
        yield holder
        holder.communicate(timeout=900)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("lock", "command"),
    [("dpkg/lock-frontend", "apt_get install dpkg"), ("dpkg/lock", "apt_get install dpkg"), ("lists/lock", "apt_get update")],
)  # fmt: skip
def test_a_lock_that_another_package_manager_holds_is_waited_for(machine: Machine, lock: str, command: str) -> None:
    with machine.held(lock) as holder:
        code, errors = machine.apt(command, wait_s=0)
        assert (code, "ock" in errors) == (1, True), "the control: without waiting the lock is an error"
        process = machine.start(command)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        holder.communicate(timeout=900)
        assert process.communicate(timeout=900) == ("", "")
        assert process.returncode == 0


def test_an_interrupted_installation_is_completed_without_questions(machine: Machine) -> None:
    (machine.root / "dpkg" / "updates" / "0001").write_text("Package: x\n")
    log = machine.root / "log"
    stub = machine.root / "bin" / "dpkg"
    stub.write_text(DPKG.format(log=log, updates=machine.root / "dpkg" / "updates"))
    stub.chmod(0o755)
    assert machine.apt("apt_get install dpkg") == (0, "")
    assert log.read_text().splitlines()[-1] == "noninteractive a --force-confdef --force-confold --configure -a"


def test_an_interrupted_installation_that_cannot_be_completed_is_an_error_of_apt(machine: Machine) -> None:
    (machine.root / "dpkg" / "updates" / "0001").write_text("Package: x\n")
    stub = machine.root / "bin" / "dpkg"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    code, errors = machine.apt("apt_get install dpkg", wait_s=2)
    assert (code, "dpkg was interrupted" in errors) == (1, True)


def test_a_package_that_does_not_exist_is_an_error_at_once(machine: Machine) -> None:
    code, errors = machine.apt("apt_get install no-such-package", wait_s=600)
    assert (code, errors) == (1, "E: Unable to locate package no-such-package\n")


def test_lists_that_cannot_be_fetched_are_tried_three_times_and_do_not_prevent_an_installation(
    machine: Machine,
) -> None:
    machine.source(f"deb [trusted=yes] file:{machine.root}/nothing ./")
    code, errors = machine.apt("apt_get update")
    assert (code, "ailed to fetch" in errors) == (1, True)
    assert machine.apt("apt_install dpkg")[0] == 0


def test_lists_that_can_be_fetched_later_are_fetched(machine: Machine) -> None:
    machine.source(f"deb [trusted=yes] file:{machine.root}/repository ./")
    process = machine.start("apt_get update")
    (machine.root / "repository").mkdir()
    (machine.root / "repository" / "Packages").touch()
    assert process.communicate(timeout=900) == ("", "")
    assert process.returncode == 0


def test_every_installation_is_one_that_waits() -> None:
    files = [ROOT / ".ci" / "setup", *(ROOT / "playbooks").rglob("*.yml")]
    text = "".join(file.read_text() for file in files)
    assert "builtin.apt" not in text
    assert re.findall(r"apt-get (?:-.*)?(?:update|install) \S+", text) == ["apt-get install python3-venv),"], (
        "but advice"
    )
    assert len(re.findall(r"apt_install [a-z\"]|apt_get install", text)) == 5


def test_flock_is_not_the_lock_of_dpkg(machine: Machine) -> None:
    """The control of these tests: only a lock as dpkg takes it, by fcntl, is one."""
    with (machine.root / "dpkg" / "lock-frontend").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert machine.apt("apt_get install dpkg", wait_s=0) == (0, "")


@pytest.mark.parametrize(
    ("running", "live", "listed", "problem"),
    [
        ("0", "false", "nvidia", ""),
        ("2", "true", "nvidia", ""),
        ("2", "false", "nvidia", "which would end its 2 running containers; fix: end them there"),
        ("0", "false", "runc", "docker info does not list the runtime nvidia"),
    ],
)
def test_the_engine_is_restarted_for_nvidias_runtime_where_no_container_ends(
    tmp_path: Path, running: str, live: str, listed: str, problem: str
) -> None:
    texts = {"ContainersRunning": running, "LiveRestoreEnabled": live, "Runtimes": f'{{"{listed}":{{}}}}'}
    cases = "".join(f"*{key}*) echo '{text}';; " for key, text in texts.items())
    for name in ("docker", "nvidia-ctk", "systemctl", "service", "sleep"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/log\ncase "$*" in {cases}esac\n')
        program.chmod(0o755)
    script = (ROOT / "playbooks" / "files" / "nvidia-runtime.sh").read_text()
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-e"], input=script, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    log = (tmp_path / "log").read_text()
    assert ("nvidia-ctk runtime configure --runtime=docker" in log) == ("would end" not in problem)
    assert (done.returncode != 0) == bool(problem) and problem in done.stderr
    assert ("restart" in log) == ("would end" not in problem)
