"""The order of measurements: pairs in turns, before-now and now-before, of every measure whose ratio is still open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from . import ratios

#: The two sides, in the order of a ratio's pair.
SIDES = ("before", "now")
#: Seconds by the title of a row.
Times = Mapping[str, float]
#: A busy machine may fail a run now and then; more than so many of one measure are a defect.
FAILURES = 2


class FailedError(Exception):
    """A command did not end as it must; the text says which, and what it printed."""


@dataclass(kw_only=True)
class Turns:
    """``titles``: measure -> its rows. ``samples`` has the pairs of each row, also of an interrupted comparison.

    ``take`` measures once: of which measure, on which side. ``report`` gets each pair as it comes, and each failure.
    """

    titles: Mapping[str, Sequence[str]]
    take: Callable[[str, str], Times]
    report: Callable[[str], None]
    samples: dict[str, list[ratios.Pair]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.samples = {title: [] for titles in self.titles.values() for title in titles}

    def measure(self, most: int) -> None:
        """Take pairs until each ratio is resolved, ``most`` at most. Raises FailedError if a measure fails too often."""
        for number in range(most):
            order = SIDES if number % 2 == 0 else SIDES[::-1]
            for measure in [name for name in self.titles if self._is_open(name)]:
                self._pair(measure, order)

    def _is_open(self, measure: str) -> bool:
        return any(ratios.is_open(self.samples[title]) for title in self.titles[measure])

    def _pair(self, measure: str, order: Sequence[str]) -> None:
        try:
            times = {side: self.take(measure, side) for side in order}
        except FailedError as error:
            self._failed(measure, error)
            return
        for title in self.titles[measure]:
            pair = (times["before"][title], times["now"][title])
            self.samples[title].append(pair)
            self.report(f"{title}: {pair[0]:.3f} s, {pair[1]:.3f} s: {ratios.ratio(self.samples[title]).result}")

    def _failed(self, measure: str, error: FailedError) -> None:
        self.failures[measure] = self.failures.get(measure, 0) + 1
        if self.failures[measure] > FAILURES:
            raise error
        self.report(f"{measure}: this pair is left out: {error}")
