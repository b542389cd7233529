"""No error of ccbed's own ends with 1, the code of a failed verdict: users without a name, limits of processes, foreign packages."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest

from orchestrator.app import settings
from orchestrator.model import errors
from orchestrator.prepare import facts
from orchestrator.providers import event_reader, sites

from .test_cli import Desk, ccbed

__all__ = ["ccbed"]

ROOT = Path(__file__).parents[2]
#: A user id that the list of users does not have, as in a container.
NAMELESS = "import os, pwd\npwd.getpwuid = {}.__getitem__\n"
MAIN = "from orchestrator.__main__ import main\nmain()"


def _python(text: str, *args: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-P", "-c", text, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=variables, cwd=cwd)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("--help",), 0, ""), (("status",), 0, ""), (("down",), 0, ""), (("run", "dp-ring"), 3, "no bed is up"),
        (("up", "inventories/local.yml", "--dry-run"), 0, ""),
        (("up", "inventories/local.yml"), 4, "set XDG_STATE_HOME to a directory"),
    ],
)  # fmt: skip
def test_a_user_without_a_name_and_without_a_home_gets_an_answer(
    tmp_path: Path, args: tuple[str, ...], code: int, text: str
) -> None:
    done = _python(NAMELESS + MAIN, *args, cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert text in done.stderr


def test_settings_in_the_home_of_another_user_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `sudo -u USER` with HOME kept; root may read every directory, so that the refusal is simulated."""

    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    warnings: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings, "user_file", lambda: Path("/root/.config/ccbed/config.toml"))
    monkeypatch.setattr(settings, "project_file", lambda: None)
    monkeypatch.setattr(Path, "is_file", refuse)
    assert settings.find(warnings.append) == ()
    assert warnings == ["/root/.config/ccbed/config.toml: not read: it is in a directory that you may not read"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("RuntimeError('oh')", 4), ("SystemExit(1)", 4), ("SystemExit('oh')", 4), ("MemoryError", 4), ("GeneratorExit", 4),
        ("SystemExit(0)", 0), ("KeyboardInterrupt", 130),
    ],
)  # fmt: skip
def test_whatever_escapes_the_command_line_is_no_verdict(raised: str, code: int) -> None:
    broken = f"from orchestrator.cli import main as own\ndef run(args): raise {raised}\nown.run = run\n"
    done = _python(broken + MAIN)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert done.stderr.startswith("error: internal error of ccbed: ") == (code == 4)


@pytest.mark.slow
def test_a_program_that_cannot_be_loaded_is_no_verdict() -> None:
    done = _python("import sys\nsys.modules['orchestrator.cli.main'] = None\n" + MAIN)
    assert (done.returncode, "Traceback" in done.stderr) == (4, False)


@pytest.mark.slow
def test_the_program_loads_its_own_package_beside_one_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "orchestrator").mkdir()
    (tmp_path / "orchestrator" / "__init__.py").write_text("raise SystemExit(1)")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["ccbed"].partition(":")
    paths = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "orchestrator" / "packages")))
    done = _python(f"from {module} import {function}\n{function}()", "--version", PYTHONPATH=paths, HOME=os.devnull)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith("ccbed ")


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))]
)
def test_a_limit_of_processes_is_named(error: Exception) -> None:
    explained = errors.explain(error)
    assert explained is not None
    assert (explained.exit_code, "ulimit -u" in explained.hint) == (4, True)
    assert errors.explain(RuntimeError("oh")) is None


def test_a_bed_is_observed_and_closed_where_no_thread_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert sites.within(1.0, "work", lambda: 5) == 5
    follower = event_reader.Follower(tmp_path, "run", [], [])
    follower.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(follower._watcher.fd)


def test_the_facts_of_a_host_name_a_user_without_an_entry_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/data")
    assert facts._account(3_000_000_001, 3_000_000_002) == ("3000000001", "/data", "3000000002")
    assert facts._account(0, 3_000_000_002)[0] == "root"


@pytest.mark.slow
def test_a_directory_that_is_not_utf8_is_refused_before_anything_starts(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xff"))
    odd.mkdir()
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for cwd, args, more in (
        (odd, ["status"], state), (tmp_path, ["run", f"{odd}/a.py"], state), (tmp_path, ["status"], {"XDG_STATE_HOME": str(odd)}),
    ):  # fmt: skip
        done = _python(MAIN, *args, cwd=cwd, HOME=os.devnull, **more)
        assert (done.returncode, "n\\xff" in done.stderr, "not UTF-8" in done.stderr) == (3, True, True), done.stderr
    assert not list(tmp_path.rglob("beds"))


def test_status_says_what_has_changed_since_up(ccbed: Desk) -> None:
    assert ccbed("up", "local.yml") == 0
    assert ccbed("status") == 0 and "inventory" not in ccbed.out and "version" not in ccbed.out
    later = time.time() + 60
    os.utime("local.yml", (later, later))
    assert ccbed("status") == 0 and "its inventory was written after the last `up`: ccbed up local.yml" in ccbed.out
    now = time.time() - 60
    os.utime("local.yml", (now, now))
    file = ccbed.root / "state" / "beds" / "local.json"
    os.utime(file, (now - 60, now - 60))
    assert ccbed("status") == 0 and "was written after" in ccbed.out
    assert ccbed("up", "local.yml") == 0 and ccbed("status") == 0 and "was written after" not in ccbed.out
    Path("local.yml").unlink()
    file.write_text(file.read_text().replace("a" * 64, "b" * 64))
    assert ccbed("status") == 0 and "its inventory is gone; `ccbed down local` needs none" in ccbed.out
    assert "its agents are of another version of ccbed (bbbbbb, not aaaaaa): ccbed up local.yml" in ccbed.out


def test_a_full_disk_names_the_file_and_a_directory_of_state_the_way_out(
    ccbed: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def full(path: Path, target: Path) -> None:
        if target.name == "local.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, target)

    monkeypatch.setattr(os, "replace", full)
    assert ccbed("up", "local.yml") == 4
    assert f"{ccbed.root}/state/beds/local.json: No space left on device" in ccbed.err, ccbed.err
    assert "set XDG_STATE_HOME" in ccbed.err


def test_a_termination_of_up_is_an_interruption(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    monkeypatch.setattr(ccbed.bed, "prepare", terminated)
    assert ccbed("up", "local.yml") == 130
    assert "up was interrupted" in ccbed.err and "to continue: ccbed up local.yml" in ccbed.err
