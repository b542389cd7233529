"""Source positions: YAML or JSON text -> plain values with the line of every value, for errors with ``file:line``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...model.errors import UsageError
from ...model.frozen import dataclass, field

if TYPE_CHECKING:
    import yaml

Path = tuple[str | int, ...]

#: Limits of a document. No trial and no inventory needs more, and a text of 1 KB can expand to gigabytes.
DEPTH = 64
VALUES = 300_000
ALIASED = 10_000
#: Characters of a number.
DIGITS = 400
TOO_DEEP = f"nested more than {DEPTH} levels deep"
EXCESS_HINT = "a trial or an inventory needs far less"
#: The problem in the words of libyaml, whose scanner reads ahead and has a limit of its own since PyYAML 6.0.4.
_LIBYAML_DEPTH = "exceeded maximum nesting depth"
#: Texts of at most this many characters are parsed in Python, which explains mistakes better; longer ones by libyaml.
_SMALL = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document and the positions of its parts. ``lines``: path of keys and indices -> line, counted from 1.

    ``repeated``: keys that appear twice in a mapping; the last would silently win. ``user_name``: the name that the user
    gave, if it is not the path.
    """

    path: str
    content: Any
    user_name: str = ""
    lines: Mapping[Path, int] = field(default_factory=dict)
    repeated: Sequence[Path] = ()

    @property
    def name(self) -> str:
        """The name for suggested command lines."""
        return self.user_name or self.path

    def line(self, *where: str | int) -> int:
        """The line of the innermost part of ``where`` that is in the text; 0 if there is none."""
        lengths = range(len(where), -1, -1)
        return next((self.lines[where[:length]] for length in lengths if where[:length] in self.lines), 0)

    def position(self, *where: str | int) -> str:
        """``file:line`` of the innermost part of ``where`` that is in the text."""
        line = self.line(*where)
        return f"{self.path}:{line}" if line else self.path


def load(text: str, path: str) -> Document:
    """Parse ``text``. Raises UsageError, with file and line, for text that is not YAML or that exceeds a limit."""
    reader, content = _read(text, path)
    return Document(path=path, content=content, lines=reader.lines, repeated=tuple(reader.repeated))


def check_limits(text: str, path: str) -> None:
    """Raises UsageError if YAML exceeds a limit; text that is not YAML passes."""
    import yaml

    try:
        _Reader(text, path).document()
    except (yaml.YAMLError, ValueError):
        return


def _read(text: str, path: str) -> tuple[_Reader, Any]:
    import yaml

    try:
        reader = _Reader(text, path)
        return reader, reader.document()
    except yaml.MarkedYAMLError as error:
        position = error.problem_mark or error.context_mark
        line = f":{position.line + 1}" if position else ""
        if error.problem == _LIBYAML_DEPTH:
            raise UsageError(f"{path}{line}: {TOO_DEEP}", hint=EXCESS_HINT) from None
        raise UsageError(f"{path}{line}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: not valid YAML: {reason}") from None


