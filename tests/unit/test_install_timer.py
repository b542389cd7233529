"""The units of a night's timer: systemd accepts them, and nothing in a command line changes their meaning."""

from __future__ import annotations

import dataclasses
import io
import os
import shlex
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.app.nightly import install_timer
from orchestrator.app.nightly import nights as nightly_run
from orchestrator.app.nightly.request import NightRequest
from orchestrator.cli import main
from orchestrator.cli.inputs.session import Session
from orchestrator.cli.render import terminal

SCHEDULE = install_timer.Schedule(
    suite="standard", bed="lab", calendar="*-*-* 02:00:00", command=("/bin/true", "nightly", "standard"), directory="/tmp",
    state="/var/lib/me", environment={"CCBED_X": "a %h \"$HOME\" `id` \\\\"}, folder=Path("/etc/systemd/system"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2:00", "*-*-* 02:00:00"), ("23:59", "*-*-* 23:59:00"), ("Mon..Fri 02:00", "Mon..Fri 02:00")],
)
def test_a_time_of_day_is_every_day(text: str, expected: str) -> None:
    assert install_timer.calendar(text) == expected


@pytest.mark.parametrize("text", ["", " ", "02:00\nExecStart=/bin/rm"])
def test_no_calendar(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time"):
        install_timer.calendar(text)


def test_a_word_keeps_its_meaning() -> None:
    assert install_timer.quote("https://x/%n?a=$B") == '"https://x/%%n?a=$$B"'
    assert install_timer.quote('a "b" \\') == '"a \\"b\\" \\\\"'
    assert install_timer.quote("--only=a,b") == "--only=a,b"
    with pytest.raises(ValueError, match="control character"):
        install_timer.service(dataclasses.replace(SCHEDULE, command=("/bin/true", "a\nExecStart=/bin/rm")))


def complaints(directory: Path, name: str, units: dict[str, str]) -> list[str]:
    for suffix, text in units.items():
        (directory / f"{name}.{suffix}").write_text(text)
    files = [str(directory / f"{name}.{suffix}") for suffix in units]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, check=False
    )
    return [line for line in done.stderr.splitlines() if name in line]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    hard = dataclasses.replace(SCHEDULE, command=(*SCHEDULE.command, "--notify", "sh -c 'a; b' $HOME %h \"x\""))
    for suffix, text in (("service", install_timer.service(hard)), ("timer", install_timer.timer(hard))):
        (tmp_path / f"{hard.name}.{suffix}").write_text(text)
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    reported = [line for line in done.stderr.splitlines() if hard.name in line]
    assert reported == []


def test_the_units_are_printed_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    out = io.StringIO()
    session = Session(state=tmp_path / "state" / "ccbed", terminal=terminal.Terminal(out=out, err=out))
    line = ("nightly", "quick", "--install-timer", "02:00", "--bed", "lab", "--record", "--system")
    assert main.run(line, session) == 0
    printed = out.getvalue()
    assert "/etc/systemd/system/ccbed-nightly-lab-quick.timer" in printed
    assert "-P -m orchestrator.cli nightly quick --bed lab --record --resume-open\n" in printed
    assert f"Environment=XDG_STATE_HOME={tmp_path}/state\n" in printed
    assert "nothing was written" in printed
    assert not (tmp_path / "config").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_a_wrong_time_is_one_clear_error(tmp_path: Path) -> None:
    out = io.StringIO()
    session = Session(state=tmp_path / "state", terminal=terminal.Terminal(out=out, err=out))
    assert main.run(("nightly", "quick", "--install-timer", "tonight-ish"), session) == 3
    assert "--install-timer: not a time of systemd (got tonight-ish)" in out.getvalue()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CCBED_")]:
        monkeypatch.delenv(name)


def install(
    directory: Path, monkeypatch: pytest.MonkeyPatch, systemctl: str | None, *options: str
) -> tuple[int, str, list[str]]:
    """Exit code, output, and the files of the units, where ``systemctl`` is that script; None: it is not installed."""
    programs = directory / "programs"
    programs.mkdir(exist_ok=True)
    if systemctl is not None:
        (programs / "systemctl").write_text(f"#!/bin/sh\n{systemctl}")
        (programs / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory / "config"))
    out = io.StringIO()
    session = Session(state=directory / "state" / "ccbed", terminal=terminal.Terminal(out=out, err=out))
    code = main.run(("nightly", "quick", "--install-timer", "02:00", "--bed", "lab", "--yes", *options), session)
    return code, out.getvalue(), sorted(path.name for path in (directory / "config").rglob("ccbed-*"))


