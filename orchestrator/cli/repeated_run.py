"""Carry out `ccbed run --repeat N`: the runs in one directory, as a night of one cell, and one report over all of them."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.spec import redact
from ..model import codec
from ..model.bed import BedSpec
from ..model.errors import CcbedError, Interrupted
from ..model.launch import Result
from ..nightly import bundle_records, distribution, night_files, runner
from ..nightly import rows as night_rows
from ..nightly.suite import RUNS, Cell, Night, Row, Suite
from ..store import bundle, paths
from .inputs.session import Session
from .render import night_lines, summary
from .render.terminal import short_path

#: Starts a run: the directory of its bundle's parent, and why it is started -> its result.
Once = Callable[[Path, str], Result]
#: The document of all runs, in their directory.
DOCUMENT = "repeat.json"


@dataclass(kw_only=True)
class _Repeats:
    """The same trial again and again. The first error ends the repeats; ``error`` is that, ``results`` are those before it."""

    session: Session
    directory: Path
    once: Once
    quiet: bool
    results: list[Result] = field(default_factory=list)
    error: CcbedError | None = None

    def obstacle(self, cell: Cell) -> str:
        return ""

    def restore(self) -> Mapping[str, str]:
        return {}

    def figure(self, run: str, metric: str) -> float | None:
        return None

    def launch(self, cell: Cell, repeat: int, open_run: str) -> runner.Attempt:
        try:
            result = self.once(self.directory / RUNS, night_files.reason(self.directory.name, cell.name, repeat))
        except KeyboardInterrupt:
            self.error = Interrupted("interrupted")
            raise
        except CcbedError as error:
            self.error = error
            raise
        self.results.append(result)
        bundle.link_latest(self.directory.parent, f"{self.directory.name}/{RUNS}/{result.run}")
        if not self.quiet:
            summary.show(self.session, result)
        return runner.Attempt(run=result.run, exit=result.code)


def run(session: Session, bed: BedSpec, trial: str, count: int, once: Once, options: Mapping[str, Any]) -> int:
    """Returns the exit code of the worst run. With ``as_json`` all runs are one document, with the error that ended them."""
    night = _begin(session, bed, trial, count, Path(options["runs_dir"]))
    directory = Path(options["runs_dir"]) / night.name
    repeats = _Repeats(session=session, directory=directory, once=once, quiet=options["as_json"])
    with suppress(Interrupted):  # ``error`` has it
        runner.Runner(directory=directory, night=night, trials=repeats, now=time.monotonic, broken=1).run()
    error = repeats.error
    rows = night_files.read_rows(directory)
    figures = _figures(directory, rows)
    codes = [result.code for result in repeats.results] + ([error.exit_code] if error else [])
    code = night_rows.worst([*codes, *([night_rows.exit_code(rows)] if rows else [])])
    if options["as_json"]:
        failure = {"error": {"problems": list(error.problems), "next": error.hint}} if error else {}
        document = {"runs": [summary.document(result) for result in repeats.results], "exit": code, **failure}
        document |= {"directory": str(directory), "distribution": [codec.plain(figure) for figure in figures]}
        session.terminal.json(document)
    _write_report(directory, night, rows, figures, code)
    if error:
        session.terminal.error(error.problems, error.hint)
    elif not options["as_json"] and count > 1:
        _show(session, directory, rows, figures)
    return code


def _begin(session: Session, bed: BedSpec, trial: str, count: int, runs: Path) -> Night:
    """A casual night of one cell. It has no number, so nothing is ever compared with it."""
    now = datetime.datetime.now(datetime.UTC)
    cell = Cell(name=trial, trial=trial, repeats=count)
    directory = bundle.new(runs, f"repeat-{trial}", now)
    night = Night(
        name=directory.name,
        suite=Suite(name=trial, cells=(cell,), text=f"# ccbed run {trial} --repeat {count}\n"),
        bed=bed.name,
        provider=bed.provider,
        hosts={node.name: node.host for node in bed.nodes if node.role == "node"},
        number=0,
        started=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        order=(trial,),
        command=redact.command_line(["ccbed", *session.argv]),
        ccbed=__version__,
    )
    night_files.write_night(directory, night)
    return night


def _figures(directory: Path, rows: Iterable[Row]) -> tuple[distribution.Distribution, ...]:
    """Of the runs that rows name: twins lie beside them."""
    records = []
    for row in rows:
        with suppress(paths.TornBundleError):
            records += [bundle_records.read(directory / RUNS / row.run)] if row.run else []
    return distribution.collect(records)


def _write_report(
    directory: Path, night: Night, rows: tuple[Row, ...], figures: tuple[distribution.Distribution, ...], code: int
) -> None:
    from ..nightly import reports
    from ..nightly.reports import repeats_page

    trial = night.suite.name
    content = {"trial": trial, "exit": code, "rows": codec.plain(rows), "distribution": codec.plain(figures)}
    paths.write(directory / DOCUMENT, json.dumps(content, indent=1).encode() + b"\n")
    lines = [f"# {trial}, {len(rows)} runs", "", _counts(rows), ""]
    lines += ["| figure | n | median | interval of 95 % | least | greatest |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(map(str, _columns(figure)))} |" for figure in figures]
    paths.write(directory / "report" / "summary.md", "\n".join([*lines, ""]).encode())
    page = repeats_page.render(night, rows, figures, reports.link_runs(directory, rows))
    paths.write(directory / "report" / "index.html", page)


def _show(
    session: Session, directory: Path, rows: tuple[Row, ...], figures: tuple[distribution.Distribution, ...]
) -> None:
    session.terminal.line()
    session.terminal.line(f"repeat   {_counts(rows)}")
    if figures:
        session.terminal.table(
            ("FIGURE", "N", "MEDIAN", "INTERVAL OF 95 %", "LEAST", "GREATEST"), map(_columns, figures)
        )
    session.terminal.line(f"report   {short_path(directory)}/report/index.html")


def _counts(rows: tuple[Row, ...]) -> str:
    took_s = sum(row.duration_s for row in rows)
    states = [row.state for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{counts} in {night_lines.duration(took_s)}"


def _columns(figure: distribution.Distribution) -> tuple[str, ...]:
    if figure.low is None or figure.high is None:
        interval = "not known: fewer than 6 values"
    else:
        interval = f"{figure.low:.4g} to {figure.high:.4g}"
    low, middle, high = (f"{value:.4g} {figure.unit}" for value in (figure.minimum, figure.median, figure.maximum))
    return figure.metric, str(figure.count), middle, interval, low, high
