"""Runs a user's script on every rank with torchrun's environment; its exit codes decide the verdict."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..model.frozen import dataclass
from ..model.trial import parse_stop

if TYPE_CHECKING:
    from ..rank.runtime import context

METRICS: Mapping[str, tuple[str, str]] = {}
CHECKS: tuple[str, ...] = ("no-hang",)
#: Whether the script resumes with another number of ranks is its own affair.
RESIZES = True
#: These judge a run with planned faults by what the watcher recorded.
CHECKS_OF_FAULTS: tuple[str, ...] = (
    "resumed-from", "resumed-newest", "resume-complete", "no-step-lost", "replay-equal", "replicas-identical",
    "bit-exact",
)  # fmt: skip
#: Where the watcher can hold a rank of a script.
PHASES = ("backward", "data", "forward", "optimizer", "save", "save-during", "save-after", "load")
#: What the watcher does inside of a rank on the order of a fault.
ACTS = ("flip", "run-out-of-memory", "spin", "tear")
#: A script begins with the random states of ``python FILE.py``, not with seeds of ccbed.
SEEDED = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters.

    file         the script
    module       a module that is run instead of a script, as by python -m
    args         arguments of the script; {out} in them is a directory that each run has for itself
    exec_        a program with its first arguments that is started as a new process instead of the warm rank
    step_regex   regular expression for steps in the output: group step (or the first group), and optionally loss
    cwd          the working directory
    stop_at      ends the run on purpose, after a planned fault is recovered: step=200, after-save=3 or 10m
    root         the project, which is copied where nodes cannot run the script in place (default: its git work tree, or its directory)
    cold         start a new interpreter instead of the warm rank
    grace_s      seconds from SIGTERM to SIGKILL where the ranks are to end
    save_grace_s   seconds for which a node whose ranks are to end waits for a save that is under way (default: it is cut off)
    timeout_s    seconds without a step: then the script has stalled (default: 30 s or 20 steps, and only while no rank works)
    exit_timeout_s   seconds for the script's threads and exit handlers after its last line; then the rank fails
    launcher     the job's own launcher, once per node: torchrun, torchrun-best, or a command with {rank} {nnodes} {master_addr} …
    checkpoints  patterns of files that are checkpoints although torch does not write them: out/*.bin
    map          in references, a path in the arguments becomes a directory of their own below another one: /ckpt=/scratch/references
    nproc        of a launcher: workers per node ({nproc})
    """

    file: str = ""
    module: str = ""
    args: tuple[str, ...] = ()
    exec_: tuple[str, ...] = ()
    step_regex: str | None = None
    cwd: str | None = None
    root: str | None = None
    cold: bool = False
    stop_at: str | None = None
    grace_s: float = 0.0
    save_grace_s: float = 0.0
    timeout_s: float | None = None
    exit_timeout_s: float = 300.0
    launcher: str = ""
    nproc: int = 1
    checkpoints: tuple[str, ...] = ()
    map: tuple[str, ...] = ()


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    problems = [*_program_problems(params), *_stop_problems(params)]
    if params.step_regex is not None:
        try:
            if not re.compile(params.step_regex).groups:
                problems.append(f"step_regex: must have a group that matches the step (got {params.step_regex!r})")
        except re.error as error:
            problems.append(f"step_regex: not a regular expression: {error} (got {params.step_regex!r})")
    if params.launcher:
        from ..rank.runtime import launcher

        problems += [f"launcher: {problem}" for problem in launcher.find_problems(params.launcher)]
    problems += [
        f"map: must be /PATH=/DIRECTORY (got {text!r})" for text in params.map if not re.fullmatch(r"/[^=]+=/.*", text)
    ]
    if params.nproc < 1:
        problems.append(f"nproc: must be >= 1 (got {params.nproc})")
    if not params.exit_timeout_s > 0:
        problems.append(f"exit_timeout_s: must be > 0 (got {params.exit_timeout_s})")
    graces = {"grace_s": params.grace_s, "save_grace_s": params.save_grace_s}
    problems += [f"{name}: must be >= 0 (got {value})" for name, value in graces.items() if value < 0]
    if params.timeout_s is not None and not params.timeout_s > 0:
        problems.append(f"timeout_s: must be > 0 (got {params.timeout_s})")
    return problems


