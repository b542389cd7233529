"""A trial's document with the overrides of the command line applied, and the list of its mistakes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from ...model.errors import UsageError
from ...model.frozen import dataclass, field
from . import source_positions, written_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A value from the command line for ``path``. ``source``: the option as written; ``append``: extend the list there."""

    path: source_positions.Path
    content: Any
    source: str
    append: bool = False


@dataclass(slots=True, kw_only=True)
class Draft:
    """``content``: the document with overrides applied; ``sources``: path -> the option that set the value there."""

    document: source_positions.Document
    content: Any
    sources: dict[source_positions.Path, str] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def add_problem(self, where: source_positions.Path, text: str, got: Any = ..., *, hint: str = "") -> None:
        """Record a mistake. ``hint``: what to do next, where the trial's ``--help`` does not explain it."""
        self.hints += [hint] if hint else []
        suffix = "" if got is ... else f" (got {written_values.show(got)})"
        self.problems.append((self._order(where), f"{self._label(where)}: {text}{suffix}"))

    def section(self, key: str) -> dict[str, Any]:
        """The mapping under ``key``; anything else is recorded as a mistake."""
        body = self.content.get(key)
        if body is None:
            return {}
        if isinstance(body, dict):
            return body
        self.add_problem((key,), "must be a mapping", body)
        return {}

    def reject_unknown_keys(
        self, where: source_positions.Path, body: Mapping[str, Any], known: Iterable[str], what: str
    ) -> None:
        names = tuple(known)
        for key in body:
            if key not in names:
                self.add_problem((*where, key), f"unknown {what}; {written_values.nearest(key, names)}")

    def convert_arguments(
        self, where: source_positions.Path, cls: type, body: Mapping[str, Any], what: str
    ) -> dict[str, Any]:
        """The converted arguments for the dataclass ``cls``; problems are recorded."""
        arguments, problems = written_values.convert_fields(cls, what, body)
        for name, text in problems:
            self.add_problem((*where, name), text)
        return arguments

    def construct(self, where: source_positions.Path, cls: type, arguments: Mapping[str, Any]) -> Any:
        """``cls(**arguments)``; None when the class rejects the values, which is recorded."""
        instance, problem = written_values.construct(cls, arguments)
        if problem:
            self.add_plugin_problem(where, problem, arguments)
        return instance

    def add_plugin_problem(self, where: source_positions.Path, problem: str, names: Iterable[str]) -> None:
        """Record a plugin's message about its own values; ``name: text`` is recorded at the position of that name."""
        name, _, text = problem.partition(": ")
        if text and name in names:
            self.add_problem((*where, name), text)
        else:
            self.add_problem(where, problem)

    def enforce_minimums(
        self, where: source_positions.Path, arguments: dict[str, Any], limits: Mapping[str, float]
    ) -> None:
        """Record and drop the arguments that are below their limits."""
        for name, limit in limits.items():
            if name in arguments and arguments[name] is not None and arguments[name] < limit:
                self.add_problem((*where, name), f"must be >= {limit:g}", arguments.pop(name))

    def raise_problems(self) -> None:
        """Raise UsageError with every mistake, in the order of the lines, if there is one."""
        for where in self.document.repeated:
            self.add_problem(where, "appears twice")
        if self.problems:
            texts = dict.fromkeys(text for _, text in sorted(self.problems, key=lambda problem: problem[0]))
            general = (
                [] if self.hints else [f"ccbed run {self.document.name} --help lists every parameter and its form"]
            )
            raise UsageError(*texts, hint="\n".join(dict.fromkeys([*self.hints, *general])))

    def option(self, where: source_positions.Path) -> str:
        """The option that set the value at ``where``; empty if the document set it."""
        return self._source(where)[0]

    def _source(self, where: source_positions.Path) -> tuple[str, int]:
        for length in range(len(where), 0, -1):
            if where[:length] in self.sources:
                return self.sources[where[:length]], length
        return "", 0

    def _label(self, where: source_positions.Path) -> str:
        source, length = self._source(where)
        rest = ".".join(map(str, where[length:]))
        if source:
            return f"{source}: {rest}" if rest else source
        return f"{self.document.position(*where)}: {dotted(where)}" if where else self.document.position()

    def _order(self, where: source_positions.Path) -> int:
        return 1_000_000 if self._source(where)[0] else self.document.line(*where)


def apply_overrides(document: source_positions.Document, overrides: Iterable[Override]) -> Draft:
    """The document with the overrides. Raises UsageError when the document is no mapping."""
    if not isinstance(document.content, dict):
        raise UsageError(
            f"{document.position()}: must be a mapping with `trial` and `workload`"
            f" (got {written_values.show(document.content)})"
        )
    draft = Draft(document=document, content=copy.deepcopy(document.content))
    for override in overrides:
        _set(draft, override)
    return draft


def dotted(where: source_positions.Path) -> str:
    """``faults[0].at.step``"""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _set(draft: Draft, override: Override) -> None:
    body = draft.content
    for key in override.path[:-1]:
        if not isinstance(body.get(key), dict):
            body[key] = {}
        body = body[key]
    last = override.path[-1]
    if not override.append:
        body[last] = override.content
        draft.sources[override.path] = override.source
        return
    items = body[last] if isinstance(body.get(last), list) else []
    body[last] = [*items, override.content]
    draft.sources[(*override.path, len(items))] = override.source


@dataclass(frozen=True, kw_only=True)
class Section:
    """A mapping of a document, as the user wrote it at ``where``. Mistakes are recorded in ``draft``."""

    draft: Draft
    where: source_positions.Path
    content: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        return self.content.get(key, default)

    def add_problem(self, key: str, text: str, *, hint: str = "") -> None:
        """Record a mistake in the value of ``key``, which is shown."""
        self.draft.add_problem((*self.where, key), text, self.content[key], hint=hint)
