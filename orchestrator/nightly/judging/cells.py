"""The figures of a night through the judge: arrays are made of records, and sentences of its numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ...model.frozen import dataclass, field, replace
from .. import records
from ..classes import MetricClass
from ..levels import Level
from ..night_judgement import FLEET, REFERENCE, Judged
from ..records import Better, Finding, Metric, Outcome, Record
from ..run_record import nodes_of
from ..statistics import night_statistics as engine
from ..statistics import robust
from ..statistics.night_statistics import Compared, percent
from .figures import Series

if TYPE_CHECKING:
    from ..records import Flags, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A metric that is judged: tonight's values, the records of earlier nights with its definition, and its class. ``minimum``: the least
    difference in its unit that counts.
    """

    series: Series
    past: Sequence[Record]
    kind: MetricClass
    minimum: float = 0.0

    @property
    def metric(self) -> Metric:
        return self.series.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Tonight:
    """``busy``: (night, node) -> why its figures say nothing of its hardware; ``crowded``: node -> why its figures do not pass;
    ``apart``: nodes that are no reference for others.
    """

    number: int
    date: str
    levels: Sequence[Level] = ()
    apart: Collection[str] = ()
    busy: Mapping[tuple[int, str], str] = field(default_factory=dict)
    crowded: Mapping[str, str] = field(default_factory=dict)


def judge(subjects: Sequence[Subject], tonight: Tonight) -> Iterator[Judged]:
    """A finding for each figure of a node, and one for each metric of all nodes together."""
    shapes: dict[str, list[Subject]] = {}
    for subject in subjects:
        shapes.setdefault(_shape(next(iter(subject.series.values))), []).append(subject)
    figures = sum(len(subject.series.values) for subject in subjects)
    for shape in shapes.values():
        yield from _Table(shape, tonight, figures).findings()


def _shape(label: str) -> Literal["gang", "link", "node"]:
    return "gang" if not label else "link" if "->" in label else "node"


