"""YAML or JSON text -> plain values, with the line of every value, so that a mistake can be shown where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..model.errors import UsageError

if TYPE_CHECKING:
    import yaml

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document and where its parts stand. ``lines``: path of keys and indices -> line, counted from 1.

    ``repeated``: the keys that stand twice in one mapping, of which the last would silently win. ``asked``: what the user
    called it, where that is not the path.
    """

    path: str
    value: Any
    asked: str = ""
    lines: Mapping[Path, int] = field(default_factory=dict)
    repeated: Sequence[Path] = ()

    @property
    def name(self) -> str:
        """For command lines that are suggested."""
        return self.asked or self.path

    def line(self, *where: str | int) -> int:
        """The line of the innermost part of ``where`` that is in the text; 0 if there is none."""
        lengths = range(len(where), -1, -1)
        return next((self.lines[where[:length]] for length in lengths if where[:length] in self.lines), 0)

    def place(self, *where: str | int) -> str:
        """``file:line`` of the innermost part of ``where`` that is in the text."""
        line = self.line(*where)
        return f"{self.path}:{line}" if line else self.path


def load(text: str, path: str) -> Document:
    """Raises UsageError, with file and line, for text that is no YAML."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        reader = _Reader(yaml.SafeLoader(""))
        value = reader.read(root, ()) if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: not valid YAML: {error.problem or error.context}") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: not valid YAML: {reason}") from None
    return Document(path=path, value=value, lines=reader.lines, repeated=tuple(reader.repeated))


class _Reader:
    """Walks the composed nodes once; scalars keep the type that YAML gives them."""

    def __init__(self, scalars: yaml.SafeLoader) -> None:
        self.lines: dict[Path, int] = {}
        self.repeated: list[Path] = []
        self._open: set[int] = set()
        self._scalars = scalars

    def read(self, node: yaml.Node, where: Path) -> Any:
        self.lines[where] = node.start_mark.line + 1
        if id(node) in self._open:
            raise ValueError("an alias contains itself")
        self._open.add(id(node))
        value = self._value(node, where)
        self._open.discard(id(node))
        return value

    def _value(self, node: Any, where: Path) -> Any:
        if node.id == "mapping":
            return self._mapping(node, where)
        if node.id == "sequence":
            return [self.read(item, (*where, index)) for index, item in enumerate(node.value)]
        if node.tag in self._scalars.yaml_constructors:
            return self._scalars.construct_object(node)
        return node.value

    def _mapping(self, node: yaml.Node, where: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            path = (*where, key)
            if key in found:
                self.repeated.append(path)
            found[key] = self.read(value_node, path)
            self.lines[path] = key_node.start_mark.line + 1
        return found
