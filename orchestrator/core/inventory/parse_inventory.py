"""List a self-contained inventory in YAML as Ansible would; ``parse_listing`` makes hosts of it, as of Ansible's own listing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...model.bed import Inventory
from ...model.errors import UsageError
from ...model.frozen import dataclass, field
from ..spec import source_positions, written_values
from . import parse_listing, variable_positions

_SECTIONS = ("hosts", "children", "vars")


def parse(text: str, path: str) -> Inventory:
    """The hosts of an inventory. Raises UsageError with every mistake and its line."""
    return parse_listing.parse(*read(text, path))


def read(text: str, path: str) -> tuple[variable_positions.Listing, parse_listing.SourceFiles]:
    """The listing of a file and its positions. Raises UsageError for what is no inventory.

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
    source = variable_positions.Source(kind="inventory", name="", document=document)
    files = parse_listing.SourceFiles(path=path, sources=(source,), problems=tuple(reader.problems))
    return variable_positions.Listing(content=reader.listing()), files


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A variable. The higher ``precedence`` wins: the depth of the group, then its name; a host's is highest."""

    precedence: tuple[int, str]
    content: Any


@dataclass(slots=True, kw_only=True)
class _Reader:
    document: source_positions.Document
    problems: list[tuple[int, str]] = field(default_factory=list)
    hosts: dict[str, dict[str, _Setting]] = field(default_factory=dict)
    groups: dict[str, dict[str, dict[str, None]]] = field(default_factory=dict)

    def listing(self) -> Any:
        """The form of ``ansible-inventory --list``."""
        variables = {
            host: {key: setting.content for key, setting in settings.items()} for host, settings in self.hosts.items()
        }
        groups = {name: {part: list(names) for part, names in body.items()} for name, body in self.groups.items()}
        tops = [name for name in self.document.content if name != "all"]
        everything = {"hosts": list(self.hosts), "children": [*groups.get("all", {}).get("children", ()), *tops]}
        return {**groups, "all": everything, "_meta": {"hostvars": variables}}

    def group(self, where: tuple[str, ...], depth: int, chain: tuple[Mapping[str, _Setting], ...]) -> None:
        body = self._content_at(where)
        known = self.groups.setdefault(where[-1], {"hosts": {}, "children": {}})
        if body is None or not self._is_mapping(where, body):
            return
        for key in body:
            if key not in _SECTIONS:
                text = f"a group has hosts, children and vars; {written_values.nearest(key, _SECTIONS)}"
                self.add_problem((*where, key), text)
        inherited = (*chain, self._settings((*where, "vars"), body.get("vars"), (depth, where[-1])))
        for name in self._names((*where, "hosts"), body.get("hosts")):
            known["hosts"][name] = None
            self._host((*where, "hosts", name), inherited)
        for name in self._names((*where, "children"), body.get("children")):
            known["children"][name] = None
            self.group((*where, "children", name), depth + 1, inherited)

    def _host(self, where: tuple[str, ...], inherited: tuple[Mapping[str, _Setting], ...]) -> None:
        name = where[-1]
        known = self.hosts.setdefault(name, {})
        for layer in (*inherited, self._settings(where, self._content_at(where), (1_000_000, name))):
            for key, setting in layer.items():
                if key not in known or setting.precedence >= known[key].precedence:
                    known[key] = setting

    def _settings(self, where: tuple[str, ...], body: Any, precedence: tuple[int, str]) -> dict[str, _Setting]:
        if body is None or not self._is_mapping(where, body):
            return {}
        return {key: _Setting(precedence=precedence, content=content) for key, content in body.items()}

    def _names(self, where: tuple[str, ...], body: Any) -> Iterator[str]:
        return iter(body if body is not None and self._is_mapping(where, body) else ())

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

    def add_problem(self, where: tuple[str | int, ...], text: str) -> None:
        source = variable_positions.Source(kind="inventory", name="", document=self.document)
        self.problems.append((self.document.line(*where), f"{variable_positions.position(source, where).text}: {text}"))
