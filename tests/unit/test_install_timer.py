"""The units of a night's timer: systemd accepts them, and nothing in a command line changes their meaning."""

from __future__ import annotations

import dataclasses
import io
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli import install_timer, main
from orchestrator.cli.inputs.session import Session
from orchestrator.cli.render import terminal

SCHEDULE = install_timer.Schedule(
    suite="standard", bed="lab", calendar="*-*-* 02:00:00", command=("/bin/true", "nightly", "standard"), directory="/tmp",
    environment={"XDG_STATE_HOME": "/var/lib/me"},
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
