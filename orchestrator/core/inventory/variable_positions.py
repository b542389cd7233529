"""Source positions of variables and hosts in the YAML files of an inventory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from ...model.frozen import dataclass
from ..spec import source_positions, written_values

_RANGE = re.compile(r"\[[^\]]*:[^\]]*\]")
#: The port of a host in YAML and INI: ``gpu-a:2222``.
_PORT = re.compile(r"(?<!:):\d{1,5}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of an inventory: its hosts and groups, or the variables of the host or group ``name``."""

    kind: Literal["inventory", "group_vars", "host_vars"]
    name: str
    document: source_positions.Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """``text`` as in an error: ``file:line: hosts.h2.ccbed_gpus``. ``line`` 0: not in any file."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The output of `ansible-inventory --list`: groups with their hosts and child groups, and the variables of every host."""

    content: Mapping[str, Any]

    @property
    def hostvars(self) -> Mapping[str, Mapping[str, Any]]:
        """Host -> its variables."""
        return self.content.get("_meta", {}).get("hostvars", {})  # type: ignore[no-any-return]

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """Group -> the hosts of it and of its child groups, without repetition."""
        return {name: self.members(name) for name in self.content if name != "_meta"}

    def members(self, group: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._members(group, ())))

    def groups_of(self, host: str) -> tuple[str, ...]:
        """The groups of a host, the smallest first: a smaller group more likely sets a variable."""
        groups = self.groups
        return tuple(sorted((name for name in groups if host in groups[name]), key=lambda name: len(groups[name])))

    def _members(self, group: str, parents: tuple[str, ...]) -> Iterator[str]:
        if group in parents:
            return
        body = self.content.get(group, {})
        yield from body.get("hosts", ())
        for child in body.get("children", ()):
            yield from self._members(child, (*parents, group))


def find_variable(sources: Sequence[Source], groups: Iterable[str], host: str, key: str, value: Any) -> Position | None:
    """The position of ``key``: of several, a position that has this value, else the nearest to the host."""
    candidates = [*_of_host(sources, host, key)]
    for group in groups:
        candidates += _of_group(sources, group, key)
    same = [
        (source, path) for source, path in candidates if str(_content_at(source, path)).strip() == str(value).strip()
    ]
    best = next(iter(same or candidates), None)
    return position(*best) if best else None


def find_host(sources: Sequence[Source], name: str) -> str:
    """The position that names a host; empty if no YAML file names it."""
    for source in (source for source in sources if source.kind == "inventory"):
        for where in source.document.lines:
            if len(where) > 1 and where[-2] == "hosts" and _names(str(where[-1]), name):
                return position(source, where).text
    return ""


def _of_host(sources: Sequence[Source], host: str, key: str) -> Iterator[tuple[Source, source_positions.Path]]:
    for source in sources:
        if source.kind == "host_vars" and source.name == host and (key,) in source.document.lines:
            yield source, (key,)
        if source.kind == "inventory":
            for where in source.document.lines:
                if len(where) > 2 and where[-1] == key and where[-3] == "hosts" and _names(str(where[-2]), host):
                    yield source, where


def _of_group(sources: Sequence[Source], group: str, key: str) -> Iterator[tuple[Source, source_positions.Path]]:
    for source in sources:
        if source.kind == "group_vars" and source.name == group and (key,) in source.document.lines:
            yield source, (key,)
        if source.kind == "inventory":
            for where in source.document.lines:
                if len(where) > 2 and where[-1] == key and where[-2] == "vars" and where[-3] == group:
                    yield source, where


def _names(written: str, host: str) -> bool:
    """Return whether the name or range ``written`` may include ``host``: ``h[1:3]`` includes ``h2``."""
    written = written if written == host else _PORT.sub("", written)
    if not _RANGE.search(written):
        return written == host
    pattern = ".+".join(re.escape(part) for part in _RANGE.split(written))
    return re.fullmatch(pattern, host) is not None


def _content_at(source: Source, where: source_positions.Path) -> Any:
    content = source.document.content
    for part in where:
        content = content[part]
    return content


def position(source: Source, where: source_positions.Path) -> Position:
    document = source.document
    parts = [written_values.printable(str(part)) for part in where]
    dotted = ".".join(parts[1:] if parts[:1] == ["all"] and len(parts) > 1 else parts)
    return Position(file=document.path, line=document.line(*where), text=f"{document.position(*where)}: {dotted}")
