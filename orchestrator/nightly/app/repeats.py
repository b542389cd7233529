"""Run a trial again and again: the runs in one directory, as a night of one cell, and one report over all of them.

Runs that were interrupted go on with `--resume DIR`, or `ccbed resume DIR`, which repeats the recorded command line with it.
The rounds of `ccbed sweep` are such runs.
"""

from __future__ import annotations

import datetime
import functools
import json
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ... import __version__
from ...app import run as run_one
from ...app import trials
from ...app.places import duration, short_path
from ...app.requests import RunRequest
from ...app.session import Session
from ...core.verdict import sentence
from ...model import codec
from ...model.bed import BedSpec
from ...model.errors import EXIT_INTERRUPTED, CcbedError, Interrupted, UsageError
from ...model.events import RunEnd
from ...model.frozen import dataclass, field, replace
from ...model.launch import Result
from ...model.trial import Trial
from ...run import judging
from ...store import bed_files, bundle, paths
from .. import bundle_records, distribution, night_files, runner, selector
from .. import row_states as night_rows
from ..suite import RUNS, Cell, Night, Row, Suite

#: Starts a run: the directory of its bundle's parent, why it is started, and the open run to resume -> its result.
Once = Callable[[Path, str, Path | None], Result]
RESUME = "--resume"
#: The beginning of the suite's text, with the verb: it tells repeated runs from a night.
_TEXT = "# ccbed "
#: Verb -> the document of all its runs, in their directory. It is written last: without it the command has not ended.
_DOCUMENTS = {"run": "repeat.json", "sweep": "sweep.json"}
#: Figures over all runs, and a link to each, in their directory.
SUMMARY = "report/summary.md"
#: Verb -> the option with the number of its runs.
_OPTIONS = {"run": "--repeat", "sweep": "--rounds"}


