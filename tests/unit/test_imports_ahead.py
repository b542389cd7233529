"""What a reserve imports ahead is used only if nothing tells it from what the script would import by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import codec
from orchestrator.model.gang import GangSpec, ImportReport
from orchestrator.node.agent import script_reserves

from .test_reserve_ranks import spec

ROOT = Path(__file__).parents[2]
#: Library -> its text, and what the report says of it.
LIBRARIES = {
    "plain": ("import json, wave\nwave.CHECKED = True\n", ""),
    "reads_rank": ("import os\nRANK = os.environ.get('RANK')\n", ""),
    "sets_variable": ("import os\nos.environ['LIBRARY'] = '1'\n", "its imports change os.environ"),
    "extends_path": ("import sys\nsys.path.append('/more')\n", "its imports change sys.path"),
    "starts_thread": ("import _thread, time\n_thread.start_new_thread(time.sleep, (60,))\n", "its imports change threads"),
    "sets_umask": ("import os\nos.umask(0o027)\n", "its imports change umask"),
    "sets_tempfile": ("import tempfile\ntempfile.tempdir = '/var/tmp'\n", "its imports change tempfile"),
    "stops_bytecode": ("import sys\nsys.dont_write_bytecode = True\n", "its imports change the writing of bytecode"),
    "debugs": (
        "import torch.distributed as d\nd.set_debug_level(d.DebugLevel.DETAIL)\n",
        "its imports change the debug level of torch.distributed",
    ),
    "hides_program": (
        "import os\ntry:\n    os.system('true')\nexcept RuntimeError:\n    pass\n", "its imports call os.system"
    ),
    "writes_file": ("open('/tmp/ccbed-none/x', 'a')\n", "its imports call open of /tmp/ccbed-none/x"),
    "connects": (
        "import socket\nsocket.socket().connect(('127.0.0.1', 9))\n", "its imports call socket.connect"
    ),
    "reads_file": ("import os\nTEXT = open('settings.txt').read()\nopen(os.devnull, 'w').close()\n", ""),
    "handles_signal": ("import signal\nsignal.signal(signal.SIGUSR1, print)\n", "its imports change signal handlers"),
    "opens_file": ("FILE = open('/dev/null')\n", "its imports change descriptors"),
    "starts_program": ("import subprocess\nP = subprocess.Popen(['sleep', '60'])\n", "its imports call subprocess.Popen"),
    "writes": ("print('hello')\n", "its imports change the output"),
    "tells": ("import os\nraise ValueError('no ' + os.environ['API_TOKEN'])\n", "no ***"),
    "fails": ("raise ImportError('not built')\n", "not built"),
    "imports_own": ("import own\n", "a library imports"),
}  # fmt: skip
DRIVER = """
import json, os, sys
from pathlib import Path
from orchestrator.model import codec
from orchestrator.model.gang import GangSpec
from orchestrator.rank.runtime import imports_ahead
import torch, torch.distributed, torch._dynamo, torch.optim
cases = json.load(sys.stdin)
for name, plain in cases.items():
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        before = dict(os.environ), os.getcwd()
        report = codec.plain(imports_ahead.prepare(codec.build(GangSpec, plain), 0, "n0", "i"))
        is_back = before == (dict(os.environ), os.getcwd()) and "orchestrator.model" in sys.modules
        os.write(write, json.dumps([report, is_back, name in sys.modules]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        print(json.dumps([name, *json.load(answer)]), flush=True)
    os.killpg(pid, 9)
    os.waitpid(pid, 0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ahead")
    libraries = folder / "lib" / "site-packages"
    libraries.mkdir(parents=True)
    (folder / "own.py").write_text("A = 1\n")
    (folder / "settings.txt").write_text("one")
    for name, (text, _) in LIBRARIES.items():
        (libraries / f"{name}.py").write_text(text)
        (folder / f"job_{name}.py").write_text(f"import {name}\nprint(1)\n")
    return folder


@pytest.fixture(scope="module")
def reports(folder: Path) -> dict[str, Any]:
    """Library -> (report, whether the process is as before, whether the library is imported)."""
    cases = {name: codec.plain(_gang(folder, name)) for name in LIBRARIES}
    path = os.pathsep.join((str(ROOT), str(folder / "lib/site-packages")))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], input=json.dumps(cases), env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}


def _gang(folder: Path, name: str) -> GangSpec:
    environment = {**os.environ, "PYTHONPATH": str(folder / "lib/site-packages"), "API_TOKEN": "hunter2-abcdef"}
    return spec(
        folder, workload="script", params={"file": str(folder / f"job_{name}.py")}, environment=environment, epoch=0
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_whose_import_reaches_beyond_its_module_is_imported_by_the_rank_itself(
    reports: dict[str, Any], library: str
) -> None:
    report, is_back, is_imported = reports[library]
    assert is_back
    assert LIBRARIES[library][1] in report["problem"] and bool(report["problem"]) == bool(LIBRARIES[library][1])
    assert is_imported or report["problem"]


def _refusal(folder: Path, reports: dict[str, Any], library: str, rank: int = 0, **change: Any) -> str:
    report, before = codec.build(ImportReport, reports[library][0]), _gang(folder, library)
    environment = {**(before.environment or {}), **change.pop("environment", {})}
    order = replace(before, epoch=1, ranks=(rank,), environment=environment, **change)
    return script_reserves.refusal(report, before, order, rank, "n0", "i")


def test_another_attempt_of_the_same_job_may_use_the_imports(folder: Path, reports: dict[str, Any]) -> None:
    assert _refusal(folder, reports, "plain", rank=1, group_rank=1, world_size=2, nodes=2, master_port=9) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"environment": {"HF_HUB_OFFLINE": "1"}}, "another value of HF_HUB_OFFLINE"),
        ({"environment": {"OLDPWD": "/elsewhere", "SHLVL": "3", "_": "/bin/ccbed"}}, ""),
        ({"threads": 4}, "another value of OMP_NUM_THREADS"),
        ({"umask": 0o22}, "another umask"),
        ({"params": {"file": "other.py"}}, "another params"),
    ],
)
def test_another_environment_or_job_may_not(
    folder: Path, reports: dict[str, Any], monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], why: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert _refusal(folder, reports, "plain", **change) == why


