"""An Ansible YAML inventory -> Inventory, or one UsageError that holds every mistake with its line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...model.bed import Host, Inventory
from ...model.errors import UsageError
from ..spec import source_positions, values
from . import literal, templates, variables

_SECTIONS = ("hosts", "children", "vars")


def parse(text: str, path: str) -> Inventory:
    """Raises UsageError. Groups may nest; the variables of a child win over its parent's, a host's own over all."""
    document = source_positions.load(text, path)
    reader = _Reader(document=document)
    if not isinstance(document.content, dict):
        raise UsageError(
            f"{document.position()}: must be a mapping with the group `all` (got {values.show(document.content)})"
        )
    for name in document.content:
        reader.group((name,), depth=0 if name == "all" else 1, chain=())
    for where in document.repeated:
        reader.say(where, "appears twice")
    if not reader.hosts and not reader.problems:
        reader.say(("all", "hosts"), "no host; at least one is needed")
    if reader.problems:
        raise UsageError(*(text for _, text in sorted(reader.problems)))
    return Inventory(path=path, hosts=tuple(reader.host(name) for name in reader.hosts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A variable where it was set. The larger ``rank`` wins: the depth of the group, then its name; hosts above all."""

    rank: tuple[int, str]
    value: Any
    place: str


@dataclass(slots=True, kw_only=True)
class _Reader:
    document: source_positions.Document
    problems: list[tuple[int, str]] = field(default_factory=list)
    hosts: dict[str, dict[str, _Setting]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def host(self, name: str) -> Host:
        found = self.hosts[name]
        return Host(
            name=name,
            variables={key: setting.value for key, setting in found.items()},
            place=self.places[name],
            places={key: setting.place for key, setting in found.items()},
        )

    def group(self, where: tuple[str, ...], depth: int, chain: tuple[Mapping[str, _Setting], ...]) -> None:
        body = self._at(where)
        if body is None:
            return
        if not self._is_mapping(where, body):
            return
        self._unknown_sections(where, body)
        own = self._settings((*where, "vars"), body.get("vars"), (depth, where[-1]))
        inherited = (*chain, own)
        for name in self._names((*where, "hosts"), body.get("hosts")):
            self._host((*where, "hosts", name), inherited)
        for name in self._names((*where, "children"), body.get("children")):
            self.group((*where, "children", name), depth + 1, inherited)

    def _host(self, where: tuple[str, ...], inherited: tuple[Mapping[str, _Setting], ...]) -> None:
        name = where[-1]
        if "[" in name:
            self.say(where, "host ranges are not available in this version; write each host")
        else:
            self._checked(where, literal.host_name, name, "its name ")
        own = self._settings(where, self._at(where), (1_000_000, name))
        known = self.hosts.setdefault(name, {})
        self.places.setdefault(name, self._label(where))
        for layer in (*inherited, own):
            for key, setting in layer.items():
                if key not in known or setting.rank >= known[key].rank:
                    known[key] = setting

    def _settings(self, where: tuple[str, ...], body: Any, rank: tuple[int, str]) -> dict[str, _Setting]:
        if body is None or not self._is_mapping(where, body):
            return {}
        found = {}
        for key, raw in body.items():
            path = (*where, key)
            found[key] = _Setting(rank=rank, value=self._value(path, key, raw), place=self._label(path))
        return found

    def _value(self, path: tuple[str, ...], key: str, raw: Any) -> Any:
        if not key.startswith(variables.PREFIX):
            return self._checked(path, literal.ANSIBLE[key], raw) if key in literal.ANSIBLE else raw
        name = key.removeprefix(variables.PREFIX)
        known = variables.KNOWN.get(name)
        if known is None:
            full = [variables.PREFIX + one for one in variables.KNOWN]
            self.say(path, f"unknown variable; {values.nearest(key, full)}")
            return raw
        return self._checked(path, known.read, raw)

    def _checked(self, path: tuple[str, ...], read: Callable[[Any], Any], raw: Any, what: str = "") -> Any:
        """``raw`` as it is read, or as it is where that fails, which is a problem."""
        try:
            return read(self._literal(raw))
        except ValueError as error:
            self.say(path, f"{what}{error} (got {values.show(raw)})")
            return raw

    def _literal(self, raw: Any) -> Any:
        if templates.has(raw):
            raise ValueError("templates are not available for ccbed variables; write the value")
        return raw

    def _unknown_sections(self, where: tuple[str, ...], body: Mapping[str, Any]) -> None:
        for key in body:
            if key not in _SECTIONS:
                self.say((*where, key), f"a group has hosts, children and vars; {values.nearest(key, _SECTIONS)}")

    def _names(self, where: tuple[str, ...], body: Any) -> Iterator[str]:
        if body is None:
            return iter(())
        if not self._is_mapping(where, body):
            return iter(())
        return iter(body)

    def _is_mapping(self, where: tuple[str, ...], body: Any) -> bool:
        if isinstance(body, dict):
            return True
        self.say(where, f"must be a mapping (got {values.show(body)})")
        return False

    def _at(self, where: tuple[str, ...]) -> Any:
        value: Any = self.document.content
        for key in where:
            value = value[key]
        return value

    def _label(self, where: tuple[str | int, ...]) -> str:
        return f"{self.document.position(*where)}: {_dotted(where)}"

    def say(self, where: tuple[str | int, ...], text: str) -> None:
        self.problems.append((self.document.line(*where), f"{self._label(where)}: {text}"))


def _dotted(where: tuple[str | int, ...]) -> str:
    parts = [values.printable(str(part)) for part in where]
    return ".".join(parts[1:] if parts[:1] == ["all"] and len(parts) > 1 else parts)
