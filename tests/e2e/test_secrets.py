"""Nothing secret enters a bundle, and the ranks get all of it: arguments, files beside the script, environment."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

from orchestrator.core.spec import redact
from orchestrator.run import lifecycle
from orchestrator.store import index, secrets

from .conftest import Bed

pytestmark = pytest.mark.e2e

TOKEN, ACCOUNT, PASSWORD, KEY = "hunter2-token-9d", "some.body-17", "correct-horse-4", "T0p/Secret+Key4Every0ne"
#: Knows its secrets by their digests alone: the script itself is evidence.
CHECKING = """
import hashlib, os, sys, time
from pathlib import Path
import ccbed_events, model

def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:8]

beside = Path(__file__).parent
print("arguments:", sys.argv[1:])
given = [digest(text) for text in (*sys.argv[1:], (beside / ".env").read_text(), (beside / "server.pem").read_text())]
if given != WANTED.split():
    sys.exit(f"not what was given: {given}")
for step in range(1, int(os.environ.get("STEPS", "3")) + 1):
    ccbed_events.step(step)
    time.sleep(0.02)
"""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    given = ("--token", TOKEN, f"--account={ACCOUNT}", f"PASSWORD={PASSWORD}\n", f"{KEY}\n")
    folder = tmp_path / "job"
    folder.mkdir()
    wanted = " ".join(map(digest, given))
    (folder / "train.py").write_text(CHECKING.replace("WANTED", repr(wanted)))
    (folder / "model.py").write_text("LAYERS = 2\n")
    (folder / ".env").write_text(f"PASSWORD={PASSWORD}\n")
    (folder / "server.pem").write_text(f"{KEY}\n")
    (folder / "launch.sh").write_text(f"ccbed run train.py -- --token {TOKEN}\n")
    (folder / "settings.py").write_text(f'LR = 0.1\nDB_PASS = "{PASSWORD}"\n')
    (folder / "data.bin").write_bytes(b"\0" * 100)
    return folder / "train.py"


def leaks(directory: Path) -> list[str]:
    values = [value.encode() for value in (TOKEN, ACCOUNT, PASSWORD, KEY)]
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if any(value in path.read_bytes() for value in values)]


def test_a_bundle_holds_no_secret_and_the_ranks_get_them_all(bed: Bed, script: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    args = ("--secret", "account", "--runs-dir", str(runs), "--", "--token", TOKEN, f"--account={ACCOUNT}")
    code, output = bed.ccbed("run", str(script), *args)
    assert code == 0, output
    assert TOKEN not in output
    assert ACCOUNT not in output
    assert leaks(runs) == []
    assert leaks(script.parent), "the search itself finds them"
    directory = index.resolve("latest", runs)
    plan = json.loads((directory / "plan.json").read_text())
    assert {path.name for path in (directory / "inputs/user").iterdir()} == {"train.py", "model.py", "settings.py"}
    redacted = {"path": "user/settings.py", "line": 2, "kind": "value of DB_PASS"}
    assert plan["inputs_redacted"] == [redacted]
    left_out = {entry["path"]: entry for entry in plan["inputs_left_out"]}
    assert set(left_out) == {"user/.env", "user/server.pem", "user/launch.sh", "user/data.bin"}
    assert [path for path, entry in left_out.items() if entry["sha256"]] == ["user/data.bin"]
    assert not (Path(bed.spec.workdir) / secrets.OF_RUN).exists()
    imported = json.loads(next(directory.glob("nodes/n0/*/imported-r0.json")).read_text())
    assert {name: entry["sha256"] for name, entry in imported.items()} == {"model.py": plan["inputs"]["user/model.py"]}
    code, output = bed.ccbed("run", str(directory / "trial.json"), "--runs-dir", str(runs))
    assert code == 3
    assert "the value of --token" in output
    assert bed.ccbed("run", str(directory / "trial.json"), "--secret", "account", *args[2:])[0] == 0
    assert leaks(runs) == []


@pytest.mark.usefixtures("own_interrupts")
def test_a_run_that_was_interrupted_goes_on_with_its_secrets(
    bed: Bed, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next gang needs them, and they are not in the run's directory. On remote hosts a script's run stays open."""
    monkeypatch.setattr(lifecycle, "_ends_by_interrupt", lambda request: False)
    runs = tmp_path / "runs"
    interrupted: list[bool] = []
    revealed = redact.reveal

    def interrupt(value: object, known: dict[str, str]) -> object:
        if not interrupted:
            interrupted.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return revealed(value, known)

    monkeypatch.setattr(redact, "reveal", interrupt)
    args = ("--secret", "account", "--runs-dir", str(runs), "--", "--token", TOKEN, f"--account={ACCOUNT}")
    code, output = bed.ccbed("run", str(script), *args)
    assert code == 130, output
    assert leaks(runs) == []
    kept = Path(bed.spec.workdir) / secrets.OF_RUN
    assert kept.stat().st_mode & 0o777 == 0o600
    code, output = bed.ccbed("resume", str(index.resolve("latest", runs)), "--runs-dir", str(runs))
    assert code == 0, output
    assert leaks(runs) == []
    assert not kept.exists()
