"""A reference run is used again only if all that it read, and where and how it ran, is as it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.model.gang import Isolation, WorkDir
from orchestrator.model.run import Twin
from orchestrator.model.trial import Trial, World
from orchestrator.rank.runtime import opened_files
from orchestrator.run import judging, kept_references, twin_runs
from orchestrator.store import bundle, paths

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path[:] = [sys.argv[1], *filter(None, sys.path), sys.argv[2]]
if "torch" in open(sys.argv[4]).read():  # ranks have imported it before their script
    import torch
from orchestrator.rank.runtime import opened_files
end = opened_files.begin(sys.argv[3])
sys.argv[:] = sys.argv[4:5]
import runpy
runpy.run_path(sys.argv[0], run_name="__main__")
end()
"""
#: One kind of reading each: what it is called, and how a script does it.
READS = {
    "a file that a module opens": "import reader; reader.read()",
    "an imported module": "import reader",
    "a mapped file": "import mmap, os\nf = os.open(DATA, os.O_RDONLY)\nmmap.mmap(f, 0, access=mmap.ACCESS_READ)",
    "an array in a file": "import numpy\nnumpy.memmap(DATA, mode='r')[0]",
    "a tensor in a file": "import torch\ntorch.from_file(DATA, size=2, dtype=torch.uint8)",
    "a database": "import sqlite3\nsqlite3.connect(DATA + '.db').execute('select * from t').fetchall()",
    "a listing": "import glob\nglob.glob(DIRECTORY + '/*')",
    "a listing by pathlib": "import pathlib\nlist(pathlib.Path(DIRECTORY).iterdir())",
    "a file of a forked worker": "import os\nif os.fork():\n    os.wait()\nelse:\n    open(DATA); os._exit(0)",
    "a file that is not there": "import os\ntry:\n    open(DATA + '.more')\nexcept OSError:\n    pass",
}


class Stand:
    """A project, data beside it, a run, and a reference run of it whose script has read in a real interpreter."""

    def __init__(self, path: Path) -> None:
        self.path, self.project, self.data = path, path / "project", path / "data"
        for directory in (self.project, self.data, path / "lib"):
            directory.mkdir()
        (self.data / "numbers").write_bytes(b"12")
        (self.path / "lib" / "reader.py").write_text(
            f"def read():\n    return open({str(self.data / 'numbers')!r}).read()\n"
        )
        self.notes: list[str] = []
        self.cached: list[str] = []
        self.trial = Trial(name="job", workload="script", world=World(nodes=1), params={"file": "job.py"})
        self.fingerprint = {"torch": "2.4", "cpu": "a CPU", "threads": 1}
        self.slots: tuple[str, ...] = ("n0",)
        self.request: Any = SimpleNamespace(
            trial=self.trial, state=str(path / "state"), environment={"HOME": "/h", "SEED": "1"}, exports={}, umask=0o77,
            data_dir=None, on_note=self.notes.append, on_cached_twin=self.cached.append,
            bed=SimpleNamespace(workdir=str(path / "bed"), nodes=(), shares_file_system=True),
        )  # fmt: skip

    def script(self, text: str) -> None:
        names = {"DATA": str(self.data / "numbers"), "DIRECTORY": str(self.data)}
        head = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        (self.project / "job.py").write_text(head + text)

    def run(self, name: str) -> Path:
        directory = self.path / "runs" / name
        shutil.copytree(self.project, directory / paths.WORK)
        (directory / bundle.TRIAL).write_text("{}")
        (directory / bundle.FINGERPRINT).write_text(json.dumps(self.fingerprint))
        return directory

    def plan(self, directory: Path) -> Any:
        work_dir = WorkDir(root=str(self.project), path=str(self.project))
        return SimpleNamespace(
            work_dir=work_dir, payload=str(ROOT), slots=self.slots, bed="local", isolation=Isolation(writable=("/nowhere",))
        )  # fmt: skip

    def keep(self, restart: object = None) -> Path:
        """Make and keep a reference run, and return the run that it followed."""
        origin, reference = self.run("origin"), self.run("r-twin")
        shutil.rmtree(reference / paths.WORK)
        records = reference / "nodes" / "n0" / "i1-e0"
        records.mkdir(parents=True)
        command = [sys.executable, "-c", PROGRAM, str(self.path / "lib"), str(ROOT), str(records / "opened-r0.jsonl")]
        subprocess.run([*command, str(self.project / "job.py")], check=True, cwd=self.project, timeout=300)
        for file in self.path.rglob("__pycache__"):
            shutil.rmtree(file)
        twin = Twin(
            key="k", run="runs/r-twin", losses={"0": {"1": "0x1p0"}}, digests={"0": {"weights@1": "d"}}, steps=1, faults=0,
            restarts=0, final_loss=0.0, control=None, every=7,
        )  # fmt: skip
        kept_references.keep(self.request, origin, twin, restart, ())
        return origin

    def reason(self) -> str:
        """Why another run does not use it again; empty if it does."""
        self.notes.clear()
        directory = self.run("next")
        kept_references.reuse(self.request, directory)
        assert bool(self.notes) != (directory / bundle.CHOSEN_TWIN).exists()
        shutil.rmtree(directory)
        return self.notes[0].removeprefix("an earlier reference run is not used again: ") if self.notes else ""


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    result = Stand(tmp_path)
    monkeypatch.setattr(bundle, "load_plan", result.plan)
    return result


