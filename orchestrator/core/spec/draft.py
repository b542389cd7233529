"""A document with what the command line laid over it, and the list of its mistakes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...model.errors import UsageError
from . import source_positions, values


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A value from the command line for the place ``path``; ``source`` is how it was written. ``append``: to a list."""

    path: source_positions.Path
    value: Any
    source: str
    append: bool = False


@dataclass(slots=True, kw_only=True)
class Draft:
    """``sources``: the parts that come from the command line, with the option that set each."""

    document: source_positions.Document
    value: Any
    sources: dict[source_positions.Path, str] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def say(self, where: source_positions.Path, text: str, got: Any = ..., *, hint: str = "") -> None:
        """Note a mistake. ``hint``: what to do about it, where looking at the parameters of the trial is not enough."""
        self.hints += [hint] if hint else []
        suffix = "" if got is ... else f" (got {values.show(got)})"
        self.problems.append((self._order(where), f"{self._label(where)}: {text}{suffix}"))

    def section(self, key: str) -> dict[str, Any]:
        """The mapping under ``key``; a mistake if it is something else."""
        body = self.value.get(key)
        if body is None:
            return {}
        if isinstance(body, dict):
            return body
        self.say((key,), "must be a mapping", body)
        return {}

    def unknown(self, where: source_positions.Path, body: Mapping[str, Any], known: Iterable[str], what: str) -> None:
        names = tuple(known)
        for key in body:
            if key not in names:
                self.say((*where, key), f"unknown {what}; {values.nearest(key, names)}")

    def build(self, where: source_positions.Path, cls: type, body: Mapping[str, Any], what: str) -> dict[str, Any]:
        """The arguments for the dataclass ``cls``, converted; problems are noted."""
        good, wrong = values.fields(cls, what, body)
        for name, text in wrong:
            self.say((*where, name), text)
        return good

    def made(self, where: source_positions.Path, cls: type, good: Mapping[str, Any]) -> Any:
        """``cls(**good)``; None when it refuses the values, which is noted."""
        value, problem = values.make(cls, good)
        if problem:
            self.own(where, problem, good)
        return value

    def own(self, where: source_positions.Path, problem: str, names: Iterable[str]) -> None:
        """Note what a plugin says of its own values, as ``name: text``, at the place of that name."""
        name, _, text = problem.partition(": ")
        if text and name in names:
            self.say((*where, name), text)
        else:
            self.say(where, problem)

    def least(self, where: source_positions.Path, given: dict[str, Any], limits: Mapping[str, float]) -> None:
        """Note and drop each of ``given`` that is below its limit."""
        for name, limit in limits.items():
            if name in given and given[name] is not None and given[name] < limit:
                self.say((*where, name), f"must be >= {limit:g}", given.pop(name))

    def finish(self) -> None:
        """Raises UsageError with every mistake, in the order of the lines."""
        for where in self.document.repeated:
            self.say(where, "stands twice")
        if self.problems:
            texts = dict.fromkeys(text for _, text in sorted(self.problems, key=lambda one: one[0]))
            general = (
                [] if self.hints else [f"ccbed run {self.document.name} --help tells every parameter and its form"]
            )
            raise UsageError(*texts, hint="\n".join(dict.fromkeys([*self.hints, *general])))

    def option(self, where: source_positions.Path) -> str:
        """The option that set the value there; empty where the document did."""
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
        return f"{self.document.place(*where)}: {dotted(where)}" if where else self.document.place()

    def _order(self, where: source_positions.Path) -> int:
        return 1_000_000 if self._source(where)[0] else self.document.line(*where)


def lay(document: source_positions.Document, overrides: Iterable[Override]) -> Draft:
    """Raises UsageError when the document is no mapping."""
    if not isinstance(document.value, dict):
        raise UsageError(
            f"{document.place()}: must be a mapping with `trial` and `workload` (got {values.show(document.value)})"
        )
    draft = Draft(document=document, value=copy.deepcopy(document.value))
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
    body = draft.value
    for key in override.path[:-1]:
        if not isinstance(body.get(key), dict):
            body[key] = {}
        body = body[key]
    last = override.path[-1]
    if not override.append:
        body[last] = override.value
        draft.sources[override.path] = override.source
        return
    items = body[last] if isinstance(body.get(last), list) else []
    body[last] = [*items, override.value]
    draft.sources[(*override.path, len(items))] = override.source
