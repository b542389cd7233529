"""A user's script in a warm rank behaves as ``python FILE.py`` does, to its last word."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .stage import Stage

SCRIPT = """
import os, sys, atexit
import torch, torch.distributed as dist
from helper import word
from ccbed_events import step
atexit.register(lambda: print("goodbye"))
dist.init_process_group("gloo")
x = torch.ones(3)
dist.all_reduce(x)
print(word, sys.argv[1:], __name__, int(x[0]), os.environ["LOCAL_RANK"], os.getcwd())
step(1, loss=0.5)
if dist.get_rank() == 1 and "fail" in sys.argv:
    sys.exit(3)
"""


def test_a_script_runs_unchanged_as_main(stage: Stage) -> None:
    played = stage.script(SCRIPT, args=["--lr", "1"])
    assert played.codes == {0: 0, 1: 0}
    assert f"hello ['--lr', '1'] __main__ 2 0 {stage.directory}" in played.log(1)
    assert "goodbye" in played.log(0)
    assert played.losses(1) == {1: (0.5).hex()}
    assert set(played.finished()) == {0, 1}


def test_a_scripts_exit_code_is_the_ranks(stage: Stage) -> None:
    played = stage.script(SCRIPT, args=["fail"])
    assert played.codes == {0: 0, 1: 3}
    assert played.of("rank.error")[0]["message"] == "the program exited with code 3"


def test_a_scripts_exception_is_in_its_log_and_in_the_event(stage: Stage) -> None:
    played = stage.script("def f():\n    raise ValueError('no luck')\nf()\n")
    assert played.codes == {0: 1, 1: 1}
    errors = sorted(played.of("rank.error"), key=lambda value: value["rank"])
    places = [[frame.rpartition("/")[2] for frame in error["stack"]] for error in errors]
    assert [(error["rank"], error["kind"], error["message"]) for error in errors] == [
        (rank, "ValueError", "no luck") for rank in range(2)
    ]
    assert places == [["job.py:2 f", "job.py:3 <module>"]] * 2
    assert "job.py" in played.log(0) and "ValueError: no luck" in played.log(0)


def test_steps_are_found_in_what_a_script_prints(stage: Stage) -> None:
    text = "for n in (1, 2):\n    print('step', n, 'loss', n / 2)\n"
    played = stage.script(text, step_regex=r"step (?P<step>\d+) loss (?P<loss>\S+)")
    assert played.losses(0) == {1: (0.5).hex(), 2: (1.0).hex()}


def test_a_cold_program_gets_the_same_environment(stage: Stage) -> None:
    text = "import os, ccbed_events; ccbed_events.step(1); print('cold', os.environ['RANK']); raise SystemExit(4)"
    played = stage.script(text, exec_=[sys.executable])
    assert played.codes == {0: 4, 1: 4}
    assert "cold 1" in played.log(1)
    assert len(played.steps(0)) == 1


#: What scripts do at their end. Each prints, or writes into the directory ``out`` beside it.
ENDINGS = {
    "thread": """
import threading, time
def late():
    threading.main_thread().join()
    print("late")
threading.Thread(target=late).start()
""",
    "thread that raises": """
import threading
threading.Thread(target=lambda: 1 / 0).start()
""",
    "daemon thread": """
import threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("main is over")
""",
    "thread pool": """
from concurrent.futures import ThreadPoolExecutor
import time
def late():
    time.sleep(0.1)
    (out / "late").write_text("late")
ThreadPoolExecutor(1).submit(late)
""",
    "processes": """
import multiprocessing, time
from concurrent.futures import ProcessPoolExecutor
def late(name):
    time.sleep(0.05)
    (out / name).write_text(__name__)
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        multiprocessing.get_context(method).Process(target=late, args=(method,)).start()
    multiprocessing.Process(target=time.sleep, args=(1000,), daemon=True).start()
    pool = ProcessPoolExecutor(1)
    pool.submit(late, "pool")
""",
    "exit handlers and finalizers, the last first": """
import atexit, weakref
class Held: pass
held = Held()
weakref.finalize(held, print, "finalized")
atexit.register(print, "exit handler")
class Noisy:
    def __del__(self): print("deleted")
noisy = Noisy()
""",
    "exit handlers that fail": """
import atexit, sys
atexit.register(print, "still called")
atexit.register(lambda: 1 / 0)
atexit.register(lambda: sys.exit(7))
""",
    "open files": """
import gzip, helper
file = open(out / "file", "w"); file.write("a file")
packed = gzip.open(out / "packed.gz", "wb"); packed.write(b"packed")
helper.file = open(out / "helper", "w"); helper.file.write("of a module")
""",
    "logging": """
import logging, logging.handlers
target = logging.FileHandler(out / "log", delay=True)
logging.getLogger().addHandler(logging.handlers.MemoryHandler(100, target=target))
logging.warning("remembered")
""",
    "forked child": """
