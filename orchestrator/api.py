"""ccbed for Python programs: bring a bed up, run trials on it, judge bundles again.

    from orchestrator import api

    with api.Bed.up("inventories/local.yml") as bed:
        result = api.run("dp-ring", bed=bed, fail_node=2).require_pass()
        print(result.sentence, result.page)

No call prints or ends the process. Progress goes to the logger ``ccbed``, warnings of ccbed as WARNING. Every error is a
``CcbedError``: ``problems`` say where and why, ``hint`` is the next step, ``exit_code`` is that of the command line. Inventories,
trials, beds and the state directory are those of the command line. During a call the process has umask 077, and in the main
thread SIGINT and SIGTERM stop the run in order: make one call at a time.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from .model.errors import (
    EXIT_FINDING,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    EXIT_UNKNOWN,
    CcbedError,
    InfrastructureError,
    Interrupted,
    UsageError,
    explain,
)
from .model.frozen import asdict, dataclass
from .model.verdict import Rung, Verdict

if TYPE_CHECKING:
    import pandas

    from .cli.inputs.terminal_session import Session
    from .core.verdict.run_metrics import Metric
    from .model import launch
    from .model.bed import BedSpec

__all__ = [
    "Bed", "CcbedError", "FailedError", "InfrastructureError", "Interrupted", "Outcome", "Result", "Rung", "Trial", "UnknownError",
    "UsageError", "Verdict", "check", "run",
]  # fmt: skip

Outcome = Literal["pass", "fail", "unknown", "broken"]
#: A built-in trial or example by its name, the path of a trial or script, or a trial with the keys of a trial's file.
Trial = str | Path | Mapping[str, Any]
_OUTCOMES: Mapping[int, Outcome] = {EXIT_PASS: "pass", EXIT_FINDING: "fail", EXIT_UNKNOWN: "unknown"}


class FailedError(CcbedError):
    """A verdict fails: a finding about what was tested."""

    exit_code = EXIT_FINDING


class UnknownError(CcbedError):
    """No verdict fails, but whether the run passes is unknown."""

    exit_code = EXIT_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run.

    ``run``: its name; ``bundle``: its directory; ``sentence``: what happened; ``page``: the HTML report, None if there is none.
    ``rungs``: of a training, survived, resumed whole and exact: each holds, does not hold, is unknown or was not asked.
    ``outcome``: ``broken`` is a failure of the bed, not of what was tested; ``exit_code``: 0, 1, 2 or 4, as of `ccbed run`.
    """

    run: str
    bundle: Path
    outcome: Outcome
    exit_code: int
    sentence: str
    verdicts: tuple[Verdict, ...]
    page: Path | None
    rungs: tuple[Rung, ...] = ()

    def __bool__(self) -> NoReturn:
        """A test that asserts a result would pass whatever its outcome is."""
        raise TypeError("a result is neither true nor false: compare its outcome, or call require_pass()")

    @property
    def findings(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.outcome == "fail")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The figures of the run, in SI units, as ``metrics.jsonl`` of the bundle has them; none where there is no such file.

        Example: ``[metric.value for metric in result.metrics if metric.metric == "busbw"]``
        """
        from .core.verdict import run_metrics

        file = self.bundle / "metrics.jsonl"
        return tuple(map(run_metrics.parse, file.read_text().splitlines() if file.is_file() else ()))

    @property
    def time_to_recover(self) -> float | None:
        """Seconds from the fault to the first step after it, of the slowest recovery. None: no recovery, or not known."""
        return max((metric.value for metric in self.metrics if metric.metric == "ttr"), default=None)

    @property
    def phases(self) -> Mapping[str, float]:
        """Phase -> seconds of the slowest recovery; they sum to ``time_to_recover``. ``{"detect": 0.002, "join": 0.031}``"""
        slowest = max(
            (metric for metric in self.metrics if metric.metric == "ttr"), default=None, key=lambda ttr: ttr.value
        )
        return {
            metric.metric.removeprefix("phase "): metric.value
            for metric in self.metrics
            if slowest and metric.rep == slowest.rep and metric.metric.startswith("phase ")
        }

    @property
    def steps_lost(self) -> int | None:
        """Return how many steps were computed and had to be computed again. None: no recovery, or steps are not known."""
        lost = [metric.value for metric in self.metrics if metric.metric == "lost steps"]
        return int(sum(lost)) if lost else None

    @property
    def goodput(self) -> float | None:
        """Share of the run's time that went into steps that were never redone, 0..1. None: no step is known."""
        return next((metric.value for metric in self.metrics if metric.metric == "goodput"), None)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the metrics, a row each. Raises UsageError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise UsageError("to_pandas: pandas is not installed", hint="pip install pandas") from None
        return pandas.DataFrame([asdict(metric) for metric in self.metrics])

    def require_pass(self) -> Result:
        """Return this result if it passes. Raises FailedError, UnknownError, or InfrastructureError for a broken run."""
        __tracebackhide__ = True  # pytest ends its traceback at the caller
        if self.outcome == "pass":
            return self
        next_step = f"run it again: ccbed run {shlex.quote(str(self.bundle))}/trial.json"
        kind = {"fail": FailedError, "unknown": UnknownError}.get(self.outcome, InfrastructureError)
        error = kind(
            f"{self.run}: {self.outcome.upper()}: {self.sentence}",
            hint=f"see {self.page}; {next_step}" if self.page else next_step,
        )
        error.add_note(f"next: {error.hint}")
        raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """A bed that is up. ``nodes``: names of nodes and spares; ``was_up``: whether it was up before ``Bed.up``.

    As a context manager it is taken down at the end of the body, unless it was up before.
    """

    name: str
    inventory: Path
    nodes: tuple[str, ...]
    was_up: bool

    @classmethod
    def up(
        cls,
        inventory: str | Path,
        *,
        prepare: bool | None = None,
        force: bool = False,
        vault_password_files: str | Path | Sequence[str | Path] = (),
    ) -> Bed:
        """Make the bed match its inventory; one that does already is not changed. Options as of `ccbed up`.

        Raises UsageError for errors in the inventory, InfrastructureError.
        """
        with _invocation(["up", str(inventory)], vault_password_files=vault_password_files) as session:
            from .app import beds
            from .app.up import up

            spec = beds.wanted(session, Path(inventory))
            was_up = beds.read(session, spec.name) is not None
            up(session, spec, force=force, quiet=True, prepare=prepare)
        return cls._of(spec, was_up=was_up)

    @classmethod
    def attach(cls, name: str | None = None) -> Bed:
        """Return a bed that is up; ``name`` may be left out if one is. It stays up at the end of a ``with`` statement.

        Raises UsageError for a bed that is not up. Example: ``ccbed.run("train.py", bed=ccbed.Bed.attach("lab"))``
        """
        with _invocation(["status", *filter(None, (name,))]) as session:
            from .app import beds

            return cls._of(beds.choose(session, name), was_up=True)

    @classmethod
    def _of(cls, spec: BedSpec, *, was_up: bool) -> Bed:
        nodes = tuple(node.name for node in spec.nodes)
        return cls(name=spec.name, inventory=Path(spec.inventory), nodes=nodes, was_up=was_up)

    def down(self, *, force: bool = False) -> None:
        """End every process of the bed; verified. A bed that is not up is left alone. ``force``: also during a run.

        Raises UsageError while a run is open, InfrastructureError for what could not be ended.
        """
        with _invocation(["down", self.name]) as session:
            from .app import beds, down

            spec = beds.read(session, self.name)
            if spec is not None:
                down.end(session, spec, force=force)

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.was_up:
            self.down(force=True)


