"""Parse a suite: YAML -> Suite, or one UsageError with every mistake, those of its trials included."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..core.spec import parse_trial, source_positions, trial_draft, written_values
from ..model.bed import BedSpec
from ..model.errors import UsageError
from ..model.frozen import dataclass, field, replace
from ..model.plugin import Catalogue
from . import selector
from .suite import Cell, MetricRule, Suite

#: ``nodes: all`` in the world of a cell: every node of the bed.
ALL = "all"
MAX_CELLS = 1000
MAX_REPEATS = 10_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_PATHS = ("params", "world", "recovery", "liveness", "seed")

#: The name of a trial in a suite -> its name for `ccbed run`, and its document. Raises UsageError.
TrialReader = Callable[[str], tuple[str, source_positions.Document]]


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Keys of a trial that ``defaults`` may set for all of them.

    world      of the trial; nodes: all is every node of the bed
    repeats    how often each cell is run
    precision  2%: the repeats stop when the interval of 95 % of the median of the cell's first metric is narrower than this
               share of it; that takes 6 repeats at least
    priority   with a budget, cells of a higher priority come first
    deadline   of each repeat; a run that takes longer is ended
    needs      what the bed must have, else the cell is skipped
    """

    world: Mapping[str, Any] = field(default_factory=dict)
    repeats: int = 1
    precision: str = ""
    priority: int = 0
    deadline_s: float = 600.0
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Entry(Defaults):
    """An item of ``trials``.

    trial    a trial of `ccbed list trials`, or a file relative to the suite's
    name     of its cells, where a trial appears twice; default: the trial's
    matrix   a parameter, or a path such as world.nodes, with a list of values: a cell for each combination
    params   parameters of the workload
    faults   instead of the trial's
    metrics  what is demanded of a metric: floor, minimum_absolute, set_aside
    """

    trial: str
    name: str = ""
    matrix: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    faults: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Head:
    """A suite.

    suite     its name
    seed      of the order of its cells
    budget    time that a night may take, such as 30m; what does not fit is skipped
    defaults  for all trials
    trials    what is run
    """

    suite: str
    seed: int = 0
    budget_s: float | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    trials: Any = None


def parse(text: str, path: str, catalogue: Catalogue, read_trial: TrialReader, bed: BedSpec | None = None) -> Suite:
    """Parse ``text``; ``path`` names the file in errors. Every cell's trial is built, on ``bed`` if there is one. Raises UsageError."""
    document = source_positions.load(text, path)
    if not isinstance(document.content, dict):
        raise UsageError(
            f"{document.position()}: must be a mapping with `suite` and `trials` (got {written_values.show(document.content)})",
            hint=f"correct {path}; an example: ccbed list suites",
        )
    return _Parser(document, catalogue, read_trial, bed).suite(text)


def overrides(
    cell: Cell, bed: BedSpec | None, label: Callable[[str], str] = lambda dotted: dotted, nodes: int | None = None
) -> list[trial_draft.Override]:
    """Return what a cell changes in its trial's document. ``label``: dotted path -> how errors name it; ``nodes``: how many ``all`` are,
    by default every node of the bed.
    """
    count = nodes or (sum(node.role == "node" for node in bed.nodes) if bed else None)
    changes = dict(cell.overrides)
    if changes.get("world.nodes") == ALL:
        changes.pop("world.nodes")
        changes |= {"world.nodes": count} if count else {}
    return [
        trial_draft.Override(path=tuple(dotted.split(".")), content=content, source=label(dotted))
        for dotted, content in changes.items()
    ]