@pytest.mark.parametrize(
    ("systemctl", "reason"),
    [
        (None, "systemd is not on this machine (no systemctl); nothing was written"),
        ("echo 'Failed to connect to bus' >&2; exit 1", "the systemd of this user cannot be reached: Failed to connect to bus"),
        ("exec /bin/sleep 60", "the systemd of this user cannot be reached: no reply within 0.2 s"),
    ],
)  # fmt: skip
def test_without_systemd_nothing_is_written_and_cron_is_named(
    systemctl: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install_timer, "_SECONDS", 0.2 if "sleep" in (systemctl or "") else 60)
    code, output, units = install(tmp_path, monkeypatch, systemctl)
    assert (code, units) == (4, [])
    assert reason in output
    assert "nothing was written" in output
    assert "a line for cron does the same: MINUTE HOUR * * * cd " in output


def test_a_timer_is_installed_twice_without_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = f'echo "$@" >> {tmp_path}/calls'
    for _ in range(2):
        code, output, units = install(tmp_path, monkeypatch, calls)
        assert code == 0, output
        assert units == ["ccbed-nightly-lab-quick.service", "ccbed-nightly-lab-quick.timer"]
    start = ["--user show-environment", "--user daemon-reload", "--user enable --now ccbed-nightly-lab-quick.timer"]
    assert (tmp_path / "calls").read_text().splitlines() == start * 2
    assert "undo: systemctl --user disable --now ccbed-nightly-lab-quick.timer; rm " in output


SECRETS = {"CCBED_DATABASE_URL": "postgresql+psycopg://ada:secret@db/index", "CCBED_BUDGET": "1h"}


@pytest.mark.parametrize("is_set", [True, False])
def test_only_the_owner_of_the_units_can_read_variables_targets_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_set: bool
) -> None:
    """Every user can read the environment and the command of a system unit."""
    targets = ["https://example.org/secret", "sh -c 'echo \"$1\" secret' x"]
    options: tuple[str, ...] = ()
    if is_set:
        monkeypatch.setenv("CCBED_NOTIFY", shlex.join(targets))
        monkeypatch.setenv("CCBED_ON_CULPRIT", "drain --token secret {node}")
    else:
        options = (f"--notify={targets[0]}", "--notify", targets[1], "--on-culprit", "drain --token secret {node}")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    code, output, units = install(tmp_path, monkeypatch, "exit 0", "--record", *options)
    assert code == 0, output
    assert units == [f"ccbed-nightly-lab-quick.{suffix}" for suffix in ("env", "service", "timer")]
    assert "secret" not in output and "CCBED_ON_CULPRIT=(not printed)\n" in output
    (folder,) = {path.parent for path in (tmp_path / "config").rglob("ccbed-*")}
    unit = (folder / units[1]).read_text()
    assert "secret" not in unit and f"EnvironmentFile={folder / units[0]}\n" in unit
    assert f"Environment=XDG_STATE_HOME={tmp_path}/state\n" in unit
    assert "nightly quick --bed lab --record --resume-open\n" in unit
    assert (folder / units[0]).stat().st_mode & 0o777 == 0o600
    shown = subprocess.run(
        ["/bin/sh", "-c", f"set -a; . {folder / units[0]}; exec /usr/bin/env -0"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    read = dict(line.partition("=")[::2] for line in shown.split("\0"))
    wanted = {
        **SECRETS,
        "CCBED_NOTIFY": shlex.join(targets),
        "CCBED_ON_CULPRIT": "drain --token secret {node}",
    }
    assert {name: read[name] for name in wanted} == wanted
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    assert parsed(monkeypatch)["notify"] == tuple(targets)


def parsed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The fields of a night's request as they are with this environment."""
    nights: list[dict[str, Any]] = []

    def keep(session: Session, request: NightRequest) -> Any:
        nights.append(asdict(request))
        return SimpleNamespace(judgement=SimpleNamespace(exit=0))

    monkeypatch.setattr(nightly_run, "run", keep)
    out = io.StringIO()
    session = Session(state=Path("state"), terminal=terminal.Terminal(out=out, err=out))
    assert main.run(("nightly", "quick"), session) == 0, out.getvalue()
    return nights[0]


def test_targets_in_the_environment_that_are_no_words_are_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCBED_NOTIFY", "sh -c 'secret")
    code, output, _ = install(tmp_path, monkeypatch, "exit 0")
    assert code == 3 and "CCBED_NOTIFY: cannot be split into words" in output and "secret" not in output


def test_the_text_of_an_environment_file_keeps_its_meaning() -> None:
    """As a shell, systemd reads a backslash before these characters in quotes as the character alone."""
    assert install_timer.environment_text(SCHEDULE) == 'CCBED_X="a %h \\"\\$HOME\\" \\`id\\` \\\\\\\\"\n'
    with pytest.raises(ValueError, match="control character"):
        install_timer.environment_text(dataclasses.replace(SCHEDULE, environment={"CCBED_X": "a\nb"}))


def test_the_options_of_the_timer_alone_start_no_night(tmp_path: Path) -> None:
    out = io.StringIO()
    session = Session(state=tmp_path / "state", terminal=terminal.Terminal(out=out, err=out))
    assert main.run(("nightly", "quick", "--yes"), session) == 3
    assert "--yes and --system are for --install-timer" in out.getvalue()