def run(
    trial: Trial,
    *,
    bed: Bed | str | None = None,
    params: Mapping[str, Any] | None = None,
    args: str | Sequence[str] = (),
    nodes: int | str | None = None,
    ranks_per_node: int | None = None,
    fail_node: int | str | Sequence[int | str] = (),
    at: str | Sequence[str] = (),
    recovery: str | None = None,
    max_restarts: int | None = None,
    seed: int | None = None,
    wall: str | None = None,
    reference: bool | None = None,
    require: str | None = None,
    accept: str | Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    secret: str | Sequence[str] = (),
    data_dir: str | Path | None = None,
    runs: str | Path = "runs",
    plugins: str | Path | Sequence[str | Path] = (),
    twin: bool | None = None,
) -> Result:
    """Run a trial on a bed that is up, and judge it. A failed run is a result, not an error: see ``Result.require_pass``.

    ``bed``: may be left out if one bed is up. ``params``: parameters of the workload; ``args``: arguments of a script, or a text
    of them as in a shell; ``env``: variables of all ranks; ``runs``: the directory of bundles; ``plugins``: folders of plugins.
    ``require``: the rung that a training must reach: survived, whole or exact; ``accept``: parts of its state that it may lose.
    The others are the options of `ccbed run`, such as ``fail_node=2, at="step=20,phase=allreduce"`` and ``wall="90s"``.
    ``twin``: the former name of ``reference``.

    Raises UsageError, and nothing was started; InfrastructureError; Interrupted, and ``hint`` is the command that resumes.
    """
    reference = twin if reference is None else reference
    if repr(reference) not in ("None", "True", "False"):
        raise UsageError(f"reference: must be True, False or None (got {reference!r})")
    if wrong := [name for name in env or {} if not name or "=" in name]:
        raise UsageError(f"env: no name of a variable: {wrong[0]!r}")
    args = _arguments(args)
    given = {
        "bed": bed.name if isinstance(bed, Bed) else bed,
        "nodes": _text(nodes),
        "ranks_per_node": _text(ranks_per_node),
        "fail_node": _texts(fail_node),
        "at": _texts(at),
        "recovery": recovery,
        "max_restarts": _text(max_restarts),
        "seed": _text(seed),
        "wall": wall,
        "reference": reference,
        "require": require,
        "accept": ",".join(_texts(accept)) or None,
        "env": tuple(f"{name}={value}" for name, value in (env or {}).items()),
        "secret": _texts(secret),
        "data_dir": None if data_dir is None else Path(data_dir),
        "runs_dir": Path(runs),
        **{f"param_{name}": value for name, value in (params or {}).items()},
    }
    given = {name: value for name, value in given.items() if value is not None and value != ()}
    name = "trial.json" if isinstance(trial, Mapping) else str(trial)
    with _invocation(_words(name, given, args), plugins=plugins) as session:
        from .app import requests, trials
        from .app import run as run_trial

        ref = requests.TrialRef(name=name, args=args, content=trial if isinstance(trial, Mapping) else None)
        source = trials.opened(ref, session.catalogue)
        if args and not source.is_script:
            raise UsageError(
                f"{source.label} takes no arguments of its own (got {shlex.join(args)})", hint="use params"
            )
        wanted = {name: value for name, value in (params or {}).items() if f"param_{name}" in given}
        request = requests.build(requests.RunRequest, {**given, "trial": ref, "params": wanted, "tee": "none"})
        result = run_trial.run(session, request, source)
        if result.code == EXIT_INTERRUPTED:
            raise Interrupted(f"{result.directory}: interrupted", hint=f"ccbed resume {result.directory}")
        return _result(result)