class _Parser:
    def __init__(
        self, document: source_positions.Document, catalogue: Catalogue, read_trial: TrialReader, bed: BedSpec | None
    ) -> None:
        self._draft = trial_draft.Draft(document=document, content=document.content)
        self._catalogue = catalogue
        self._read_trial = read_trial
        self._bed = bed
        self._cells: dict[str, Cell] = {}

    def suite(self, text: str) -> Suite:
        draft = self._draft
        head = draft.convert_arguments((), Head, draft.content, "key")
        name = head.get("suite", "")
        if "suite" in head and not NAME.fullmatch(name):
            draft.add_problem(
                ("suite",), "must be 1 to 60 letters, digits, . _ - and begin with a letter or digit", name
            )
        draft.enforce_minimums((), head, {"seed": 0, "budget_s": 0.001})
        defaults = self._section(("defaults",), draft.section("defaults"))
        self._arguments(Defaults, defaults)
        for index, item in enumerate(self._items(head.get("trials"))):
            self._entry(("trials", index), item, defaults)
        draft.hints.append(f"correct {draft.document.path}, then: ccbed nightly {draft.document.name} --dry-run")
        draft.raise_problems()
        return Suite(
            name=name,
            cells=tuple(self._cells.values()),
            seed=head.get("seed", 0),
            budget_s=head.get("budget_s"),
            text=text,
        )

    def _items(self, items: Any) -> list[Any]:
        if isinstance(items, list) and items:
            return items
        problem = "must be a list of trials" if items else "is empty: a suite has one trial at least"
        self._draft.add_problem(("trials",), problem, items or ...)
        return []

    def _section(self, where: source_positions.Path, content: Any) -> trial_draft.Section:
        return trial_draft.Section(draft=self._draft, where=where, content=content or {})

    def _arguments(self, cls: type, section: trial_draft.Section) -> dict[str, Any]:
        """The converted keys of ``defaults``, or of a trial; mistakes are recorded."""
        draft, where = self._draft, section.where
        arguments = draft.convert_arguments(where, cls, section.content, "key")
        draft.enforce_minimums(where, arguments, {"repeats": 1, "deadline_s": 0.1})
        if arguments.get("repeats", 1) > MAX_REPEATS:
            draft.add_problem((*where, "repeats"), f"must be <= {MAX_REPEATS}", arguments.pop("repeats"))
        try:
            arguments["precision"] = _share(arguments.get("precision") or "")
        except ValueError as error:
            draft.add_problem((*where, "precision"), str(error), arguments.pop("precision"))
        for need in arguments.get("needs", ()):
            if need not in selector.REQUIREMENTS:
                draft.add_problem(
                    (*where, "needs"), f"unknown; {written_values.nearest(need, selector.REQUIREMENTS)}", need
                )
        return arguments

    def _entry(self, where: source_positions.Path, item: Any, defaults: trial_draft.Section) -> None:
        draft = self._draft
        if isinstance(item, str):
            item = {"trial": item}
        if not isinstance(item, dict):
            draft.add_problem(where, "must be a mapping with `trial`", item)
            return
        arguments = self._arguments(Entry, self._section(where, item))
        inherited, _ = written_values.convert_fields(
            Defaults, "key", {key: value for key, value in defaults.content.items() if key not in item}
        )
        world = {**(inherited.pop("world", None) or {}), **arguments.get("world", {})}
        precision = arguments.pop("precision", None)
        if "precision" in inherited:
            precision = _share_or_none(inherited.pop("precision"))
        merged = {**inherited, **arguments, "world": world}
        rules = self._rules(self._section((*where, "metrics"), merged.get("metrics")))
        choices = self._choices(self._section((*where, "matrix"), merged.get("matrix")))
        if "trial" not in merged:
            return
        try:
            trial, document = self._read_trial(merged["trial"])
        except UsageError as error:
            for problem in error.problems:
                draft.add_problem((*where, "trial"), problem)
            return
        base = Cell(
            name="", trial=trial, repeats=merged.get("repeats", 1), precision=precision, priority=merged.get("priority", 0),
            deadline_s=merged.get("deadline_s", Defaults.deadline_s), needs=merged.get("needs", ()), rules=rules,
        )  # fmt: skip
        stem = merged.get("name") or (document.content or {}).get("trial") or merged["trial"]
        for choice in choices:
            shown = ",".join(f"{key}={written_values.show(value)}" for key, value in choice.items())
            cell = replace(base, name=f"{stem}[{shown}]" if shown else str(stem), overrides=_changes(merged, choice))
            self._add(where, cell, document)

    def _add(self, where: source_positions.Path, cell: Cell, document: source_positions.Document) -> None:
        if cell.name in self._cells:
            self._draft.add_problem(where, f"the cell {cell.name} appears twice; give it a name of its own: `name: …`")
            return
        if len(self._cells) >= MAX_CELLS:
            self._draft.add_problem(where, f"more than {MAX_CELLS} cells")
            return
        self._cells[cell.name] = cell
        problems = self._problems(where, cell, document, self._bed)
        if (
            problems and cell.overrides.get("world.nodes") == ALL
        ):  # too few nodes are no mistake: the night skips the cell
            problems = self._problems(where, cell, document, None)
        self._draft.problems += [(self._draft.document.line(*where), problem) for problem in problems]

    def _problems(
        self, where: source_positions.Path, cell: Cell, document: source_positions.Document, bed: BedSpec | None
    ) -> tuple[str, ...]:
        try:
            parse_trial.build(document, self._catalogue, overrides(cell, bed, lambda path: self._label(where, path)))
        except UsageError as error:
            return tuple(error.problems)
        return ()

    def _label(self, where: source_positions.Path, dotted: str) -> str:
        """``file:line: place`` of a value that a cell sets in its trial: in its matrix, else in its own key."""
        lines = self._draft.document.lines
        places = [(*where, "matrix", key) for key in (dotted, dotted.removeprefix("params."))]
        place = next((place for place in places if place in lines), (*where, *dotted.split(".")))
        return f"{self._draft.document.position(*place)}: {trial_draft.dotted(place)}"

    def _choices(self, matrix: trial_draft.Section) -> list[dict[str, Any]]:
        """One mapping per combination of the values; a single empty one without a matrix."""
        lists: dict[str, list[Any]] = {}
        for key, items in matrix.content.items():
            head = key.partition(".")[0]
            if "." in key and head not in _PATHS:
                self._draft.add_problem((*matrix.where, key), f"unknown path; {written_values.nearest(head, _PATHS)}")
            elif not isinstance(items, list) or not items:
                matrix.add_problem(key, "must be a list of values")
            else:
                lists[key] = items
        if math.prod(map(len, lists.values())) > MAX_CELLS:
            self._draft.add_problem(matrix.where, f"has more than {MAX_CELLS} combinations")
            return []
        return [dict(zip(lists, choice, strict=True)) for choice in itertools.product(*lists.values())]

    def _rules(self, metrics: trial_draft.Section) -> tuple[MetricRule, ...]:
        rules = []
        for metric, body in metrics.content.items():
            if body is not None and not isinstance(body, dict):
                metrics.add_problem(metric, "must be a mapping with floor, minimum_absolute or set_aside")
                continue
            place = (*metrics.where, metric)
            arguments = self._draft.convert_arguments(place, Rule, body or {}, "key")
            self._draft.enforce_minimums(place, arguments, {"minimum_absolute": 0})
            key = "set_aside" if "set_aside" in arguments else "xfail"
            defect = self._defect((*place, key), arguments.get(key, ""))
            rules.append(
                MetricRule(
                    metric=metric, **{name: arguments[name] for name in arguments.keys() - {"set_aside"}} | defect
                )
            )
        return tuple(rules)

    def _defect(self, where: source_positions.Path, content: Any) -> dict[str, Any]:
        """The fields of MetricRule for a reason alone, or for ``{reason: …, nodes: […]}``."""
        body = content if isinstance(content, dict) else {"reason": content}
        problems = len(self._draft.problems)
        known = self._draft.convert_arguments(where, KnownDefect, body, "key")
        reason, nodes = known.get("reason") or known.get("ticket", ""), known.get("nodes", ())
        if isinstance(content, dict) and len(self._draft.problems) == problems and not (reason and nodes):
            self._draft.add_problem(where, "needs a reason and the names of its nodes", content)
        return {"xfail": reason, "xfail_nodes": nodes}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The keys of a metric's rule. ``xfail``: the former name of ``set_aside``, for one release."""

    floor: float | None = None
    minimum_absolute: float = 0.0
    set_aside: Any = ""
    xfail: Any = ""


