"""A script in a rank finds what it finds under torchrun: the differences are exactly those that are listed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent import rank_processes
from orchestrator.rank.runtime.environment import START_ONLY

from .stage import ROOT, Played, Stage

#: Writes what it finds to the file that its first argument names, with its rank.
DUMP = """
import json, locale, os, signal, sys, threading
import torch

def describe(number):
    handler = signal.getsignal(number)
    return getattr(handler, "__name__", str(handler))

umask = os.umask(0)
os.umask(umask)
facts = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "environ": dict(os.environ), "umask": umask,
    "signals": {n.name: describe(n) for n in signal.valid_signals() if isinstance(n, signal.Signals)},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "cwd": os.getcwd(), "threads": torch.get_num_threads(),
    "interop": torch.get_num_interop_threads(), "main": {k: repr(type(v)) for k, v in sorted(globals().items())
    if k.startswith("__")}, "file": __file__, "name": __name__, "spec": __spec__, "executable": sys.executable,
    "own": sorted(n for n in sys.modules if n.partition(".")[0] == "orchestrator"),
    "stdout": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through,
        type(sys.stdout.buffer).__name__],
    "stderr": [sys.stderr.encoding, sys.stderr.errors, sys.stderr.line_buffering, sys.stderr.write_through],
    "python_threads": [t.name for t in threading.enumerate()], "locale": locale.setlocale(locale.LC_ALL),
    "interactive": sys.stdin.isatty(), "excepthook": sys.excepthook.__name__, "flags": [sys.dont_write_bytecode],
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "grad": torch.is_grad_enabled(), "dtype": str(torch.get_default_dtype()), "recursion": sys.getrecursionlimit(),
    "gc": __import__("gc").get_threshold(), "switch": sys.getswitchinterval(),
}
with open(sys.argv[1] + os.environ["RANK"], "w") as out:
    json.dump(facts, out, default=str)
"""


def _shell(directory: Path) -> dict[str, str]:
    """The environment of a user, who has a PYTHONPATH and no OMP_NUM_THREADS.

    What this machine sets for every interpreter, as OPENBLAS_CORETYPE, the warm interpreter was started with, too.
    """
    names = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOCPATH", "USER", "TMPDIR")
    kept = {name: value for name, value in os.environ.items() if name in names or START_ONLY.fullmatch(name)}
    return {**kept, "PYTHONPATH": str(directory / "library"), "NCCL_DEBUG": "WARN", "TOKEN_OF_MINE": "x y", "TZ": "UTC"}


@pytest.fixture(scope="module")
def under_torchrun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What rank 1 finds under torchrun. The directory is called DIRECTORY."""
    directory = tmp_path_factory.mktemp("torchrun")
    script = directory / "payload/user/job.py"
    script.parent.mkdir(parents=True)
    script.write_text(DUMP)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    subprocess.run([*command, f"{directory}/rank-", "-x"], env=_shell(directory), cwd=directory, check=True)
    return dict(json.loads((directory / "rank-1").read_text().replace(str(directory), "DIRECTORY")))


def _in_a_rank(stage: Stage, script: Path, directory: Path, cold: bool) -> dict[str, Any]:
    played = stage.play(
        world=2, workload="script", payload=str(stage.user.parent), environment=_shell(directory),
        params={"file": str(script), "cwd": str(directory), "args": [f"{directory}/rank-", "-x"], "cold": cold},
    )  # fmt: skip
    assert played.codes == {0: 0, 1: 0}, played.log(1)
    return dict(json.loads((directory / "rank-1").read_text()))


#: Variables of torchrun whose values depend on the launcher, the port, or the number of nodes.
OTHER_VALUES = {
    "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
}  # fmt: skip
#: Variables that only ccbed sets.
ADDED = {
    "CCBED_BACKEND", "CCBED_CHECKPOINTS", "CCBED_DATA", "CCBED_EPOCH", "CCBED_EVENTS", "CCBED_INCARNATION",
    "CCBED_NODE_NAME", "CCBED_OUT", "CCBED_RESUME", "CCBED_RUN", "CCBED_SEED", "CCBED_WATCH_HOLDS", "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME", "NODE_RANK",
}  # fmt: skip
#: Variables that load the watcher into a new interpreter.
FOR_THE_WATCHER = {"PYTHONPATH", "CCBED_WATCH", "CCBED_WATCH_EVENTS"}


def _user_file(stage: Stage, name: str, text: str) -> Path:
    stage.user.mkdir(parents=True, exist_ok=True)
    (stage.user / name).write_text(text)
    return stage.user / name


def _play(stage: Stage, text: str, shell: dict[str, str], **params: Any) -> Played:
    """Play a script on one rank with this environment of its user."""
    script = _user_file(stage, "job.py", text)
    values = {"file": str(script), "cwd": str(stage.directory), **params}
    payload = str(stage.user.parent)
    return stage.play(world=1, workload="script", payload=payload, environment=shell, params=values)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_script_finds_what_it_finds_under_torchrun(
    stage: Stage, tmp_path: Path, under_torchrun: dict[str, Any], cold: bool
) -> None:
    script = _user_file(stage, "job.py", DUMP)
    expected: dict[str, Any] = json.loads(json.dumps(under_torchrun).replace("DIRECTORY", str(tmp_path)))
    facts = _in_a_rank(stage, script, tmp_path, cold)
    environ, expected_environ = facts.pop("environ"), expected.pop("environ")
    differing = {name for name in {**environ, **expected_environ} if environ.get(name) != expected_environ.get(name)}
    assert differing == OTHER_VALUES | ADDED | (FOR_THE_WATCHER if cold else set())
    path, expected_path = facts.pop("path"), expected.pop("path")
    assert [entry for entry in path if entry != str(ROOT)] == _with_events(expected_path, cold)
    assert facts == expected


