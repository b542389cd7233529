"""Run the cells of a night, one row per repeat: it ends with a row for every cell, whatever breaks.

The repeats of a cell are spread over the night. Then what is suspect in them is measured again, the node alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..model.errors import EXIT_INFRASTRUCTURE, EXIT_INTERRUPTED, CcbedError, Interrupted
from ..model.frozen import dataclass, field
from ..views import statistics
from . import night_files, row_states, selector
from .suite import RUNS, Cell, Night, Row

#: After so many repeats in a row that did not end, the others of the cell are skipped.
BROKEN = 2
#: Repeats of a second measurement at most.
AGAIN = 3
_NOT_RUN = "not run: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A run that has ended. ``exit``: the code of `ccbed run`; ``reason``: where it is not 0; ``is_overdue``: its deadline ended it."""

    run: str
    exit: int
    reason: str = ""
    is_overdue: bool = False


class Trials(Protocol):
    """Runs the trials of a night on its bed."""

    def obstacle(self, cell: Cell) -> str:
        """Return why the bed cannot run the cell: what it lacks; empty if it can. It may probe spares first. Raises CcbedError."""

    def launch(self, cell: Cell, repeat: int, open_run: str, again: str = "") -> Attempt:
        """Run a repeat; ``open_run``: the name of its bundle that an earlier process began; ``again``: see Row.

        Raises CcbedError, KeyboardInterrupt.
        """

    def figure(self, run: str, metric: str) -> float | None:
        """The median of a metric of a bundle; ``metric`` empty: of the main one of its workload. None where it has none."""

    def obstacle_to_all(self) -> str:
        """Return why no trial can run on the bed any more, such as a bed that was taken down; empty if they can."""

    def restore(self) -> Mapping[str, str]:
        """Bring nodes back that are not warm; later trials leave out those that stay away.

        Returns node -> its state, and whether it is back; nothing of nodes that are away as before. Raises CcbedError.
        """