@dataclass(frozen=True, kw_only=True)
class KnownDefect:
    """``set_aside`` as a mapping. ``nodes``: whose failures are expected; ``ticket``: the former name of ``reason``."""

    reason: str = ""
    ticket: str = ""
    nodes: tuple[str, ...] = ()


def _changes(arguments: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted path -> value, of the keys of an entry and of its place in the matrix."""
    return dict(_dotted(arguments, choice))


def _dotted(arguments: Mapping[str, Any], choice: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section in ("params", "world"):
        for key, value in arguments.get(section, {}).items():
            yield f"{section}.{key.replace('-', '_')}", value
    if arguments.get("faults") is not None:
        yield "faults", arguments["faults"]
    for key, value in choice.items():
        yield (key if "." in key or key in _PATHS else f"params.{key}").replace("-", "_"), value


def _share(text: str) -> float | None:
    """``2%`` or 0.02 -> 0.02; None for an empty text. Raises ValueError."""
    if not text.strip():
        return None
    number = written_values.convert(float, text.strip().removesuffix("%"))
    share = float(number) / 100 if text.strip().endswith("%") else float(number)
    if not 0 < share < 1:
        raise ValueError("must be a share such as 2%")
    return share


def _share_or_none(text: str) -> float | None:
    """The share of a default, whose mistakes were recorded where it stands."""
    try:
        return _share(text)
    except ValueError:
        return None
