"""The end of a night: judge it against the earlier ones, write its reports, notify, and print the verdict."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...app.session import Session
from ...model.errors import EXIT_UNKNOWN, CcbedError
from ...model.frozen import dataclass, replace
from .. import night_files
from .. import row_states as night_rows
from ..identity import Nodes
from ..night_judgement import NightJudgement, suspects_of
from ..suite import ALL, Night, Row
from .night_requests import NightRequest
from .night_results import Finished

if TYPE_CHECKING:
    from ..index.store import Index
    from ..records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Records of earlier recorded nights, and of this one if it is recorded. ``notes``: what is missing.

    ``is_indexed``: whether the index could be used; else they were read from the bundles.
    """

    earlier: tuple[Record, ...] = ()
    trends: tuple[Record, ...] = ()
    notes: tuple[str, ...] = ()
    is_indexed: bool = True


def finish(
    session: Session, directory: Path, night: Night, rows: Sequence[Row], request: NightRequest, history: History | None = None
) -> Finished:  # fmt: skip
    """Judge a night and write its reports. Nothing that fails after the judgement changes it."""
    history = history or read_history(session, directory, night)
    workdir = _workdir(session, night)
    judgement = _judge(directory, rows, history, request.baselines)
    notes = [*judgement.notes]
    try:
        night_files.write_judgement(directory, judgement)
    except OSError as error:
        notes.append(f"the findings cannot be saved: {error}")
    notes += _write_reports(directory, night, rows, judgement, history, request)
    if history.is_indexed:
        _refresh(session, directory)
    notes += _accuse(directory, night, judgement, request, workdir)
    notes += _notify(request.notify, directory, night, judgement)
    finished = Finished(directory=directory, night=night, rows=tuple(rows), judgement=judgement, notes=tuple(notes))
    session.follow.night(session).ended(finished)
    return finished