def test_a_variable_of_the_rank_counts_once_an_import_has_read_it(folder: Path, reports: dict[str, Any]) -> None:
    assert _refusal(folder, reports, "reads_rank", world_size=2) == ""
    assert _refusal(folder, reports, "reads_rank", rank=1) == "another value of RANK"


def test_a_file_that_has_changed_is_imported_anew(folder: Path, reports: dict[str, Any]) -> None:
    for file in (folder / "job_plain.py", folder / "lib/site-packages/plain.py"):
        status = file.stat()
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        assert _refusal(folder, reports, "plain") == f"{file} has changed"
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_so_is_a_library_whose_settings_have_changed(folder: Path, reports: dict[str, Any]) -> None:
    settings = folder / "settings.txt"
    assert _refusal(folder, reports, "reads_file") == ""
    settings.write_text("another")
    assert _refusal(folder, reports, "reads_file") == f"{settings} has changed"


def _last(folder: Path, gang: GangSpec, monkeypatch: pytest.MonkeyPatch) -> script_reserves.LastScript:
    monkeypatch.setattr(script_reserves, "RUNS_S", 0.0)
    monkeypatch.setattr(script_reserves, "GPU_FILES", ())
    last = script_reserves.LastScript(folder)
    last.note(gang)
    return last


def test_a_spare_learns_the_script_whose_environment_is_on_no_disk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = replace(_gang(folder, "plain"), env={"TOKEN": "hunter2-abc"})
    last = _last(tmp_path, gang, monkeypatch)
    assert last.find() == gang
    assert script_reserves.LastScript(tmp_path).find() == gang
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and "hunter2" in path.read_text(errors="replace")
    ]
    second = replace(gang, run="r2", env={"TOKEN": "another"})
    last.note(second)
    assert script_reserves.LastScript(tmp_path).find() == second
    (tmp_path / script_reserves.LAST_SCRIPT).write_text('{"memory": "/proc/1/fd/99999", "run": "r3"}')
    assert script_reserves.LastScript(tmp_path).find() is None, "its node has ended"
    with (tmp_path / "other").open("w+") as other:
        json.dump(codec.plain(gang), other, default=str)
        other.flush()
        published = {"memory": f"/proc/self/fd/{other.fileno()}", "run": "r4"}
        (tmp_path / script_reserves.LAST_SCRIPT).write_text(json.dumps(published))
        assert script_reserves.LastScript(tmp_path).find() is None, (
            "its pid and descriptor are those of another process"
        )


