"""One real bed for the whole session: four nodes and a spare on this machine, ended and checked at the end."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.model.bed import BedSpec
from orchestrator.model.event import Event
from orchestrator.model.launch import Request
from orchestrator.model.plugin import Catalogue
from orchestrator.model.run import Run
from orchestrator.model.trial import Trial
from orchestrator.model.verdict import Verdict
from orchestrator.node.oslayer import processes
from orchestrator.providers.process.process_provider import ProcessProvider
from orchestrator.run import judging, lifecycle
from orchestrator.store import bed_files, bundle

from . import trials
from .stage import Stage, warmed

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a run: exit code, bundle, and verdicts by name."""

    code: int
    run: Run

    @property
    def directory(self) -> Path:
        return Path(self.run.directory)

    def verdict(self, check: str) -> Verdict:
        return next(verdict for verdict in self.run.verdicts if verdict.check == check)

    def outcome(self, check: str) -> str:
        return self.verdict(check).outcome

    def bad(self) -> list[str]:
        return [f"{v.outcome} {v.check}: {v.text}" for v in self.run.verdicts if v.outcome not in ("pass", "skipped")]

    def of(self, *names: str) -> tuple[Event, ...]:
        return self.run.history.of(*names)


@dataclass(kw_only=True)
class Bed:
    """A bed that is up, and the directories around it."""

    state: Path
    runs: Path
    spec: BedSpec
    catalogue: Catalogue

    def run(self, trial: Trial, **more: Any) -> Ran:
        return ran(lifecycle.launch(self.request(trial, **more)).directory, self)

    def request(self, trial: Trial, **more: Any) -> Request:
        given = {"runs": str(self.runs), "command": "ccbed run (test)", "provider": ProcessProvider(self.state), **more}
        return Request(trial=trial, bed=self.spec, catalogue=self.catalogue, state=str(self.state), **given)

    def ccbed(self, *args: str) -> tuple[int, str]:
        """A command line in this process: exit code, and everything that it printed."""
        return ccbed(self.state, *args)

    def unchanged(self) -> bool:
        """Whether `up` finds nothing to change."""
        return "nothing to change" in self.ccbed("up", str(ROOT / "inventories/local.yml"))[1]


def with_damage(bed: Bed) -> Bed:
    """The same bed with the plugins of tests/damage."""
    return replace(bed, catalogue=plugins.discover((trials.DAMAGE,)))


def ran(directory: str, bed: Bed) -> Ran:
    result = judging.conclude(bed.catalogue, Path(directory))
    return Ran(code=result.code, run=bundle.load(Path(directory)))


def ccbed(state: Path, *args: str) -> tuple[int, str]:
    out = io.StringIO()
    own_session = terminal_session.Session(state=state, terminal=terminal.Terminal(out=out, err=out))
    return main.run(args, own_session), out.getvalue()


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    state = tmp_path_factory.mktemp("state") / "ccbed"
    code, output = ccbed(state, "up", str(ROOT / "inventories/local.yml"))
    assert code == 0, output
    spec = bed_files.read(state, "local")
    assert spec is not None
    yield Bed(state=state, runs=tmp_path_factory.mktemp("runs"), spec=spec, catalogue=plugins.discover(()))
    code, output = ccbed(state, "down", "local", "--force")
    assert code == 0, output
    ours = [process.pid for process in processes.scan() if str(state) in _arguments(process.pid)]
    assert ours == [], "nothing of the bed is left"


@pytest.fixture(autouse=True)
def _end_open_run(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that failed in the middle of a run leaves it open: end it, so that the next test finds its bed free."""
    name = next((name for name in ("bed", "box") if name in request.fixturenames), "")
    bed = request.getfixturevalue(name) if name else None
    yield
    if isinstance(bed, Bed) and bed_files.open_run(Path(bed.spec.workdir)) is not None:
        code, output = bed.ccbed("heal", bed.spec.name)
        assert code == 0, output


def _arguments(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture(scope="session", autouse=True)
def _quiet_threads() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def own_interrupts() -> Iterator[None]:
    """SIGINT that a test sends to its own process interrupts what the test calls, and not pytest."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def warm() -> Iterator[subprocess.Popen[str]]:
    with warmed() as process:
        yield process


@pytest.fixture
def stage(warm: subprocess.Popen[str], tmp_path: Path) -> Stage:
    return Stage(warm, tmp_path)
