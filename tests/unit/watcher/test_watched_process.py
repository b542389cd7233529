"""The watcher in a Python process of a job: what it records, and that the script notices nothing."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import pytest

from orchestrator.rank.watcher import importlib_bootstrap
from orchestrator.rank.watcher.budget import budget

from . import jobs

STEPS = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""


def test_a_process_with_torch_records_its_steps_and_its_end(tmp_path: Path) -> None:
    watched = jobs.run(tmp_path, STEPS)
    assert (watched.code, watched.output) == (0, "")
    assert [line["k"] for line in watched.lines if line["k"] in ("begin", "torch", "end")] == ["begin", "torch", "end"]
    assert watched.lines[0]["via"] == "site"
    assert [line["n"] for line in watched.of("step")] == [1, 2, 3]
    assert watched.of("problem") == []


def costly(rank: int) -> None:
    """States cost so much that few are recorded, however long a busy machine makes a step."""
    budget._cost_s = lambda kind: 1e6  # type: ignore[method-assign]
    exec(STEPS.replace("range(3)", "range(6)"), {})


def test_after_a_start_generators_and_rates_are_known_at_each_step(tmp_path: Path) -> None:
    (lines,) = jobs.fork(tmp_path, costly, CCBED_WATCH_EVERY="64")
    known = {line["n"]: line for line in jobs.of(lines, "state") if "rng" in line}
    known |= {line["n"] - 1: line for line in jobs.of(lines, "step") if "rng" in line}
    assert sorted(known) == [*range(6)]
    full = {line["n"] for line in jobs.of(lines, "state") if "rng" in line}  # of a busy machine more of them
    first = min((n for n in known if n not in full), default=0)
    rates = {n for n, line in known.items() if line.get("lr")}
    assert rates == {0, 1, *full, first}, "states, and the first moment; then nothing changes"


CATCHING = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
class Own(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x.clone()
    @staticmethod
    def backward(context, gradient): raise RuntimeError("of the script")
for case in ("whole", "twice", "of the script"):
    loss = model(torch.ones(3, 4)).square().sum()
    if case != "of the script":
        loss.backward()
    if case == "whole":
        optimizer.step()
    try:
        (Own.apply(loss) if case == "of the script" else loss).backward()
    except RuntimeError:
        pass
"""


def test_an_error_of_torch_in_a_step_is_recorded_and_one_of_the_script_is_not(tmp_path: Path) -> None:
    (lines,) = jobs.fork(tmp_path, lambda rank: exec(CATCHING, {}))
    raised = jobs.of(lines, "raised")
    assert [(line["n"], line["where"]) for line in raised] == [(1, "the backward pass")] * 2
    assert all("backward through the graph a second time" in line["error"] for line in raised)


REPLACED = """
import os, sys
if "again" not in sys.argv:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
sys.stdout.close()
sys.stdout = sys.stderr = None
"""


def test_a_program_that_replaces_itself_and_closes_its_output_is_recorded(tmp_path: Path) -> None:
    watched = jobs.run(tmp_path, REPLACED + STEPS)
    assert (watched.code, watched.output) == (0, "")
    assert [line["n"] for line in watched.of("step")] == [1, 2, 3]


NOT_LOADED: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "an isolated interpreter": (("-I",), {}),
    "a replaced PYTHONPATH": ((), {"PYTHONPATH": "."}),
    "no rank": ((), {"RANK": ""}),
    "no directory": ((), {"CCBED_WATCH": ""}),
}


@pytest.mark.parametrize("case", NOT_LOADED)
def test_where_the_watcher_is_not_loaded_there_is_no_record(tmp_path: Path, case: str) -> None:
    options, environment = NOT_LOADED[case]
    script = "import sys\nprint([name for name in sys.modules if 'ccbed' in name or name == 'watcher'])\n"
    watched = jobs.run(tmp_path, script, options=options, **environment)
    assert (watched.code, watched.output, watched.lines) == (0, "[]\n", [])