def suspects(directory: Path, rows: Sequence[Row], history: History, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what is to be measured again: a cell of the suite, and ``again`` of its rows."""
    judgement = _judge(directory, rows, history, folder)
    for cell, nodes in suspects_of(judgement):
        yield cell, ",".join(nodes) or ALL


def read_history(session: Session, directory: Path, night: Night) -> History:
    """The verdict does not depend on the index: where it cannot be used, the bundles are read. A note says so."""
    from .. import index

    try:
        with index.open(directory.parent, state=session.state) as runs:
            return _history(runs, night)
    except Exception as error:  # noqa: BLE001 a night always ends with a report
        reason = _describe(error)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="ccbed-index-") as temporary,
            index.open(directory.parent, state=session.state, url=f"sqlite:///{temporary}/index.sqlite3") as runs,
        ):
            history = _history(runs, night)
            note = f"the index cannot be used, so the earlier nights were read from their bundles: {reason}"
            return replace(history, notes=(note, *history.notes), is_indexed=False)
    except Exception as error:  # noqa: BLE001 a night always ends with a report
        text = f"the history cannot be read, so nothing is compared with earlier nights: {reason}; {_describe(error)}"
        return History(notes=(text,), is_indexed=False)


def _describe(error: Exception) -> str:
    return (
        str(error) if isinstance(error, (CcbedError, OSError)) else f"internal error: {type(error).__name__}: {error}"
    )


def _history(runs: Index, night: Night) -> History:
    runs.refresh()
    records = tuple(runs.records(bed=night.bed))
    earlier = tuple(record for record in records if not night.number or record.night < night.number)
    return History(earlier=earlier, trends=Nodes(night.all_hosts).records(records), notes=runs.notes)


def _workdir(session: Session, night: Night) -> Path | None:
    """That of the bed; None if the bed is no longer known."""
    from ...store import bed_files

    try:
        bed = bed_files.read(session.state, night.bed)
    except CcbedError:
        return None
    return Path(bed.workdir) if bed else None


def _accuse(
    directory: Path, night: Night, judgement: NightJudgement, request: NightRequest, workdir: Path | None
) -> list[str]:
    """Record the offences, and call what --on-culprit names. A sentence for each accused node."""
    from ...app.hosts import quarantine
    from ..culprits import hook

    lines: list[str] = []
    accused = hook.accused(night, judgement)
    if hook.is_common_cause(night, accused):
        lines.append(hook.common_cause(night, accused))
        accused = ()
    try:
        if workdir is not None:  # also without an offence: those of an earlier judgement of this night are replaced
            quarantine.record(workdir, night, [(culprit.node, culprit.reason) for culprit in accused])
            lines += quarantine.lines(workdir, Nodes(night.all_hosts), known=night.quarantined)
    except (CcbedError, OSError) as error:
        lines.append(f"the offences cannot be recorded: {error}")
    if request.on_culprit:
        lines += hook.handle(directory, night, judgement, request.on_culprit, is_applied=request.apply)
    return lines


def _judge(directory: Path, rows: Sequence[Row], history: History, folder: Path) -> NightJudgement:
    """A night that cannot be judged is unknown, if its rows are no worse. The quarantine is that of the night's start."""
    from .. import baselines, classes, judging

    try:
        floors = baselines.read_all(folder)
        night = night_files.read_night(directory)
        earlier = _earlier_judgements(directory, night)
        judgement = judging.judge(directory, history.earlier, floors, night.quarantined, earlier, classes.read(folder))
    except Exception as error:  # noqa: BLE001 a night always ends with a report
        code = night_rows.worst((EXIT_UNKNOWN, night_rows.exit_code(rows)))
        return NightJudgement(
            outcome="fail" if code == 1 else "unknown",
            exit=code,
            sentence=f"The night cannot be judged: {_describe(error)}.",
        )
    return replace(judgement, notes=(*judgement.notes, *history.notes))


def _earlier_judgements(directory: Path, night: Night) -> list[NightJudgement]:
    """Read the judgements of the last recorded nights of the bed before this one, if the suite has tickets; skip what cannot be read."""
    from ..judging import known_defects

    judgements: list[NightJudgement] = []
    nodes = Nodes(night.all_hosts)
    has_tickets = any(rule.xfail for cell in night.suite.cells for rule in cell.rules)
    for path in reversed(night_files.nights(directory.parent)) if has_tickets else ():
        with suppress(CcbedError, OSError):
            other = night_files.read_night(path)
            is_before = other.number < night.number if night.number else other.started < night.started
            if other.recorded and other.bed == night.bed and is_before:
                judgement = night_files.read_judgement(path)
                judgements += [nodes.judgement(judgement, other.all_hosts)] if judgement else []
        if len(judgements) == known_defects.NIGHTS:
            break
    return judgements


def _refresh(session: Session, directory: Path) -> None:
    """The index gets the judgement; an index that cannot be written was noted when the history was read."""
    from .. import index

    with suppress(Exception), index.open(directory.parent, state=session.state) as runs:
        runs.refresh()


def _write_reports(
    directory: Path, night: Night, rows: Sequence[Row], judgement: NightJudgement, history: History, request: NightRequest
) -> list[str]:  # fmt: skip
    from .. import reports

    problems = []
    for folder in (None, *filter(None, [request.report_dir])):
        try:
            reports.write(directory, night, rows, judgement, history.trends, folder)
        except (CcbedError, OSError) as error:
            problems.append(f"the report cannot be written: {error}")
    if request.junit_xml:
        try:
            shutil.copyfile(directory / reports.REPORT / "junit.xml", request.junit_xml)
        except OSError as error:
            problems.append(f"--junit-xml: {error}")
    return problems


def _notify(targets: Sequence[str], directory: Path, night: Night, judgement: NightJudgement) -> list[str]:
    from .. import notify

    return [notify.notify(target, directory, night, judgement) for target in targets]
