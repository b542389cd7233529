"""Run the cells of a night, one row per repeat: it ends with a row for every cell, whatever breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..model.errors import EXIT_INFRASTRUCTURE, EXIT_INTERRUPTED, CcbedError, Interrupted
from ..model.frozen import dataclass, field
from ..views import statistics
from . import night_files, rows, selector
from .suite import RUNS, Cell, Night, Row

#: After so many repeats in a row that did not end, the others of the cell are skipped.
BROKEN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A run that has ended. ``exit``: the code of `ccbed run`; ``reason``: where it is not 0; ``is_overdue``: its deadline ended it."""

    run: str
    exit: int
    reason: str = ""
    is_overdue: bool = False


class Trials(Protocol):
    """What runs the trials of a night on its bed."""

    def obstacle(self, cell: Cell) -> str:
        """Why the bed cannot run the cell: what it lacks; empty if it can. It may probe spares first. Raises CcbedError."""

    def launch(self, cell: Cell, repeat: int, open_run: str) -> Attempt:
        """Run a repeat; ``open_run``: the name of its bundle that an earlier process began. Raises CcbedError, KeyboardInterrupt."""

    def figure(self, run: str, metric: str) -> float | None:
        """The median of a metric of a bundle; ``metric`` empty: of the main one of its workload. None where it has none."""

    def obstacle_to_all(self) -> str:
        """Why no trial can run on the bed any more, such as a bed that was taken down; empty if they can."""

    def restore(self) -> Mapping[str, str]:
        """Bring nodes back that are not warm; later trials leave out those that stay away.

        Returns node -> its state, and whether it is back; nothing of nodes that are away as before. Raises CcbedError.
        """