def test_a_script_that_has_just_begun_is_left_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = _last(tmp_path, _gang(folder, "plain"), monkeypatch)
    monkeypatch.setattr(script_reserves, "RUNS_S", 60.0)
    assert last.find() is None


@pytest.mark.parametrize(
    "change",
    [{"params": {"module": "m"}}, {"params": {"file": "f", "step_regex": "(1)"}}, {"workload": "train-dp"}, {"backend": "nccl"}],
    ids=str,
)  # fmt: skip
def test_nothing_is_imported_ahead_for_what_begins_in_another_way(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    assert _last(tmp_path, replace(_gang(folder, "plain"), **change), monkeypatch).find() is None


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import os\nos.environ['A'] = '1'\nimport plain\n", "no library is imported before job.py:2: os.environ['…'] = '…'"),
        ("import os, json\n", "no library is imported before its end"),
        ("import os,\n", "job.py: "),
        ("x = " + "(" * 500 + ")" * 500, "too many nested parentheses"),
    ],
)  # fmt: skip
def test_the_history_says_why_nothing_is_imported_ahead(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str
) -> None:
    (tmp_path / "job.py").write_text(source)
    last = _last(tmp_path, replace(_gang(folder, "plain"), params={"file": str(tmp_path / "job.py")}), monkeypatch)
    assert last.find() is None
    assert why in (last.why or "")


#: Becomes a reserve that has imported, then the rank; prints what the library finds, as a fork that imports by itself does.
RANK = """
import json, os, sys
from pathlib import Path
from orchestrator.model import codec
from orchestrator.model.gang import GangSpec
from orchestrator.rank.runtime import imports_ahead, rank_main, context, program
import torch, torch.distributed, torch._dynamo, torch.optim
gang = codec.build(GangSpec, json.load(sys.stdin))
sys.modules["__main__"].__file__ = None
if sys.argv[1] == "ahead":
    report = imports_ahead.prepare(gang, 0, "n0", "i")
    assert not report.problem, report
    again = os.open(gang.out + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(again, 1), os.dup2(again, 2)
code = rank_main.main(gang, 0, events_path=gang.out + "/events", release_fd=0, node="n0", incarnation="i")
os._exit(code or 0)
"""
KEEPS = """
import __main__ as main, atexit, os, random, sys, torch
random.seed(42)
torch.manual_seed(7)
os.getenv("UNSET")
atexit.register(torch.save, {"a": torch.ones(1)}, "late.pt")
def find():
    os.environ["LATE"] = "1"
    return [random.random(), float(torch.rand(1)), vars(main).get("NAME"), os.getenvb(b"LATE") == b"1"]
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ahead", "itself"])
def test_a_rank_finds_what_its_libraries_have_seeded_and_kept(tmp_path: Path, way: str) -> None:
    libraries = tmp_path / "lib" / "site-packages"
    libraries.mkdir(parents=True)
    (libraries / "keeps.py").write_text(KEEPS)
    job = "import keeps\nNAME = 1\nopen('found.json', 'w').write(__import__('json').dumps(keeps.find()))\n"
    (tmp_path / "job_keeps.py").write_text(job)
    path = os.pathsep.join((str(ROOT), str(libraries)))
    environment = {**os.environ, "PYTHONPATH": path}
    gang = replace(_gang(tmp_path, "keeps"), environment=environment)
    done = subprocess.run(
        [sys.executable, "-c", RANK, way], input=json.dumps(codec.plain(gang)), env=environment, capture_output=True,
        text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "found.json").read_text()) == [
        0.6394267984578837, pytest.approx(0.5349225401878357), 1, True,
    ]  # fmt: skip
    (record,) = tmp_path.glob("watch-r0-*.jsonl")
    kinds = [json.loads(line)["k"] for line in record.read_text().splitlines()]
    assert "saved" in kinds and kinds[-1] == "end", "the record ends after the exit handlers of libraries"