@dataclass(kw_only=True)
class Repeats:
    """The same trial again and again. The first error ends the repeats; ``error`` is that, ``results`` are those of all ended runs.

    ``on_result``: follows each run.
    """

    session: Session
    directory: Path
    once: Once
    on_result: Callable[[Result], None]
    results: list[Result] = field(default_factory=list)
    error: CcbedError | None = None

    def obstacle(self, cell: Cell) -> str:
        return ""

    def obstacle_to_all(self) -> str:
        return ""

    def restore(self) -> Mapping[str, str]:
        return {}

    def figure(self, run: str, metric: str) -> float | None:
        return None

    def launch(self, cell: Cell, repeat: int, open_run: str, again: str = "") -> runner.Attempt:
        began = time.monotonic()
        try:
            result = self._launch(night_files.reason(self.directory.name, cell.name, repeat), open_run)
        except KeyboardInterrupt:
            self.error = self._interrupted("interrupted")
            raise
        except Interrupted as error:
            self.error = self._interrupted(*error.problems)
            raise
        except CcbedError as error:
            self.error = error
            raise
        self.results.append(replace(result, judged=None))
        if result.code == EXIT_INTERRUPTED:
            self.error = self._interrupted(f"run {result.run} was interrupted")
        bundle.link_latest(self.directory.parent, f"{self.directory.name}/{RUNS}/{result.run}")
        self.on_result(result)
        if (left := cell.repeats - repeat - 1) and not self.session.is_json:
            took_s = time.monotonic() - began
            self.session.terminal.narrator.line(
                f"{repeat + 1} of {cell.repeats} runs done, about {duration(left * took_s)} left"
            )
        return runner.Attempt(run=result.run, exit=result.code)

    def _launch(self, reason: str, open_run: str) -> Result:
        runs = self.directory / RUNS
        opened = runs / open_run if open_run else None
        return finish_or_run(self.session, opened, lambda resumed: self.once(runs, reason, resumed))

    def _interrupted(self, *problems: str) -> Interrupted:
        return Interrupted(*problems, hint=f"ccbed resume {short_path(self.directory)}")

    def carry_out(self, night: Night) -> None:
        """Run what is missing. ``error`` is what ended it early."""
        self.session.announce(self.directory)
        self._conclude(row for row in night_files.read_rows(self.directory) if row.run)
        with suppress(Interrupted):  # ``error`` has it
            runner.Runner(
                directory=self.directory, night=night, trials=self, now=time.monotonic, broken=1, schedule=selector.one_by_one,
            ).run()  # fmt: skip

    def _conclude(self, rows: Iterable[Row]) -> None:
        """Add the results of the runs that an earlier process ended."""
        for row in rows:
            with suppress(CcbedError):
                result = judging.conclude(self.session.catalogue, self.directory / RUNS / row.run, read_only=True)
                self.results.append(replace(result, code=row.exit if row.exit is not None else result.code))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The end of all runs of a request. ``code``: the worst exit code; ``error``: what ended them early; ``figures``: over all runs."""

    directory: Path
    night: Night
    rows: tuple[Row, ...]
    figures: tuple[distribution.Distribution, ...]
    results: tuple[Result, ...]
    code: int
    error: CcbedError | None

    @property
    def counts(self) -> str:
        """``3 passed, 1 missing in 12 s``."""
        took_s = sum(row.duration_s for row in self.rows)
        missing = self.night.suite.cells[0].repeats - len(self.rows)
        states = [*(row.state for row in self.rows), *(["missing"] * missing)]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return f"{counts} in {duration(took_s)}"


def run(session: Session, request: RunRequest, source: trials.Source) -> Repeated:
    """Run the trial of ``request`` as often as it asks, or what is missing of the runs in ``request.resume``.

    Raises UsageError, also for runs that cannot be resumed by this request.
    """
    checked = run_one.check(session, request, source)
    observer = session.run_observer(request.output, is_script=source.is_script)
    with run_one.on_bed(session, request, checked) as placed:
        directory, night = _begun(session, request, placed)
        once = functools.partial(run_one.run_once, session, request, placed)
        repeats = Repeats(session=session, directory=directory, once=once, on_result=observer.judged)
        repeats.carry_out(night)
        return _finish(night, repeats)


def _begun(session: Session, request: RunRequest, placed: run_one.CheckedTrial) -> tuple[Path, Night]:
    trial, bed = placed.trial, placed.bed
    if request.resume:
        directory = request.resume.resolve()
        return directory, resumed(directory, bed, trial, request.repeat)
    cell = Cell(name=trial.name, trial=trial.name, repeats=request.repeat or 1)
    command = run_one.command_line(session, placed.redaction)
    return begin(session, bed, "run", (cell,), request.output.runs_dir, command)


def finish_or_run(
    session: Session, opened: Path | None, once: Callable[[Path | None], Result], on_lost: Callable[[], None] = lambda: None
) -> Result:  # fmt: skip
    """Judge the run that an earlier process began if it has ended, else resume it; run anew if there is none, it never began or was
    abandoned. ``once``: resumes a run, or begins one; ``on_lost``: called where the run cannot be resumed, before it is run anew.
    """
    reached = bundle.stage(opened) if opened else "none"
    end = bundle.read_history(opened).last(RunEnd) if opened and reached != "none" else None
    if opened is None or reached == "none" or (end is not None and end.data.outcome == "interrupted"):
        return once(None)
    if reached == "closed":
        return judging.conclude(session.catalogue, opened, read_only=True)
    try:
        return once(opened)
    except (UsageError, paths.TornBundleError):
        on_lost()
        return once(None)


def has_ended(directory: Path) -> bool:
    return any((directory / name).is_file() for name in _DOCUMENTS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Runs that have ended. ``document``: what was written about all of them; ``findings``: outcome and text of each."""

    verb: str
    document: object
    findings: tuple[tuple[str, str], ...]
    code: int


def ended(directory: Path) -> Ended:
    """Read how runs ended. Raises TornBundleError."""
    verb = _verb(night_files.read_night(directory))
    document = paths.document(directory, _DOCUMENTS[verb])
    findings = tuple((item["outcome"], item["text"]) for item in document.get("findings", ()))
    return Ended(verb=verb, document=document, findings=findings, code=int(document["exit"]))


def _finish(night: Night, repeats: Repeats) -> Repeated:
    directory, error = repeats.directory, repeats.error
    rows = night_files.read_rows(directory)
    codes = [result.code for result in repeats.results] + ([error.exit_code] if error else [])
    code = night_rows.worst([*codes, *([night_rows.exit_code(rows)] if rows else [])])
    repeated = Repeated(
        directory=directory, night=night, rows=rows, figures=_figures(directory, rows), results=tuple(repeats.results),
        code=code, error=error,
    )  # fmt: skip
    _write_report(repeated)
    return repeated


def resumed(directory: Path, bed: BedSpec, trial: Trial, count: int | None) -> Night:
    """The plan of runs that were interrupted. Raises UsageError unless they are of the same trial, number and bed."""
    night = night_files.read_night(directory)
    verb = _verb(night)
    if not verb:
        raise UsageError(f"{directory}: a night", hint=f"ccbed nightly --resume {directory}")
    if has_ended(directory):
        raise UsageError(f"{directory}: has ended", hint=f"ccbed resume {directory} shows its result")
    cell, option = night.suite.cells[0], _OPTIONS[verb]
    problems = [
        f"{directory}: was begun {what} {before}, not {what} {now}"
        for what, before, now in (
            ("on bed", night.bed, bed.name), ("with trial", cell.name, trial.name), (f"with {option}", cell.repeats, count or cell.repeats),
        )
        if before != now
    ]  # fmt: skip
    if not problems and any(recorded != trial for recorded in _recorded_trials(directory)):
        problems = [f"{directory}: this command line makes another trial than the runs that are there"]
    if problems:
        raise UsageError(*problems, hint=f"its command: {night.command}")
    open_run = bed_files.open_run(Path(bed.workdir))
    if open_run and (open_run.driver or Path(open_run.directory).parent != directory / RUNS):
        raise bed_files.busy(Path(bed.workdir), driven=bool(open_run.driver))
    return night