@dataclass(kw_only=True)
class Runner:
    """``now``: seconds of a monotonic clock; ``past``: of the cells, by name; ``broken``: see BROKEN.

    ``on_start`` gets a repeat before it runs and ``again`` of its row, ``on_node`` the row of a lost node, ``on_cell`` a cell with
    all its rows.
    """

    directory: Path
    night: Night
    trials: Trials
    now: Callable[[], float]
    past: Mapping[str, selector.Past] = field(default_factory=dict)
    broken: int = BROKEN
    #: The order of the repeats of all cells.
    schedule: Callable[[Sequence[Cell]], Iterable[tuple[Cell, int]]] = selector.schedule
    #: What is to be measured again after these rows: the name of a cell, and ``again`` of its rows.
    suspects: Callable[[Sequence[Row]], Iterable[tuple[str, str]]] = lambda rows: ()
    on_start: Callable[[Cell, int, str], None] = lambda cell, repeat, again: None
    on_node: Callable[[Row], None] = lambda row: None
    on_cell: Callable[[Cell, Sequence[Row]], None] = lambda cell, rows: None
    #: Why no further run can be stored, or run on the bed; empty while it can.
    _end_reason: str = ""
    #: Seconds that this process spent between repeats: probes of spares, and bringing nodes back. They count for the budget.
    _between_s: float = 0.0

    def run(self) -> tuple[Row, ...]:
        """Run what has no row yet, then seal the night. Raises Interrupted, InfrastructureError where a row cannot be written."""
        cells = {cell.name: cell for cell in self.night.suite.cells}
        order = [cells[name] for name in self.night.order]
        with night_files.Journal(self.directory) as journal:
            shown: set[str] = set()
            for cell, repeat in self.schedule(order):
                ended = passes(journal.rows, cell)
                if len(ended) <= repeat:
                    self._run_pass(cell, ended, journal)
                if cell.name not in shown and self._is_complete(cell, ended):
                    shown.add(cell.name)
                    self.on_cell(cell, ended)
            for name, node in self.suspects(tuple(journal.rows)):
                self._run_again(cells[name], node, journal)
            result = tuple(journal.rows)
        night_files.close(self.directory)
        return result

    def give_up(self, reason: str) -> tuple[Row, ...]:
        """Seal the night of a process that died, with an unfinished row for every cell that is not complete."""
        cells = {cell.name: cell for cell in self.night.suite.cells}
        with night_files.Journal(self.directory) as journal:
            for name in self.night.order:
                ended = passes(journal.rows, cells[name])
                if not self._is_complete(cells[name], ended):
                    journal.append(Row(cell=name, repeat=len(ended), state="unfinished", reason=reason))
            result = tuple(journal.rows)
        night_files.close(self.directory)
        return result

    def _run_pass(self, cell: Cell, ended: list[Row], journal: night_files.Journal) -> None:
        """The next repeat of a cell. ``ended``: its rows, to which the new one is added."""
        if self._is_complete(cell, ended):
            return
        row = self._row_of_next(cell, ended, journal)
        journal.append(row)
        ended.append(row)
        if row.state in ("error", "unfinished") and not self._end_reason:
            self._end_reason = night_files.storage_problem(self.directory)
            if not self._is_over():
                self._restore(journal)

    def _row_of_next(self, cell: Cell, ended: Sequence[Row], journal: night_files.Journal) -> Row:
        if self._is_over():
            return self._not_run(cell, len(ended))
        open_runs = self._open_runs(cell)
        reason = "" if ended else self._budget_problem(cell, journal)
        if not reason and not open_runs:  # those may be resumed on the bed as it is
            self._restore(journal)
            if self._is_over():
                return self._not_run(cell, len(ended))
        reason = reason or ("" if ended else self._obstacle(cell))
        if reason:
            return Row(cell=cell.name, repeat=0, state="skipped", reason=reason)
        return self._repeat(cell, ended, open_runs)

    def _run_again(self, cell: Cell, again: str, journal: night_files.Journal) -> None:
        """Run as many repeats in a row as the night has passes: those of the passes are suspect."""
        ended = [row for row in journal.rows if row.cell == cell.name and row.again == again]
        while len(ended) < min(cell.repeats, AGAIN) and not self._is_over():
            open_runs = self._open_runs(cell, again)
            if not open_runs:
                self._restore(journal)
            row = self._repeat(cell, ended, open_runs, again)
            journal.append(row)
            ended.append(row)
            if row.state not in ("passed", "failed", "unknown"):
                return

    def _is_over(self) -> bool:
        """Return whether no trial can run any more, such as on a bed whose file cannot be read."""
        if not self._end_reason:
            try:
                self._end_reason = self.trials.obstacle_to_all()
            except Exception as error:  # noqa: BLE001 a suite always ends with a report
                self._end_reason = _describe(error)
        return bool(self._end_reason)

    def _not_run(self, cell: Cell, repeat: int) -> Row:
        """The row of a cell that cannot go on. On a full disk the reserved space holds it, the seal and the report."""
        night_files.release(self.directory)
        return Row(
            cell=cell.name,
            repeat=repeat,
            state="error",
            exit=EXIT_INFRASTRUCTURE,
            reason=f"{_NOT_RUN}{self._end_reason}",
        )

    def _is_complete(self, cell: Cell, ended: Sequence[Row]) -> bool:
        if len(ended) >= cell.repeats or any(not row.run and _is_final(row) for row in ended):
            return True
        return bool(cell.precision) and bool(ended) and self._is_precise(cell, ended)

    def _is_precise(self, cell: Cell, ended: Sequence[Row]) -> bool:
        """Return whether the interval of the median of the cell's first metric is narrow enough. Every repeat must have the metric."""
        import numpy as np

        metric = cell.rules[0].metric if cell.rules else ""
        figures = [self._figure(row.run, metric) if row.run else None for row in ended]
        known = [figure for figure in figures if figure is not None]
        if len(known) < len(figures):
            return False
        interval = statistics.median(np.array(known))
        return interval.high - interval.low < (cell.precision or 0.0) * abs(interval.value)

    def _figure(self, run: str, metric: str) -> float | None:
        """None also for a bundle that cannot be read: the judgement names it."""
        try:
            return self.trials.figure(run, metric)
        except Exception:  # noqa: BLE001 a suite always ends with a report
            return None

    def _budget_problem(self, cell: Cell, journal: night_files.Journal) -> str:
        """The time of cells that have begun or come first in the order is spent."""
        spent_s = self._between_s + sum(row.duration_s for row in journal.rows)
        first = self.night.order[: self.night.order.index(cell.name)]
        for other in self.night.suite.cells:
            ended = passes(journal.rows, other)
            if other is not cell and (ended or other.name in first) and not self._is_complete(other, ended):
                spent_s += self._rest_s(other, ended)
        past = self.past.get(cell.name, selector.NEVER)
        fits = selector.fits(spent_s, self.night.suite.budget_s, past)
        return "" if fits else f"over the budget of {self.night.suite.budget_s:g} s"

    def _rest_s(self, cell: Cell, ended: Sequence[Row]) -> float:
        """The time of the repeats that are to come, by earlier nights, else by those that have ended."""
        took_s, known_s = sum(row.duration_s for row in ended), self.past.get(cell.name, selector.NEVER).duration_s
        if known_s is None:
            known_s = took_s / len(ended) * cell.repeats if ended else 0.0
        return max(0.0, known_s - took_s)

    def _obstacle(self, cell: Cell) -> str:
        try:
            with self._timed():
                return self.trials.obstacle(cell)
        except Interrupted:
            raise self._interrupted() from None
        except Exception:  # noqa: BLE001 the repeat fails with it
            return ""

    def _repeat(self, cell: Cell, ended: Sequence[Row], open_runs: Mapping[int, str], again: str = "") -> Row:
        tail, repeat = ended[-self.broken :], len(ended)
        if len(tail) == self.broken and all(row.state in ("error", "unfinished") for row in tail):
            reason = f"{self.broken} repeats before it did not end"
            return Row(cell=cell.name, repeat=repeat, state="skipped", reason=reason, again=again)
        self.on_start(cell, repeat, again)
        begin = self.now()
        attempt = self._attempt(cell, repeat, open_runs.get(repeat, ""), again)
        return Row(
            cell=cell.name, repeat=repeat, state="unfinished" if attempt.is_overdue else row_states.state(attempt.exit),
            run=attempt.run, exit=attempt.exit, duration_s=round(self.now() - begin, 3), reason=attempt.reason, again=again,
        )  # fmt: skip

    def _attempt(self, cell: Cell, repeat: int, open_run: str, again: str) -> Attempt:
        """Any error of a trial is a row. Raises Interrupted."""
        try:
            attempt = self.trials.launch(cell, repeat, open_run, again)
        except (KeyboardInterrupt, Interrupted):
            raise self._interrupted() from None
        except Exception as error:  # noqa: BLE001 a suite always ends with a report
            code = error.exit_code if isinstance(error, CcbedError) else EXIT_INFRASTRUCTURE
            return Attempt(run="", exit=code, reason=_describe(error))
        if attempt.exit == EXIT_INTERRUPTED and not attempt.is_overdue:
            raise self._interrupted()
        return attempt

    def _interrupted(self) -> Interrupted:
        return Interrupted(
            f"{self.directory}: interrupted; the night is open", hint=f"ccbed nightly --resume {self.directory}"
        )

    def _restore(self, journal: night_files.Journal) -> None:
        """A row for each node that was lost; the same node in the same state is one row."""
        try:
            with self._timed():
                lost = self.trials.restore()
        except (KeyboardInterrupt, Interrupted):
            raise self._interrupted() from None
        except Exception as error:  # noqa: BLE001 a suite always ends with a report
            lost = {"(all)": _describe(error)}
        for node, reason in lost.items():
            row = row_states.of_node(node, reason)
            if row not in journal.rows:
                journal.append(row)
                self.on_node(row)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = self.now()
        try:
            yield
        finally:
            self._between_s += self.now() - begin

    def _open_runs(self, cell: Cell, again: str = "") -> dict[int, str]:
        """Repeat -> the newest bundle of it without a row: an earlier process of this night began it."""
        runs = self.directory / RUNS
        known = {row.run for row in night_files.read_rows(self.directory)}
        bundles = (
            sorted(path for path in runs.iterdir() if path.is_dir() and not path.is_symlink()) if runs.is_dir() else []
        )
        origins = {path.name: night_files.origin(path) for path in bundles if path.name not in known}
        return {
            origin.repeat: name
            for name, origin in origins.items()
            if origin and (origin.cell, origin.again) == (cell.name, again)
        }


def passes(rows: Iterable[Row], cell: Cell) -> list[Row]:
    """The rows of a cell, without those of second measurements."""
    return [row for row in rows if row.cell == cell.name and not row.again]


def _is_final(row: Row) -> bool:
    """Return whether a row without a run says that its cell goes no further."""
    return row.state == "skipped" or row.reason.startswith(_NOT_RUN)


def _describe(error: Exception) -> str:
    return (
        "; ".join(error.problems)
        if isinstance(error, CcbedError)
        else f"internal error: {type(error).__name__}: {error}"
    )