class _Table:
    """Metrics that the same kind of parts have, as arrays: nights x labels x metrics, slowness in logarithms."""

    def __init__(self, subjects: Sequence[Subject], tonight: Tonight, figures: int) -> None:
        import numpy as np

        self._subjects, self.tonight = subjects, tonight
        rows = [
            (record, column)
            for column, subject in enumerate(subjects)
            for record in (*subject.past, *subject.series.records(tonight.number, tonight.date))
        ]
        self._nights = sorted({record.night for record, _ in rows} | {tonight.number})
        self._dates = {record.night: record.date or f"night {record.night}" for record, _ in rows}
        self.labels = sorted({record.node for record, _ in rows})
        night_of, label_of = ({key: i for i, key in enumerate(keys)} for keys in (self._nights, self.labels))
        shape = len(self._nights), len(self.labels), len(subjects)
        values, second = (
            np.full((*shape, max(1, *(len(getattr(record, part)) for record, _ in rows))), np.nan)
            for part in ("values", "again")
        )
        self._versions: dict[tuple[int, int], Mapping[str, str]] = {}
        for record, column in rows:
            place = night_of[record.night], label_of[record.node]
            values[(*place, column)] = np.nan
            values[(*place, column)][: len(record.values)] = record.values
            if record.again:
                second[(*place, column)][: len(record.again)] = record.again
            self._versions[place] = record.suspects
        sign = np.array([subject.metric.sign for subject in subjects])
        values, second = _slowness(values, sign), _slowness(second, sign)
        for night, node in tonight.busy:
            is_busy = [node in nodes_of(label) for label in self.labels]
            values[np.ix_(np.array(self._nights) == night, np.array(is_busy))] = np.nan
        self.values = robust.median(values, axis=3)
        levels = np.zeros(shape, dtype=bool)
        for level in tonight.levels:
            begins = [i for i, number in enumerate(self._nights[:-1]) if number >= level.night]
            if begins:
                levels[begins[0]] |= [[level.covers(label, s.metric.name) for s in subjects] for label in self.labels]
        apart = np.array([not set(nodes_of(label)).isdisjoint(tonight.apart) for label in self.labels])
        self.least = np.array([_least(subject) for subject in subjects])
        self._history = engine.Nights(
            values=self.values, again=robust.median(second, axis=3), passes=engine.noise(values), levels=levels, apart=apart,
            labels=self.labels, least=self.least, spread=np.array([subject.kind.spread for subject in subjects]),
            peers=np.array([subject.kind.peers for subject in subjects]), figures=max(figures, 1),
        )  # fmt: skip

    def findings(self) -> Iterator[Judged]:
        import numpy as np

        verdicts = list(engine.replay(self._history))
        last = verdicts[-1]
        adjusted = np.array([values - verdict.day for values, verdict in zip(self.values, verdicts, strict=True)])
        limit = engine.slide_limit(self._history, last)
        slide, slides = engine.slides(_since_levels(adjusted, self._history.levels), limit)
        for column, subject in enumerate(self._subjects):
            labels = [i for i, label in enumerate(self.labels) if label in subject.series.values]
            pair = [i for i in labels if last.nights[i, column] == 0 and not math.isnan(self.values[-1, i, column])]
            if len(pair) == len(labels) == 2:
                yield from self._two(subject, pair, column)
            for row in labels:
                cell = _Cell(self, subject, row, column, verdicts)
                yield cell.judged(float(slide[row, column]) if slides[row, column] else None)
            if not math.isnan(last.fleet[column]) and last.fleet_nights[column]:
                yield self._fleet(subject, last, labels, column)

    def _two(self, subject: Subject, pair: Sequence[int], column: int) -> Iterator[Judged]:
        """Two nodes, or directions of a link, that differ on their first night: which one is odd cannot be told."""
        import numpy as np

        values = [float(self.values[-1, row, column]) for row in pair]
        chance = engine.FALSE_WARNING / self._history.figures
        spread = float(robust.student(chance, np.array(engine.CLASS_WEIGHT))) * subject.kind.peers * math.sqrt(2)
        least = float(self.least[column])
        limit = min(max(least, spread), engine.most_that_passes(least))
        if abs(values[0] - values[1]) > limit:
            slow, fast = (self.labels[pair[i]] for i in ((0, 1) if values[0] > values[1] else (1, 0)))
            change = percent(abs(values[0] - values[1]), subject.metric.better)
            text = f"{slow} and {fast} differ: {subject.metric.name} of {slow} is {change:+.1%}; which one is odd cannot be told"
            finding = Finding(gate=REFERENCE, outcome="warn", metric=subject.metric.name, text=text)
            yield subject.series.judged(finding, runs=())

    def _fleet(self, subject: Subject, last: engine.Verdict, labels: Sequence[int], column: int) -> Judged:
        excess, limit = float(last.fleet[column]), float(last.fleet_weak[column])
        better, name = subject.metric.better, subject.metric.name
        outcome: Outcome = "fail" if last.fleet_fails[column] else "warn" if last.fleet_warns[column] else "pass"
        if outcome == "fail" and subject.kind.most == "warn":
            outcome = "warn"
        kind = f"{_shape(self.labels[0])}s"
        text = f"all {len(labels)} {kind} together: {name} {percent(excess, better):+.1%}; {_limit(limit, better)}"
        changed: tuple[str, ...] = ()
        if outcome != "pass":
            counts: dict[str, int] = {}
            for row in labels:
                for change in self.changes(row, len(self._nights) - 1):
                    counts[change] = counts.get(change, 0) + 1
            changed = tuple(f"{change} on {count} of {len(labels)} {kind}" for change, count in sorted(counts.items()))
            text += f"; changed: {', '.join(changed)}" if changed else "; no recorded version changed"
        compared = Compared(
            kind=subject.kind.name, better=better, excess=excess, limit=limit, nights=int(last.fleet_nights[column]),
        )  # fmt: skip
        since = self.date(-1) if outcome != "pass" else None
        finding = Finding(gate=FLEET, outcome=outcome, metric=name, text=text, suspects=changed, since=since)
        return subject.series.judged(
            finding, reference=f"the same {kind} on {compared.nights} earlier nights", compared=compared
        )

    def date(self, index: int) -> str:
        return self._dates.get(self._nights[index], f"night {self._nights[index]}")

    def number(self, index: int) -> int:
        return self._nights[index]

    def changes(self, row: int, index: int) -> tuple[str, ...]:
        """Versions of a label that differ between a night and the one before it that measured it."""
        index %= len(self._nights)
        before = next((self._versions[i, row] for i in range(index - 1, -1, -1) if (i, row) in self._versions), {})
        return records.changes(before, self._versions.get((index, row), {}))