import atexit, os
atexit.register(lambda: (out / ("child" if child == 0 else "parent")).write_text("over"))
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    raise SystemExit(3)
""",
    "main is the script to the end": """
import atexit, pickle, sys
class Thing: pass
atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Thing()))).__name__, vars(sys.modules["__main__"])["out"]))
""",
    "exception": """
import atexit
atexit.register(print, "exit handler")
def broken():
    left_open = open(out / "file", "w"); left_open.write("written")
    raise KeyError("no luck")
broken()
""",
    "excepthook": "import sys\nsys.excepthook = lambda *error: print('hooked', error[1])\nraise ValueError('no luck')",
    "exit text": "raise SystemExit('a reason')",
    "exit list": "raise SystemExit(['a', 'list'])",
    "exit nothing": "import sys\nsys.exit()",
    "exit large": "raise SystemExit(256 + 5)",
    "exit negative": "raise SystemExit(-1)",
    "exit whole byte": "raise SystemExit(256)",
    "os._exit": "import os\nos._exit(5)",
    "os._exit without failure": "import os\nos._exit(0)",
}
PROLOGUE = "from pathlib import Path\nout = Path(__file__).parent / 'out'\n"


@pytest.mark.parametrize("name", ENDINGS)
def test_a_script_ends_as_python_ends_it(stage: Stage, name: str) -> None:
    played = stage.script(PROLOGUE + ENDINGS[name], world=1, out=True)
    job = stage.user / "job.py"
    ours = contents(stage.user / "out")
    plain = subprocess.run([sys.executable, job], capture_output=True, text=True, check=False, cwd=stage.directory)
    log = [line for line in played.log(0).splitlines() if not line.startswith("ccbed: run ")]
    output = [re.sub("0x[0-9a-f]+", "0x", text) for text in ("\n".join(log), plain.stdout + plain.stderr)]
    assert played.codes == {0: plain.returncode}
    assert sorted(output[0].splitlines()) == sorted(output[1].splitlines())
    assert ours == contents(stage.user / "out")
    assert len(played.of("rank.finished")) == int(plain.returncode == 0 and "os._exit" not in name)
    assert len(played.of("rank.error")) == int(plain.returncode != 0 and "os._exit" not in name)


def contents(directory: Path) -> dict[str, bytes]:
    """What every file holds, and nothing is left of it."""
    values = {}
    for path in sorted(directory.iterdir()):
        values[path.name] = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        path.unlink()
    return values


ASYNC_SAVE = """
import os, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
dist.init_process_group("gloo")
state = {f"weight{dist.get_rank()}": torch.ones(1000)}
dcp.async_save(state, checkpoint_id=out / "checkpoint")
"""


def test_a_checkpoint_that_is_saved_by_the_last_line_is_written(stage: Stage) -> None:
    played = stage.script(PROLOGUE + ASYNC_SAVE, out=True)
    assert played.codes == {0: 0, 1: 0}
    files = sorted(os.listdir(stage.user / "out" / "checkpoint"))
    assert files == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_an_end_that_takes_too_long_is_a_failure_with_its_cause(stage: Stage) -> None:
    text = "import threading\nthreading.Thread(target=threading.Event().wait, name='stuck').start()\n"
    played = stage.script(text, world=1, exit_timeout_s=0.2)
    assert played.codes == {0: 1}
    [error] = played.of("rank.error")
    assert (error["kind"], played.of("rank.finished")) == ("exit-timeout", [])
    assert error["message"] == "the script ended, but threads stuck did not within 0.2 s (exit_timeout_s)"
    assert error["message"] in played.log(0) and "in wait" in played.log(0)


RANDOM = """
import random, numpy, torch
print("drawn", random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed())
"""


def test_an_unseeded_script_draws_other_numbers_on_every_rank_and_in_every_run(stage: Stage) -> None:
    runs = [stage.script(RANDOM, epoch=epoch) for epoch in range(2)]
    logs = [played.log(rank) for played in runs for rank in range(2)]
    drawn = [line.split()[1:] for log in logs for line in log.splitlines() if line.startswith("drawn")]
    assert len(drawn) == 4
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 4


def test_the_steps_of_a_script_are_recorded_without_a_changed_line(stage: Stage) -> None:
    text = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""
    played = stage.script(text)
    assert played.codes == {0: 0, 1: 0}
    for rank in range(2):
        lines = played.watched(rank)
        assert [line["n"] for line in lines if line["k"] == "step"] == [1, 2, 3]
        assert (lines[0]["k"], lines[0]["via"], lines[-1]["k"]) == ("begin", "warm", "end")
        assert not [line for line in lines if line["k"] == "problem"]
    joined = sorted(played.of("rank.joined"), key=lambda value: value["rank"])
    assert joined == [{"rank": rank, "world": 2, "backend": "gloo"} for rank in (0, 1)]
    first = [(value["rank"], value["step"]) for value in played.of("rank.step") if value["mark"] == "first"]
    assert sorted(first) == [(0, 1), (1, 1)]