def _with_events(path: list[str], cold: bool) -> list[str]:
    """The expected path with ccbed's directories: at the end, or in a new interpreter around the user's PYTHONPATH."""
    others = [entry for entry in path if entry != str(ROOT)]
    site, own = (str(ROOT / "orchestrator/rank" / name) for name in ("watcher/site", "user"))
    return [others[0], site, others[1], own, *others[2:]] if cold else [*others, own]


def test_a_users_module_named_as_one_of_ccbed_is_theirs(stage: Stage) -> None:
    for name in ("orchestrator", "agent", "node", "utils"):
        _user_file(stage, f"{name}.py", f"word = 'own {name}'\n")
    text = "import orchestrator, agent, node, utils\nprint(orchestrator.word, agent.word, node.word, utils.word)\n"
    played = _play(stage, text + "raise SystemExit(3)\n", _shell(stage.directory))
    assert played.codes == {0: 3}, played.log(0)
    assert "own orchestrator own agent own node own utils" in played.log(0)
    assert played.of("rank.error")[0]["message"] == "the program exited with code 3"


@pytest.mark.parametrize(
    ("shell", "cause"),
    [
        ({"PYTHONHASHSEED": "5"}, ["PYTHONHASHSEED"]),
        ({"TORCHINDUCTOR_FREEZING": "1", "LD_PRELOAD": ""}, ["LD_PRELOAD", "TORCHINDUCTOR_FREEZING"]),
        ({"NCCL_DEBUG": "INFO", "TORCH_NCCL_BLOCKING_WAIT": "1", "CUDA_LAUNCH_BLOCKING": "1"}, None),
    ],
)
def test_what_takes_effect_only_at_the_start_of_an_interpreter_starts_one(
    stage: Stage, shell: dict[str, str], cause: list[str] | None
) -> None:
    text = "import os, sys\nprint('warm' if 'torch' in sys.modules else 'cold', hash('x'), os.getpid())\n"
    played = _play(stage, text, {**_shell(stage.directory), **shell})
    (start,) = played.of("rank.start")
    assert start.get("cold") == cause
    assert f"{'cold' if cause else 'warm'} " in played.log(0) and f" {start['pid']}\n" in played.log(0)
    if "PYTHONHASHSEED" in shell:
        environ = {"PYTHONHASHSEED": "5"}
        hashed = subprocess.check_output([sys.executable, "-c", "print(hash('x'))"], env=environ, text=True)
        assert f"cold {hashed.strip()} " in played.log(0)


def test_a_sitecustomize_of_the_user_starts_an_interpreter(stage: Stage) -> None:
    library = stage.directory / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text("print('customized')\n")
    played = _play(stage, "print('ran')\n", _shell(stage.directory))
    assert played.of("rank.start")[0]["cold"] == [str(library / "sitecustomize.py")]
    assert "customized" in played.log(0) and "ran" in played.log(0)


def test_threads_and_settings_of_the_user_count(stage: Stage) -> None:
    text = (
        "import os, torch, torch.distributed as d\n"
        "print(torch.get_num_threads(), d.get_debug_level(), os.environ['GLOO_SOCKET_IFNAME'])\n"
    )
    chosen = {"OMP_NUM_THREADS": "2", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "GLOO_SOCKET_IFNAME": "eth7"}
    assert "2 DebugLevel.DETAIL eth7" in _play(stage, text, {**_shell(stage.directory), **chosen}).log(0)


def test_without_an_environment_of_the_user_the_nodes_counts(stage: Stage) -> None:
    script = _user_file(stage, "job.py", "import os\nprint(os.environ['PATH'], os.environ['OMP_NUM_THREADS'])\n")
    params = {"file": str(script), "cwd": str(stage.directory)}
    played = stage.play(world=1, workload="script", payload=str(stage.user.parent), params=params)
    assert f"{os.environ['PATH']} 1" in played.log(0)


def test_the_error_file_of_a_rank_is_read(stage: Stage) -> None:
    text = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError("no luck")

main()
"""
    played = _play(stage, text, _shell(stage.directory), cold=True)
    assert played.codes == {0: 1}
    assert rank_processes.read_error(str(played.out / "n0"), 0) == "ValueError: no luck"
    assert rank_processes.read_error(str(played.out / "n0"), 1) is None


@pytest.mark.parametrize(
    "after", ["", "sys.stdout.close()", "sys.__stderr__.close()"], ids=["", "closed", "real closed"]
)
def test_a_script_that_replaces_or_closes_its_output_ends_as_under_torchrun(stage: Stage, after: str) -> None:
    text = f"import io, sys\nsys.stdout = sys.stderr = io.StringIO()\n{after}\n"
    assert _play(stage, text, _shell(stage.directory)).codes == {0: 0}