def _program_problems(params: Params) -> Iterator[str]:
    if not params.file and not params.module and not params.exec_:
        yield "file: must name a script (or give module a module, or exec_ a program)"
    if params.file and params.module:
        yield f"module: excludes a file (got {params.module!r} and {params.file!r})"
    if params.root is not None and params.file and not Path(params.file).is_relative_to(params.root):
        yield f"root: must contain the script {params.file} (got {params.root!r})"


def _stop_problems(params: Params) -> Iterator[str]:
    try:
        parse_stop(params.stop_at or "1s")
    except ValueError as error:
        yield f"stop_at: {error} (got {params.stop_at!r})"


def last_step(params: Params, data: str | None = None) -> int | None:
    """Not known: only the script knows its number of steps."""
    return None


def run(ctx: context.RankContext) -> None:
    """Run the program. Raises its SystemExit. A cold program replaces this process, and its exit code is the rank's."""
    from ..rank.runtime import isolation

    params: Params = ctx.params
    ctx.result["steps"] = None
    if ctx.gang.work_dir:
        isolation.prepare_work_dir(ctx.gang.work_dir)
    directory = isolation.current_directory(ctx.gang.work_dir, params.cwd)
    if directory:
        os.chdir(directory)
    module = Path(__file__).parent.parent / "rank" / "user"
    script = isolation.on_node(ctx.gang.work_dir, params.file) if params.file else ""
    if params.launcher:
        from ..rank.runtime import launcher

        target = ("-m", params.module) if params.module else (script,) if script else ()
        search_path = (str(module.parent / "watcher" / "site"), str(module))
        launcher.run(ctx, (*params.exec_, *target), search_path)
    elif params.exec_ or params.cold or ctx.start_only:
        _run_cold(ctx, script, module)
    else:
        _run_warm(ctx, script, module)


def _run_warm(ctx: context.RankContext, script: str, module: Path) -> None:
    """Run the script in this process, which has imported torch. Raises SystemExit unless its code is 0, and ScriptFailed."""
    from ..rank.runtime import interpreter, opened_files, program

    params: Params = ctx.params
    at_start = interpreter.environment_at_start()
    interpreter.imitate_start(script, params.args, ctx.gang.payload, module, at_start)
    if params.step_regex:
        from ..rank.user import ccbed_events

        sys.stdout = _StepReporter(sys.stdout, re.compile(params.step_regex), ccbed_events.step)
    program.prepare()
    watcher = interpreter.load_watcher(module.parent / "watcher")
    interpreter.hide_modules()
    watcher.install(ctx.gang.out, via="warm", notify=ctx.report_watched)
    end = opened_files.begin(f"{ctx.gang.out}/opened-r{ctx.rank}.jsonl") if ctx.gang.isolation else None
    failure = program.execute(script, params.module)
    if end:
        end()
    unflushed = program.finish(params.exit_timeout_s, lambda message: ctx.report_error("exit-timeout", message))
    if failure:
        raise failure
    if unflushed:
        raise SystemExit(unflushed)


def _run_cold(ctx: context.RankContext, script: str, module: Path) -> None:
    """Replace this process by the program. Raises ProgramMissing."""
    params: Params = ctx.params
    site = module.parent / "watcher" / "site"
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"), str(module))))
    watch = {"PYTHONPATH": path, "CCBED_WATCH": ctx.gang.out, "CCBED_WATCH_EVENTS": ctx.events_path}
    target = ("-m", params.module) if params.module else filter(None, (script,))
    command = [*(params.exec_ or (sys.executable, "-u")), *target, *params.args]
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; a program that torchrun starts does not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, {**os.environ, **watch})  # noqa: S606
    except OSError as error:
        raise ProgramMissing(f"{command[0]}: cannot be started: {error.strerror}") from None


class ProgramMissing(Exception):
    kind = "exec"


class _StepReporter:
    """A text stream that forwards everything and reports the steps in it."""

    def __init__(self, out: IO[str], pattern: re.Pattern[str], report: Callable[[int, float | None], None]) -> None:
        self._out, self._pattern, self._report, self._line = out, pattern, report, ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._report_step(line)
        return self._out.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._out, name)

    def _report_step(self, line: str) -> None:
        match = self._pattern.search(line)
        if match:
            named = match.groupdict()
            self._report(int(named.get("step") or match[1]), float(named["loss"]) if named.get("loss") else None)