class _Cell:
    """A figure of a label tonight."""

    def __init__(
        self, table: _Table, subject: Subject, row: int, column: int, verdicts: Sequence[engine.Verdict]
    ) -> None:
        self._table, self._subject, self._verdicts = table, subject, verdicts
        self._row, self._column, self._last = row, column, verdicts[-1]
        self._label = table.labels[row]

    def _get(self, values: Any) -> Any:
        return values[self._row, self._column].item()

    def judged(self, slide: float | None) -> Judged:
        series, metric, last = self._subject.series, self._subject.metric, self._last
        compared = self._compared()
        outcome, text, index = self._say(compared, slide)
        if outcome == "fail" and self._subject.kind.most == "warn":
            outcome = "warn"
        changed = self._table.changes(self._row, index) if index is not None else ()
        if outcome == "pass" and (reason := self._crowd()):
            outcome, text = "unknown", f"{text}; not judged: {reason}"
        text += f"; changed that night: {', '.join(changed)}" if changed else ""
        finding = Finding(
            gate=REFERENCE, outcome=outcome, metric=metric.name, node=self._label, suspects=changed,
            text=f"{self._label}: {metric.name} {text}" if self._label else f"{metric.name} {text}",
            since=self._table.date(index) if index is not None else None,
        )  # fmt: skip
        is_told = bool(self._busy() or self._crowd() or self._is_large(compared))
        return series.judged(
            finding, reference=self._reference(compared), is_counted=outcome != "unknown" or is_told,
            compared=replace(compared, is_suspect=bool(self._get(last.suspects))),
        )  # fmt: skip

    def _busy(self) -> str:
        """Return why the figure is unknown although it was measured; empty if it is not."""
        busy, number = self._table.tonight.busy, self._table.tonight.number
        return next((busy[number, node] for node in nodes_of(self._label) if (number, node) in busy), "")

    def _crowd(self) -> str:
        """Return why a figure that is compared does not pass; empty if it may. The parts of a node do not depend on its load."""
        if self._subject.kind.name == "parts" or math.isnan(self._get(self._last.excess)):
            return ""
        reasons = self._table.tonight.crowded
        return next((reasons[node] for node in nodes_of(self._label) if node in reasons), "")

    @property
    def _most(self) -> float:
        return float(engine.most_that_passes(self._table.least[self._column]))

    def _is_large(self, compared: Compared) -> bool:
        """Return whether the change is beyond what may pass, also where the limit is too wide to say more."""
        excess = compared.excess or 0.0
        return (abs(excess) if compared.peers else excess) > self._most

    def _compared(self) -> Compared:
        last, sign = self._last, self._subject.metric.sign
        limit, peers = self._get(last.limit), int(self._get(last.peers))
        excess, again, level = (
            None if math.isnan(number) else number
            for number in map(self._get, (last.excess, last.again, last.reference))
        )
        nights = self._get(last.nights)
        entered = [i for i, verdict in enumerate(self._verdicts[:-1]) if verdict.enters[self._row, self._column]]
        used = [f"night {self._table.number(index)}" for index in entered[:nights]] or [""]
        return Compared(
            kind=self._subject.kind.name, better=self._subject.metric.better, excess=excess, again=again, nights=nights,
            limit=self._get(last.weak) if peers else None if excess is None else limit,
            reference=None if level is None else math.exp(sign * level), first=used[0], last=used[-1],
            day=float(last.day[self._column]), peers=peers,
            is_resolved=peers > 0 or limit <= self._most,
        )  # fmt: skip

    def _reference(self, compared: Compared) -> str:
        if compared.peers:
            return f"{compared.peers} equal nodes in the same night"
        return f"the median of {_nights(compared.nights)}" if compared.nights else ""

    def _say(self, compared: Compared, slide: float | None) -> tuple[Outcome, str, int | None]:
        """State, sentence, and the night in which it began."""
        last, better = self._last, compared.better
        if compared.excess is None:
            reason = self._busy()
            return "unknown", f"is not judged: {reason}" if reason else "has no earlier night: reference set", None
        change = f"{percent(compared.excess, better):+.1%}"
        again = "not measured again" if compared.again is None else f"again {percent(compared.again, better):+.1%}"
        limit = _limit(compared.limit or 0.0, better)
        if compared.peers:
            is_odd = bool(self._get(last.unresolved))
            if (compared.limit or 0.0) > engine.WIDEST and not is_odd:
                beside = f" (it is {change} beside them)" if self._is_large(compared) else ""
                return (
                    "unknown",
                    f"has no earlier night, and its equal nodes differ too much to see an odd one{beside}",
                    None,
                )
            text = f"is {change} beside {compared.peers} equal nodes; {limit}, first night"
            text += "; they may be slow" if is_odd and compared.excess < 0 else ""
            return "warn" if is_odd else "pass", text, len(self._verdicts) - 1 if is_odd else None
        against = f"{change} against {_nights(compared.nights)}"
        begun = self._begun()
        flaky, lasting = (self._get(flags) for flags in (last.flaky, last.lasting))
        if self._get(last.fails):
            return self._say_failure(f"{against}, ", again, limit, begun)
        if flaky:
            return "warn", f"{against}, {again}{'' if compared.again is None else ': flaky'}; {limit}", begun
        if self._get(last.unresolved):
            return "warn", f"{against}, {again}: not resolved; {limit}", begun
        if slide is not None:
            start = max(len(self._verdicts) - engine.SLIDE_NIGHTS, 0)
            return "warn", f"slides: {percent(slide, better):+.1%} within {engine.SLIDE_NIGHTS} nights", start
        if lasting and compared.again is None:
            mean = percent(self._get(last.lasting_mean), better)
            return "warn", f"{mean:+.1%} in the mean of its last {engine.LASTING_NIGHTS} nights, {again}", begun
        return "pass", f"{against}; {limit}", None

    def _say_failure(self, against: str, again: str, limit: str, begun: int) -> tuple[Outcome, str, int]:
        last = self._last
        if self._get(last.flaky):
            return "fail", f"{against}{again}; the second time within {engine.FLAKY_NIGHTS} nights; {limit}", begun
        if self._get(last.first):
            return "fail", f"{against}twice tonight ({again}); {limit}", begun
        mean = percent(self._get(last.lasting_mean), self._subject.metric.better)
        text = f"{mean:+.1%} in the mean of its last {engine.LASTING_NIGHTS} nights, {again}: it lasts"
        return "fail", text, max(len(self._verdicts) - engine.LASTING_NIGHTS, 0)

    def _begun(self) -> int:
        """The first of the nights up to tonight on which it was out of its limits, or not measured."""
        index = begun = len(self._verdicts) - 1
        while index and not self._verdicts[index - 1].enters[self._row, self._column]:
            index -= 1
            begun = begun if math.isnan(self._table.values[index, self._row, self._column]) else index
        return begun


