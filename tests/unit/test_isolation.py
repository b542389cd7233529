"""A rank of a reference run, and every process that it starts, writes below its own directories only."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model import codec
from orchestrator.model.gang import Isolation
from orchestrator.rank.runtime import isolation

from .test_rank_environment import GANG

ROOT = Path(__file__).parents[2]
#: A rank: isolates itself, then tries each act in its own directory and in that of the user.
RANK = """
import json, os, subprocess, sys, tempfile
from orchestrator.model import codec
from orchestrator.model.gang import GangSpec, temporary_directory
from orchestrator.rank.runtime import isolation

ACTS = {
    "write": lambda: open("file", "w"), "append": lambda: open("file", "a"), "make": lambda: os.mkdir("new"),
    "link": lambda: os.symlink("file", "link"), "move": lambda: os.rename("file", "moved"),
    "child": lambda: subprocess.run(["touch", "child"], check=True, stderr=subprocess.DEVNULL),
    "read": lambda: open("kept").read(), "remove": lambda: os.remove("kept"),
}

def succeeds(act):
    try:
        act()
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True

isolation.enter(codec.build(GangSpec, json.loads(sys.argv[1])), sys.argv[2] + "/events.jsonl")
for directory in sys.argv[2:]:
    os.chdir(directory)
    print(json.dumps([name for name, act in ACTS.items() if succeeds(act)]))
os.environ["TMPDIR"] = temporary_directory(os.getpid())
with tempfile.NamedTemporaryFile() as file:
    print(json.dumps(os.path.dirname(file.name)))
"""


def test_a_rank_of_a_reference_run_changes_no_file_but_its_own(tmp_path: Path) -> None:
    own, users = tmp_path / "own", tmp_path / "users"
    for path in (own, users):
        path.mkdir()
        (path / "file").write_text("before")
        (path / "kept").write_text("before")
    gang = replace(GANG, out=str(own / "out"), isolation=Isolation(writable=(str(own),)))
    argv = [sys.executable, "-c", RANK, json.dumps(codec.plain(gang)), str(own), str(users)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if "this kernel cannot" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    possible, others, temporary = map(json.loads, done.stdout.splitlines())
    Path(temporary).rmdir()
    assert possible == ["write", "append", "make", "link", "move", "child", "read", "remove"]
    assert others == ["read"]
    assert {path.name: path.read_text() for path in users.iterdir()} == {"file": "before", "kept": "before"}


def test_a_kernel_that_cannot_isolate_starts_no_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(isolation, "_call", fail)
    isolated = replace(GANG, isolation=Isolation(writable=(str(tmp_path / "own"),)))
    with pytest.raises(isolation.NotIsolated, match=r"Function not implemented.*--no-reference"):
        isolation.enter(isolated, str(tmp_path / "events.jsonl"))
    isolation.enter(GANG, str(tmp_path / "events.jsonl"))