class _Reader:
    """Build the value from the parser's events within the limits; scalars keep the type that YAML gives them.

    libyaml's own composer recurses without a limit, so it is not used.
    """

    def __init__(self, text: str, path: str) -> None:
        import yaml

        self.lines: dict[Path, int] = {}
        self.repeated: list[Path] = []
        self._yaml: Any = yaml
        fast_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._parser: Any = (yaml.SafeLoader if len(text) <= _SMALL else fast_loader)(text)
        self._path = path
        self._values = self._aliased = 0
        self._anchors: dict[str, tuple[Path, Any] | None] = {}

    def document(self) -> Any:
        """The only document of the text; None if it is empty."""
        self._parser.get_event()
        if self._parser.check_event(self._yaml.StreamEndEvent):
            return None
        self._parser.get_event()
        value = self._value(self._parser.get_event(), ())
        self._parser.get_event()
        if not self._parser.check_event(self._yaml.StreamEndEvent):
            raise self._wrong("but found another document", self._parser.peek_event())
        return value

    def _value(self, event: Any, where: Path) -> Any:
        line = self.lines[where] = event.start_mark.line + 1
        if isinstance(event, self._yaml.AliasEvent):
            return self._alias(event, where)
        self._values += 1
        if self._values > VALUES:
            raise self._excess(line, f"more than {VALUES:,} values")
        if len(where) > DEPTH:
            raise self._excess(line, TOO_DEEP)
        if not event.anchor:
            return self._content(event, where)
        if event.anchor in self._anchors:
            raise self._wrong(f"found duplicate anchor {event.anchor!r}", event)
        self._anchors[event.anchor] = None
        value = self._content(event, where)
        self._anchors[event.anchor] = (where, value)
        return value

    def _content(self, event: Any, where: Path) -> Any:
        if isinstance(event, self._yaml.MappingStartEvent):
            return self._mapping(where)
        if isinstance(event, self._yaml.SequenceStartEvent):
            return self._sequence(where)
        return self._scalar(event)

    def _mapping(self, where: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not isinstance(event := self._parser.get_event(), self._yaml.MappingEndEvent):
            key = self._key(event)
            path = (*where, key)
            if key in result:
                self.repeated.append(path)
            result[key] = self._value(self._parser.get_event(), path)
            self.lines[path] = event.start_mark.line + 1
        return result

    def _sequence(self, where: Path) -> list[Any]:
        result: list[Any] = []
        while not isinstance(event := self._parser.get_event(), self._yaml.SequenceEndEvent):
            result.append(self._value(event, (*where, len(result))))
        return result

    def _key(self, event: Any) -> str:
        if isinstance(event, self._yaml.ScalarEvent):
            if event.anchor:
                self._anchors[event.anchor] = ((), event.value)
            return str(event.value)
        anchored = self._anchors.get(event.anchor) if isinstance(event, self._yaml.AliasEvent) else None
        if anchored is None or isinstance(anchored[1], dict | list):
            raise self._wrong('a key must be a name or a number (a template needs quotes: "{{ name }}")', event)
        return str(anchored[1])

    def _scalar(self, event: Any) -> Any:
        tag, parser = event.tag, self._parser
        if tag is None or tag == "!":
            tag = parser.resolve(self._yaml.ScalarNode, event.value, event.implicit)
        if tag == "tag:yaml.org,2002:str" or tag not in parser.yaml_constructors:
            return event.value
        if len(event.value) > DIGITS and tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
            raise self._excess(event.start_mark.line + 1, f"a number of more than {DIGITS} characters")
        return parser.construct_object(self._yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark))

    def _alias(self, event: Any, where: Path) -> Any:
        if event.anchor not in self._anchors:
            raise self._wrong(f"found undefined alias {event.anchor!r}", event)
        anchored = self._anchors[event.anchor]
        if anchored is None:
            raise ValueError("an alias contains itself")
        return self._copy(anchored[1], anchored[0], where, self.lines[where])

    def _copy(self, value: Any, source: Path, target: Path, line: int) -> Any:
        """A copy of an anchored value for the path ``target``; its parts keep their lines."""
        self._aliased += 1
        if self._aliased > ALIASED:
            raise self._excess(line, f"aliases stand for more than {ALIASED:,} values")
        if len(target) > DEPTH:
            raise self._excess(line, TOO_DEEP)
        if not isinstance(value, dict | list):
            return value
        items = value.items() if isinstance(value, dict) else enumerate(value)
        result = {}
        for key, item in items:
            self.lines[*target, key] = self.lines[*source, key]
            result[key] = self._copy(item, (*source, key), (*target, key), line)
        return result if isinstance(value, dict) else list(result.values())

    def _excess(self, line: int, text: str) -> UsageError:
        return UsageError(f"{self._path}:{line}: {text}", hint=EXCESS_HINT)

    def _wrong(self, problem: str, event: Any) -> yaml.MarkedYAMLError:
        error: yaml.MarkedYAMLError = self._yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return error