def _slowness(values: Floats, sign: Floats) -> Floats:
    """Logarithms, greater is worse. A rate that is 0 in one pass has none; no time is 0, so that such a pass of it says nothing."""
    import numpy as np

    is_usable = (values > 0) & np.isfinite(values)
    is_whole = np.all(np.isnan(values) | is_usable, axis=-1) | (sign > 0)
    return sign[:, None] * np.log(np.where(is_usable & is_whole[..., None], values, np.nan))


def _since_levels(values: Floats, levels: Flags) -> Floats:
    """Blank the nights before the last accepted level."""
    import numpy as np

    later: Floats = np.flip(np.cumsum(np.flip(levels, axis=0), axis=0), axis=0) - levels
    return np.where(later > 0, np.nan, values)


def _least(subject: Subject) -> float:
    """The least change that counts, as a logarithm."""
    least, usable = subject.kind.least, [v for values in subject.series.values.values() for v in values if v > 0]
    if subject.minimum and usable:
        least = max(least, min(subject.minimum / statistics.median(usable), 0.99))
    return engine.least_change(least, subject.metric.better)


def _limit(limit: float, better: Better) -> str:
    share = abs(percent(min(limit, 20.0), better))
    return f"limit {share:.1%}".replace(".0%", "%")


def _nights(count: int) -> str:
    return f"its {count} earlier nights" if count > 1 else "its earlier night"
