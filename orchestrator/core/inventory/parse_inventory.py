"""Parse an inventory file (Ansible's YAML) into hosts with variables; core/bed/nodes_from_inventory.py makes nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...model.bed import Host, Inventory
from ...model.errors import UsageError
from ...model.frozen import dataclass, field
from ..spec import source_positions, written_values
from . import literal, variables

_SECTIONS = ("hosts", "children", "vars")


def parse(text: str, path: str) -> Inventory:
    """The hosts of an inventory. Raises UsageError with every mistake and its line.

    Groups may nest; variables of a child override those of its parent, and variables of a host override all others.
    """
    document = source_positions.load(text, path)
    reader = _Reader(document=document)
    if not isinstance(document.content, dict):
        raise UsageError(
            f"{document.position()}: must be a mapping with the group `all` (got {written_values.show(document.content)})"
        )
    for name in document.content:
        reader.group((name,), depth=0 if name == "all" else 1, chain=())
    for where in document.repeated:
        reader.add_problem(where, "appears twice")
    if not reader.hosts and not reader.problems:
        reader.add_problem(("all", "hosts"), "no host; at least one is needed")
    if reader.problems:
        raise UsageError(*(text for _, text in sorted(reader.problems)))
    return Inventory(path=path, hosts=tuple(reader.host(name) for name in reader.hosts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A variable and its position. The higher ``precedence`` wins: the depth of the group, then its name; a host's is highest."""

    precedence: tuple[int, str]
    content: Any
    position: str


@dataclass(slots=True, kw_only=True)
class _Reader:
    document: source_positions.Document
    problems: list[tuple[int, str]] = field(default_factory=list)
    hosts: dict[str, dict[str, _Setting]] = field(default_factory=dict)
    positions: dict[str, str] = field(default_factory=dict)

    def host(self, name: str) -> Host:
        settings = self.hosts[name]
        return Host(
            name=name,
            variables={key: setting.content for key, setting in settings.items()},
            position=self.positions[name],
            positions={key: setting.position for key, setting in settings.items()},
        )

    def group(self, where: tuple[str, ...], depth: int, chain: tuple[Mapping[str, _Setting], ...]) -> None:
        body = self._content_at(where)
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
            self.add_problem(where, "host ranges are not available in this version; write each host")
        else:
            self._convert(where, literal.host_name, name, "its name ")
        own = self._settings(where, self._content_at(where), (1_000_000, name))
        known = self.hosts.setdefault(name, {})
        self.positions.setdefault(name, self._label(where))
        for layer in (*inherited, own):
            for key, setting in layer.items():
                if key not in known or setting.precedence >= known[key].precedence:
                    known[key] = setting

    def _settings(self, where: tuple[str, ...], body: Any, precedence: tuple[int, str]) -> dict[str, _Setting]:
        if body is None or not self._is_mapping(where, body):
            return {}
        settings = {}
        for key, raw in body.items():
            path = (*where, key)
            content = self._value(path, key, raw)
            settings[key] = _Setting(precedence=precedence, content=content, position=self._label(path))
        return settings

    def _value(self, path: tuple[str, ...], key: str, raw: Any) -> Any:
        if not key.startswith(variables.PREFIX):
            return self._convert(path, literal.ANSIBLE[key], raw) if key in literal.ANSIBLE else raw
        name = key.removeprefix(variables.PREFIX)
        known = variables.KNOWN.get(name)
        if known is None:
            names = [variables.PREFIX + name for name in variables.KNOWN]
            self.add_problem(path, f"unknown variable; {written_values.nearest(key, names)}")
            return raw
        return self._convert(path, known.read, raw)

    def _convert(self, path: tuple[str, ...], read: Callable[[Any], Any], raw: Any, what: str = "") -> Any:
        """``raw`` converted by ``read``; if that fails, ``raw`` unchanged, and the problem is recorded."""
        try:
            return read(self._literal(raw))
        except ValueError as error:
            self.add_problem(path, f"{what}{error} (got {written_values.show(raw)})")
            return raw

    def _literal(self, raw: Any) -> Any:
        if variables.has_template(raw):
            raise ValueError("templates are not available for ccbed variables; write the value")
        return raw

    def _unknown_sections(self, where: tuple[str, ...], body: Mapping[str, Any]) -> None:
        for key in body:
            if key not in _SECTIONS:
                text = f"a group has hosts, children and vars; {written_values.nearest(key, _SECTIONS)}"
                self.add_problem((*where, key), text)

    def _names(self, where: tuple[str, ...], body: Any) -> Iterator[str]:
        if body is None:
            return iter(())
        if not self._is_mapping(where, body):
            return iter(())
        return iter(body)

    def _is_mapping(self, where: tuple[str, ...], body: Any) -> bool:
        if isinstance(body, dict):
            return True
        self.add_problem(where, f"must be a mapping (got {written_values.show(body)})")
        return False

    def _content_at(self, where: tuple[str, ...]) -> Any:
        value: Any = self.document.content
        for key in where:
            value = value[key]
        return value

    def _label(self, where: tuple[str | int, ...]) -> str:
        return f"{self.document.position(*where)}: {_dotted(where)}"

    def add_problem(self, where: tuple[str | int, ...], text: str) -> None:
        self.problems.append((self.document.line(*where), f"{self._label(where)}: {text}"))


def _dotted(where: tuple[str | int, ...]) -> str:
    parts = [written_values.printable(str(part)) for part in where]
    return ".".join(parts[1:] if parts[:1] == ["all"] and len(parts) > 1 else parts)