def make_database(path: Path) -> None:
    import sqlite3

    connection = sqlite3.connect(f"{path}.db")
    connection.execute("create table t (n)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * ("torch" in text)) for kind, text in READS.items()]
)
def test_what_the_reference_run_read_forbids_its_use_once_it_has_changed(stand: Stand, kind: str) -> None:
    data = stand.data / "numbers"
    make_database(data)
    stand.script(READS[kind])
    stand.keep()
    assert stand.reason() == "", "nothing has changed"
    assert stand.cached == ["runs/r-twin"]
    match kind:
        case "an imported module":
            changed = stand.path / "lib" / "reader.py"
            changed.write_text("def read():\n    return None\n")
        case "a listing" | "a listing by pathlib":
            changed = stand.data
            (stand.data / "another").touch()
        case "a database":
            changed = Path(f"{data}.db")
            changed.write_bytes(changed.read_bytes() + b"\0")
        case "a file that is not there":
            changed = Path(f"{data}.more")
            changed.touch()
        case _:
            changed, before = data, data.stat()
            data.write_bytes(b"13")
            os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))  # equal but for its content
    assert stand.reason().startswith(str(changed))


OBSTACLES = {
    "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9), 1)\nexcept OSError:\n    pass": "it connected to 127.0.0.1",
    "import socket\nsocket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.2', 9))": "it connected to 127.0.0.2",
    "import subprocess\nsubprocess.run(['git', '--version'])": "it started git",
    "import os\nos.system('true')": "it started true",
    "import multiprocessing\nif __name__ == '__main__':\n    multiprocessing.get_context('spawn').Process(target=print).start()": (
        "it started another interpreter"
    ),
    "import sqlite3\nsqlite3.connect('file:x?mode=memory', uri=True)": "it opened a database by an URI",
    "import ctypes\nctypes.CDLL('libz.so.1')": "",
    "import ctypes\ntry:\n    ctypes.CDLL('/opt/libhdf5.so')\nexcept OSError:\n    pass": "libhdf5.so may open files by itself",
    "import os\nos._exit(0)": "what it opened is recorded only for a script",
}


@pytest.mark.parametrize("text", OBSTACLES)
def test_what_cannot_be_seen_forbids_its_use(stand: Stand, text: str) -> None:
    stand.script(text)
    stand.keep()
    assert stand.reason().startswith(OBSTACLES[text]) and bool(stand.reason()) == bool(OBSTACLES[text])


def change_environment(stand: Stand) -> None:
    stand.request.environment["SEED"] = "2"


def change_shell(stand: Stand) -> None:
    stand.request.environment["SHLVL"] = "3"


def change_placement(stand: Stand) -> None:
    stand.slots = ("n1",)


def change_software(stand: Stand) -> None:
    stand.fingerprint["torch"] = "2.5"


def change_processor(stand: Stand) -> None:
    stand.fingerprint["cpu"] = "another CPU"


def add_checkpoint(stand: Stand) -> None:
    (stand.project / "out").mkdir()
    (stand.project / "out" / "last.pt").touch()


def remove_file(stand: Stand) -> None:
    (stand.project / "settings.txt").unlink()