def check(
    bundle: str | Path,
    *,
    accept_changed: bool = False,
    runs: str | Path = "runs",
    plugins: str | Path | Sequence[str | Path] = (),
) -> Result:
    """Verify the checksums of a bundle and judge its run again; needs no bed. Options as of `ccbed check`.

    ``bundle``: its directory, or a name in ``runs``, or ``latest``. Raises UsageError for a run that does not exist, and
    another CcbedError with exit code 2 for evidence that was changed or is not complete.
    """
    with _invocation(["check", str(bundle)], plugins=plugins) as session:
        from .app import check

        request = check.CheckRequest(run=str(bundle), runs_dir=Path(runs), accept_changed=accept_changed)
        return _result(check.run(session, request))


class _LogStream(io.StringIO):
    """Logs what is written, line by line."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            logging.getLogger("ccbed").log(self._level, "%s", line)
        return len(text)


@contextmanager
def _invocation(
    words: Sequence[str],
    *,
    plugins: str | Path | Sequence[str | Path] = (),
    vault_password_files: str | Path | Sequence[str | Path] = (),
) -> Iterator[Session]:
    """The session of one call. ``words``: the command line that does the same. An error has its next step as a note."""
    from .app import session as sessions
    from .cli.inputs.terminal_session import OnTerminal, Session
    from .cli.render import terminal
    from .prepare.vault import Vault

    logger = logging.getLogger("ccbed")
    if not logger.handlers:  # without any handler, logging itself prints warnings on stderr
        logger.addHandler(logging.NullHandler())
    sessions.complete_environment()
    session = Session(
        state=sessions.state_dir(),
        terminal=terminal.Terminal(out=_LogStream(logging.INFO), err=_LogStream(logging.WARNING)),
        follow=OnTerminal(results=False),
        argv=tuple(words),
        umask=os.umask(0o077),
        plugins=tuple(map(Path, _texts(plugins))),
        vault=Vault(files=_texts(vault_password_files)),
    )
    try:
        yield session
    except (CcbedError, OSError) as error:
        explained = error if isinstance(error, CcbedError) else explain(error)
        if explained is None:
            raise
        if explained.hint:
            explained.add_note(f"next: {explained.hint}")
        if explained is error:
            raise
        raise explained from error
    finally:
        session.close()
        os.umask(session.umask)


def _result(result: launch.Result) -> Result:
    from .app import ended
    from .core.verdict import ladder
    from .store import bundle
    from .views import training

    run, directory = ended.judged(result), Path(result.directory).absolute()
    view = training.view(run)
    rungs = ladder.ladder(run, view)
    page = directory / bundle.REPORT / "index.html"
    return Result(
        run=result.run,
        bundle=directory,
        outcome=_OUTCOMES.get(result.code, "broken"),
        exit_code=result.code,
        sentence=ladder.headline(run, view, rungs),
        rungs=rungs,
        verdicts=result.verdicts,
        page=page if page.is_file() else None,
    )


def _words(name: str, given: Mapping[str, Any], args: Sequence[str]) -> list[str]:
    """The command line for the record: ``run dp-ring --fail-node 2``."""
    words = ["run", name]
    for option, value in given.items():
        flag = f"--{option.removeprefix('param_').strip('_').replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [word for item in _texts(value) for word in (flag, item)]
    return [*words, "--", *args] if args else words


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _texts(value: Any) -> tuple[str, ...]:
    """The texts of one value, or of several."""
    several = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    return tuple(map(str, value)) if several else (str(value),)


def _arguments(args: str | Sequence[str]) -> tuple[str, ...]:
    """The arguments of a script. Raises UsageError for a quote without its end."""
    try:
        return tuple(shlex.split(args)) if isinstance(args, str) else tuple(args)
    except ValueError as error:
        raise UsageError(f"args: {error}", hint="give a list of arguments") from None
