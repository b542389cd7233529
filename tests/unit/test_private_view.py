"""What a process writes in a private view of this machine's files, nobody else sees; as root, and in a user namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model import codec
from orchestrator.model.gang import Isolation, View
from orchestrator.rank.runtime import isolation
from orchestrator.run import work_dirs

from .test_rank_environment import GANG

ROOT = Path(__file__).parents[2]
ENTER = """
import json, subprocess, sys
from orchestrator.model import codec
from orchestrator.model.gang import GangSpec
from orchestrator.rank.runtime import isolation
isolation.enter(codec.build(GangSpec, json.loads(sys.argv[1])), "/events.jsonl")
subprocess.run(["sh", "-ec", sys.argv[2]], check=True)
"""


def shell(view: View, commands: str) -> str:
    """What a shell prints that a rank in the view starts."""
    gang = json.dumps(codec.plain(replace(GANG, isolation=Isolation(view=view))))
    return subprocess.run(
        [sys.executable, "-c", ENTER, gang, commands], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "user namespace"])
def test_writes_in_a_view_are_seen_in_it_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_root: bool) -> None:
    users, kept, run, copy = (tmp_path / name for name in ("users, \u00fc:1", "kept", "run", "copy"))
    for path in (users, kept, run, copy):
        path.mkdir()
        (path / "file").write_text(path.name)
    (users / "created").mkdir()
    (users / "created/by the run").touch()
    (tmp_path / "project/.venv").mkdir(parents=True)
    (tmp_path / "project/.venv/python").touch()
    (tmp_path / "project/created by the run").touch()
    (copy / ".venv").symlink_to(tmp_path / "project/.venv")
    if not is_root:
        monkeypatch.setattr(work_dirs, "_PROGRAM", f"import os; os.geteuid = lambda: 1; {work_dirs._PROGRAM}")
    with ExitStack() as stack:
        view = work_dirs.open_view(
            stack, run, keep=[str(kept)], moved={str(tmp_path / "project"): str(copy)}, hidden=[str(users / "created")]
        )
        if view is None:
            pytest.skip("this machine allows no mount namespace with overlayfs")
        write = f"cd '{users}'; ls; echo changed >>file; mkdir created; mv file created; rm -r created; touch new; chmod 700 ."
        assert shell(view, write) == "file\n"
        assert shell(view, f"ls '{users}'; echo 1 >/dev/shm/ccbed-test; cat /dev/shm/ccbed-test") == "new\n1\n"
        assert shell(view, f"cat {tmp_path}/project/file; echo shared >{kept}/file") == "copy"
        assert (
            shell(view, f"cd {tmp_path}/project; rm .venv/python; touch made .venv/new; ls . .venv")
            == ".:\nfile\nmade\n\n.venv:\nnew\n"
        )
    assert [path.name for path in (tmp_path / "project/.venv").iterdir()] == ["python"]
    assert sorted(str(path.relative_to(users)) for path in users.rglob("*")) == [
        "created",
        "created/by the run",
        "file",
    ]
    assert (users / "file").read_text() == users.name
    assert (kept / "file").read_text() == "shared\n"
    assert not (run / "view").exists() and not Path("/dev/shm/ccbed-test").exists()


def test_a_rank_whose_view_is_gone_does_not_start(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    gang = replace(GANG, isolation=Isolation(view=View(pid=ended.pid, marker=str(tmp_path / "marker"))))
    with pytest.raises(isolation.NotIsolated, match="is gone; ccbed resume"):
        isolation.enter(gang, "/events.jsonl")


def test_what_overlayfs_leaves_is_removed_by_a_user_without_root() -> None:
    """Root may enter every directory, so that only another user shows it. Each mount leaves work/work with mode 0."""
    root = Path(tempfile.mkdtemp())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            root.chmod(0o777)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            for name in ("1", "2"):
                (root / "scratch" / name / "work/work").mkdir(parents=True)
                (root / "scratch" / name / "work/work").chmod(0)
            work_dirs._remove(root / "scratch")
            code = int((root / "scratch").exists())
        finally:
            os._exit(code)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        shutil.rmtree(root)