@dataclass(kw_only=True)
class Runner:
    """``now``: seconds of a monotonic clock; ``past``: of the cells, by name; ``broken``: see BROKEN.

    ``on_start`` gets a repeat before it runs, ``on_node`` the row of a lost node, ``on_cell`` a cell with all its rows.
    """

    directory: Path
    night: Night
    trials: Trials
    now: Callable[[], float]
    past: Mapping[str, selector.Past] = field(default_factory=dict)
    broken: int = BROKEN
    on_start: Callable[[Cell, int], None] = lambda cell, repeat: None
    on_node: Callable[[Row], None] = lambda row: None
    on_cell: Callable[[Cell, Sequence[Row]], None] = lambda cell, rows: None
    #: Why no further run can be stored, or run on the bed; empty while it can.
    _end_reason: str = ""
    #: Seconds that this process spent between repeats: probes of spares, and bringing nodes back. They count for the budget.
    _between_s: float = 0.0

    def run(self) -> tuple[Row, ...]:
        """Run what has no row yet, then seal the night. Raises Interrupted, InfrastructureError where a row cannot be written."""
        cells = {cell.name: cell for cell in self.night.suite.cells}
        with night_files.Journal(self.directory) as journal:
            for name in self.night.order:
                cell = cells[name]
                self._run_cell(cell, journal)
                self.on_cell(cell, tuple(row for row in journal.rows if row.cell == name))
            result = tuple(journal.rows)
        night_files.close(self.directory)
        return result

    def give_up(self, reason: str) -> tuple[Row, ...]:
        """Seal the night of a process that died, with an unfinished row for every cell that is not complete."""
        cells = {cell.name: cell for cell in self.night.suite.cells}
        with night_files.Journal(self.directory) as journal:
            for name in self.night.order:
                ended = [row for row in journal.rows if row.cell == name]
                if not self._is_complete(cells[name], ended):
                    journal.append(Row(cell=name, repeat=len(ended), state="unfinished", reason=reason))
            result = tuple(journal.rows)
        night_files.close(self.directory)
        return result

    def _run_cell(self, cell: Cell, journal: night_files.Journal) -> None:
        ended = [row for row in journal.rows if row.cell == cell.name]
        if self._is_complete(cell, ended):
            return
        if self._is_over():
            journal.append(self._not_run(cell, len(ended)))
            return
        open_runs = self._open_runs(cell, ended)
        reason = "" if ended else self._budget_problem(cell, journal)
        if not reason and not open_runs:  # those may be resumed on the bed as it is
            self._restore(journal)
            if self._is_over():
                journal.append(self._not_run(cell, len(ended)))
                return
        reason = reason or ("" if ended else self._obstacle(cell))
        if reason:
            journal.append(Row(cell=cell.name, repeat=0, state="skipped", reason=reason))
            return
        while not self._is_complete(cell, ended):
            if self._is_over():
                journal.append(self._not_run(cell, len(ended)))
                return
            row = self._repeat(cell, len(ended), ended, open_runs)
            journal.append(row)
            ended.append(row)
            if row.state in ("error", "unfinished"):
                self._end_reason = night_files.storage_problem(self.directory)
                if not self._is_over():
                    self._restore(journal)

    def _is_over(self) -> bool:
        """Whether no trial can run any more, such as on a bed whose file cannot be read."""
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
            reason=f"not run: {self._end_reason}",
        )

    def _is_complete(self, cell: Cell, ended: Sequence[Row]) -> bool:
        if len(ended) >= cell.repeats or any(row.state == "skipped" and not row.run for row in ended):
            return True
        return bool(cell.precision) and bool(ended) and self._is_precise(cell, ended)

    def _is_precise(self, cell: Cell, ended: Sequence[Row]) -> bool:
        """Whether the interval of the median of the cell's first metric is narrow enough. Every repeat must have the metric."""
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
        spent_s = self._between_s + sum(row.duration_s for row in journal.rows)
        past = self.past.get(cell.name, selector.NEVER)
        fits = selector.fits(spent_s, self.night.suite.budget_s, past)
        return "" if fits else f"over the budget of {self.night.suite.budget_s:g} s"

    def _obstacle(self, cell: Cell) -> str:
        try:
            with self._timed():
                return self.trials.obstacle(cell)
        except Interrupted:
            raise self._interrupted() from None
        except Exception:  # noqa: BLE001 the repeat fails with it
            return ""

    def _repeat(self, cell: Cell, repeat: int, ended: Sequence[Row], open_runs: Mapping[int, str]) -> Row:
        tail = ended[-self.broken :]
        if len(tail) == self.broken and all(row.state in ("error", "unfinished") for row in tail):
            reason = f"{self.broken} repeats before it did not end"
            return Row(cell=cell.name, repeat=repeat, state="skipped", reason=reason)
        self.on_start(cell, repeat)
        begin = self.now()
        attempt = self._attempt(cell, repeat, open_runs.get(repeat, ""))
        return Row(
            cell=cell.name, repeat=repeat, state="unfinished" if attempt.is_overdue else rows.state(attempt.exit),
            run=attempt.run, exit=attempt.exit, duration_s=round(self.now() - begin, 3), reason=attempt.reason,
        )  # fmt: skip

    def _attempt(self, cell: Cell, repeat: int, open_run: str) -> Attempt:
        """Any error of a trial is a row. Raises Interrupted."""
        try:
            attempt = self.trials.launch(cell, repeat, open_run)
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
            row = rows.of_node(node, reason)
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

    def _open_runs(self, cell: Cell, ended: Sequence[Row]) -> dict[int, str]:
        """Repeat -> the newest bundle of it without a row: an earlier process of this night began it."""
        runs = self.directory / RUNS
        known = {row.run for row in ended}
        bundles = (
            sorted(path for path in runs.iterdir() if path.is_dir() and not path.is_symlink()) if runs.is_dir() else []
        )
        origins = {path.name: night_files.origin(path) for path in bundles if path.name not in known}
        return {origin[1]: name for name, origin in origins.items() if origin is not None and origin[0] == cell.name}


def _describe(error: Exception) -> str:
    return (
        "; ".join(error.problems)
        if isinstance(error, CcbedError)
        else f"internal error: {type(error).__name__}: {error}"
    )