def test_a_directory_that_cannot_be_written_is_reported_and_the_script_goes_on(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = 'not the real one'\n")
    watched = jobs.run(tmp_path, "import torch\nprint('done')\n", CCBED_WATCH="/proc/1/nowhere")
    assert watched.code == 0
    assert watched.output.splitlines()[0] == "done"
    assert "the watcher cannot write into /proc/1/nowhere" in watched.output


def test_a_module_of_the_user_that_is_called_torch_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = 'not the real one'\n")
    watched = jobs.run(tmp_path, "import torch\nprint(torch.__version__)\n")
    assert (watched.code, watched.output) == (0, "not the real one\n")
    assert [line["where"] for line in watched.of("problem")] == ["install"]


USERS = {
    "its own": ("import builtins\nbuiltins.mark_of_user = 'loaded'\n", "loaded"),
    "one that raises": ("raise ValueError('of the user')\n", "ValueError: of the user"),
}


@pytest.mark.parametrize("case", USERS)
def test_the_users_sitecustomize_is_loaded_as_without_the_watcher(tmp_path: Path, case: str) -> None:
    text, expected = USERS[case]
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(text)
    script = "import builtins, sys\nprint(getattr(builtins, 'mark_of_user', None), sys.modules.get('sitecustomize') is None)\n"
    outputs = []
    for path in (f"{jobs.SITE}{os.pathsep}{tmp_path / 'site'}", str(tmp_path / "site")):
        watched = jobs.run(tmp_path, script, PYTHONPATH=path)
        assert watched.code == 0 and expected in watched.output
        outputs.append(watched.output.splitlines()[-1])
    assert outputs[0] == outputs[1]


COMPILED = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
forward = torch.compile(model, backend="eager")
step = torch.compile(optimizer.step, backend="eager")
for _ in range(3):
    optimizer.zero_grad()
    forward(torch.ones(3, 4)).sum().backward()
    step()
"""


def test_a_compiled_step_is_counted_or_unknown_and_the_watcher_is_not_compiled(tmp_path: Path) -> None:
    watched = jobs.run(tmp_path, COMPILED)
    assert (watched.code, watched.of("problem")) == (0, []), watched.output
    assert [line["n"] for line in watched.of("step")] == [1, 2, 3] or watched.of("unknown")


def test_a_process_that_never_imports_torch_records_nothing(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "print('no torch')").lines == []


SPAWNED = """
import multiprocessing
import torch
def save(path):
    torch.save(torch.ones(1), path)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=save, args=("sample.pt",))
    process.start()
    process.join()
    assert process.exitcode == 0
"""


def test_a_helper_that_the_rank_spawns_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    watched = jobs.run(tmp_path, SPAWNED)
    assert (watched.code, len(watched.of("begin")), watched.of("save")) == (0, 1, [])
    assert (tmp_path / "sample.pt").exists()


TRANSPARENT = """
import traceback, torch
parameter = torch.nn.Parameter(torch.ones(2))
try:
    (parameter * 2).backward()
except RuntimeError:
    traceback.print_exc()
try:
    torch.load("missing.pt")
except FileNotFoundError:
    traceback.print_exc()
"""


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.11 keeps the traceback of an exception that is raised again"
)
def test_the_watcher_is_in_no_traceback_of_the_script(tmp_path: Path) -> None:
    watched = jobs.run(tmp_path, TRANSPARENT)
    assert watched.code == 0
    assert "grad can be implicitly created only for scalar outputs" in watched.output
    assert "missing.pt" in watched.output
    assert str(Path(importlib_bootstrap.__file__).parent) not in watched.output


def test_a_warning_about_the_caller_names_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.4 warns in ``torch.load``."""

    def load() -> None:
        warnings.warn("about the caller", FutureWarning, stacklevel=2)

    observed = importlib_bootstrap.observe(load, lambda args, kwargs: None)
    with pytest.warns(FutureWarning) as caught:
        observed()
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]


RESTORED = """
import torch
from torch.utils.data import DataLoader
state = torch.get_rng_state()
torch.set_rng_state(state)
loader = iter(DataLoader(torch.ones(4, 4)))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    model(batch).sum().backward()
    optimizer.step()
torch.set_rng_state(state)
"""


def test_where_a_generator_was_restored_and_then_drawn_from_is_recorded_with_the_first_state(tmp_path: Path) -> None:
    watched = jobs.run(tmp_path, RESTORED)
    assert (watched.code, watched.output, watched.of("problem")) == (0, "", [])
    places = [line.get("places") for line in watched.of("state") if line["n"] == 0]
    assert places == [["restored at job.py:5", "drawn from by a DataLoader at job.py:6"]]
    assert not any("places" in line for line in watched.of("state") if line["n"])