def _recorded_trials(directory: Path) -> Iterator[Trial]:
    for path in sorted((directory / RUNS).iterdir()):
        if night_files.origin(path) is not None:
            with suppress(CcbedError):
                yield bundle.load_trial(path)


def _verb(night: Night) -> str:
    """The verb of repeated runs; empty for a night."""
    return next((verb for verb in _DOCUMENTS if night.suite.text.startswith(f"{_TEXT}{verb} ")), "")


def resumed_command(directory: Path) -> tuple[str, ...]:
    """The words after ``ccbed`` that resume runs that were interrupted; empty for a night. Raises UsageError where a secret is missing."""
    night = night_files.read_night(directory)
    if not _verb(night):
        return ()
    command = night.command.removeprefix("ccbed ")
    if "<redacted" in command:
        raise UsageError(
            f"{directory}: its command line had secrets, which are not recorded",
            hint=f"repeat it with them: {night.command} {RESUME} {directory}",
        )
    words = shlex.split(command)
    end = words.index("--") if "--" in words else len(words)
    return (*words[:end], RESUME, str(directory), *words[end:])


def begin(
    session: Session, bed: BedSpec, verb: str, cells: tuple[Cell, ...], runs: Path, command: str
) -> tuple[Path, Night]:
    """Create and announce the directory of a casual night. It has no number, so nothing is ever compared with it."""
    now = datetime.datetime.now(datetime.UTC)
    trial, count = cells[0].trial, cells[0].repeats
    name = "repeat" if verb == "run" else verb
    directory = bundle.new(runs, f"{name}-{trial}", now)
    night = Night(
        name=directory.name,
        suite=Suite(name=trial, cells=cells, text=f"{_TEXT}{verb} {trial} {_OPTIONS[verb]} {count}\n"),
        bed=bed.name,
        provider=bed.provider,
        hosts={node.name: node.host for node in bed.nodes if node.role == "node"},
        number=0,
        started=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        order=tuple(cell.name for cell in cells),
        command=command,
        ccbed=__version__,
    )
    session.announce(directory)  # first: a plan that is there belongs to what the shell ran last
    night_files.write_night(directory, night)
    return directory, night


def write_document(directory: Path, verb: str, content: object) -> None:
    paths.write(directory / _DOCUMENTS[verb], json.dumps(content, indent=1).encode() + b"\n")


def _figures(directory: Path, rows: Iterable[Row]) -> tuple[distribution.Distribution, ...]:
    """Figures of the runs that rows name: twins lie beside them."""
    records = []
    for row in rows:
        with suppress(paths.TornBundleError):
            records += [bundle_records.read(directory / RUNS / row.run)] if row.run else []
    return distribution.collect(records)


def _write_report(repeated: Repeated) -> None:
    directory, night, rows, figures = repeated.directory, repeated.night, repeated.rows, repeated.figures
    trial = night.suite.name
    content = {
        "trial": trial,
        "repeats": night.suite.cells[0].repeats,
        "exit": repeated.code,
        "rows": codec.plain(rows),
        "distribution": codec.plain(figures),
    }
    lines = [f"# {trial}, {sentence.count(len(rows), 'run')}", "", repeated.counts, ""]
    lines += ["| figure | n | median | interval of 95 % | least | greatest |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(map(str, columns(figure)))} |" for figure in figures]
    lines += [
        "",
        *(f"- {row.state}: [{row.run}](../{RUNS}/{row.run}) {row.reason}".rstrip() for row in rows if row.run),
    ]
    paths.write(directory / SUMMARY, "\n".join([*lines, ""]).encode())
    if night_files.is_closed(directory):
        write_document(directory, "run", content)


def columns(figure: distribution.Distribution) -> tuple[str, ...]:
    if figure.low is None or figure.high is None:
        interval = "not known: fewer than 6 values"
    else:
        interval = f"{figure.low:.4g} to {figure.high:.4g}"
    low, middle, high = (f"{value:.4g} {figure.unit}" for value in (figure.minimum, figure.median, figure.maximum))
    return figure.metric, str(figure.count), middle, interval, low, high