def change_bed(stand: Stand) -> None:
    stand.request.bed.nodes = ("n0 with 4 cores",)


def compile_module(stand: Stand) -> None:
    (stand.project / "__pycache__").mkdir()


CHANGES = {
    change_environment: "variable SEED has changed", change_shell: "", change_placement: "the placement has changed",
    change_software: "torch of the nodes has changed", change_processor: "cpu of the nodes has changed",
    add_checkpoint: "out is new", remove_file: "settings.txt is gone", change_bed: "the bed has changed", compile_module: "",
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_where_and_how_it_ran_counts_too(stand: Stand, change: Any) -> None:
    (stand.project / "settings.txt").touch()
    stand.script("")
    stand.keep()
    change(stand)
    assert stand.reason() == CHANGES[change]


def test_other_arguments_have_reference_runs_of_their_own(stand: Stand) -> None:
    stand.script("")
    stand.keep(restart=[["f0"], True])
    assert kept_references.is_restarted_alike(stand.request, [["f0"], True])
    assert not kept_references.is_restarted_alike(stand.request, [[], True])
    file = next((stand.path / "state" / "twins").iterdir())
    stand.request.trial = Trial(
        name="job", workload="script", world=World(nodes=1), params={"file": "job.py", "args": ["x"]}
    )
    directory = stand.run("next")
    kept_references.reuse(stand.request, directory)
    assert not stand.notes and not stand.cached
    stand.request.trial = stand.trial
    file.write_bytes(file.read_bytes().replace(b'"reason"', b'"reasons"'))
    kept_references.reuse(stand.request, directory)
    assert not stand.notes and not stand.cached, "a damaged record is none"


def test_a_large_file_is_known_by_size_time_and_inode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_references, "LARGE", 10)
    file = tmp_path / "data"
    file.write_bytes(b"x" * 10)
    before = kept_references.mark(f"open {file}")
    assert before == " ".join(map(str, (10, file.stat().st_mtime_ns, file.stat().st_ino)))
    os.utime(file, (1, 1))
    assert kept_references.mark(f"open {file}") != before
    assert kept_references.mark(f"open {file}", hidden=[str(tmp_path)]) == kept_references.ABSENT


@pytest.mark.parametrize("name", [bundle.CHOSEN_TWIN, bundle.TWIN], ids=["", "after a crash"])
@pytest.mark.parametrize(("is_alike", "passes"), [(True, True), (True, False), (False, True)])
def test_only_pass_rests_on_reference_runs_that_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alike: bool, passes: bool, name: str
) -> None:
    request: Any = SimpleNamespace(on_stage=lambda text: None, catalogue=None, bed=SimpleNamespace(workdir="/bed"))
    (tmp_path / name).write_text('{"reused": true}')
    monkeypatch.setattr(twin_runs, "_restart", lambda directory: [])
    monkeypatch.setattr(kept_references, "is_restarted_alike", lambda *_: is_alike)
    monkeypatch.setattr(judging, "passes", lambda *_: passes)
    is_used = twin_runs._use_again(request, tmp_path)
    assert (tmp_path / bundle.TWIN).exists() == is_used == (is_alike and passes)
    assert not (tmp_path / bundle.CHOSEN_TWIN).exists()


@pytest.mark.parametrize("harm", ["a torn line", "no room"])
def test_records_that_cannot_be_kept_end_no_drill(stand: Stand, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    stand.script("pass")
    origin = stand.keep()
    if harm == "no room":
        monkeypatch.setattr(
            paths, "write_json", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
    else:
        (record,) = stand.path.rglob("opened-r*.jsonl")
        record.write_text(record.read_text() + '["open", "/da')
    twin = Twin(
        key="k", run="runs/r-twin", losses={}, digests={}, steps=1, faults=0, restarts=0, final_loss=0.0, control=None
    )
    kept_references.keep_if_possible(stand.request, origin, twin, None, ())
    assert stand.notes[-1].startswith("the reference runs are not kept for the next drill: ")
    assert not kept_references._file(stand.request).exists()


def test_what_precedes_a_command_of_a_shell_is_not_recorded(tmp_path: Path) -> None:
    notes: list[tuple[str, object]] = []
    opened_files._start(lambda kind, value="": notes.append((kind, value)), b"API_KEY=xyzzy sleep 1")
    assert notes == [("start", "a shell")]
