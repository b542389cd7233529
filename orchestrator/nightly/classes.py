"""Classes of metrics: how large a change counts, from ``classes.yml`` and a project's own file."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ..core.spec import source_positions, trial_draft, written_values
from ..model.errors import UsageError
from ..model.frozen import dataclass

#: The project's own file, in the directory of its baselines.
FILE = "classes.yml"
_SHIPPED = Path(__file__).with_name(FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricClass:
    """``least``: the least change that counts; ``spread``: usual from night to night; ``peers``: usual between equal nodes. Shares: 0.05
    is 5 %. ``compare``: by ratio, by new errors, or never; ``most``: the worst state of a metric.
    """

    name: str
    metrics: tuple[str, ...]
    compare: Literal["ratio", "new", "never"] = "ratio"
    least: float = 0.05
    spread: float = 0.01
    peers: float = 0.03
    most: Literal["fail", "warn"] = "fail"


def matches(pattern: str, metric: str) -> bool:
    """Return whether a pattern is the metric's name, some of its words in order, or matches them with ``*``."""
    return fnmatch.fnmatchcase(f" {metric} ", f"* {pattern} *")


def read(directory: Path | None = None) -> tuple[MetricClass, ...]:
    """The classes; those of FILE in ``directory`` replace shipped ones of their names, or come first.

    Raises UsageError with a line for every mistake.
    """
    shipped = parse(_SHIPPED.read_text(), str(_SHIPPED))
    file = directory / FILE if directory else None
    if file is None or not file.is_file():
        return shipped
    try:
        own = {entry.name: entry for entry in parse(file.read_text(), str(file))}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {error}", hint="correct it, or remove it") from None
    known = {entry.name for entry in shipped}
    added = tuple(entry for name, entry in own.items() if name not in known)
    return (*added, *(own.get(entry.name, entry) for entry in shipped))


def parse(text: str, path: str) -> tuple[MetricClass, ...]:
    """Raises UsageError with a line for every mistake."""
    document = source_positions.load(text, path)
    hint = "ccbed ships the classes as orchestrator/nightly/classes.yml, with the keys explained"
    content = document.content if isinstance(document.content, dict) else {}
    draft = trial_draft.Draft(document=document, content=content, hints=[hint])
    draft.reject_unknown_keys((), content, ("classes",), "key")
    classes = draft.section("classes")
    if not classes and not draft.problems:
        draft.add_problem((), "must be a mapping with `classes`")
    entries = [_entry(draft, str(name), body) for name, body in classes.items()]
    draft.raise_problems()
    return tuple(entry for entry in entries if entry)


def _entry(draft: trial_draft.Draft, name: str, body: object) -> MetricClass | None:
    where: source_positions.Path = ("classes", name)
    if not isinstance(body, dict):
        draft.add_problem(where, "must be a mapping with `metrics`", body)
        return None
    shares: dict[str, float] = {}
    before = len(draft.problems)
    for key in ("least", "spread", "peers"):
        try:
            shares |= {key: written_values.share(body[key])} if key in body else {}
        except ValueError as error:
            draft.add_problem((*where, key), str(error), body[key])
    arguments = draft.convert_arguments(where, MetricClass, {**body, **shares, "name": name}, "key")
    return MetricClass(**arguments) if len(draft.problems) == before else None


def of(metric: str, known: Sequence[MetricClass]) -> MetricClass:
    """The class of a metric; one with the widest limits that never fails, where a project's classes name no such metric."""
    fallback = MetricClass(name="other", metrics=("*",), least=0.3, spread=0.15, peers=0.15, most="warn")
    return next((entry for entry in known if any(matches(p, metric) for p in entry.metrics)), fallback)
