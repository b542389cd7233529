"""Settings in files: config.toml of the user, and ccbed.toml of the project, which wins.

A file has the names of options as keys, at its top for every verb that has the option, or in a table of one verb:

    bed = "lab"
    [run]
    fail-node = ["2"]
    [image.build]
    kind = "cuda"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...model.errors import UsageError
from ...model.frozen import dataclass
from ...store import paths
from ..places import short_path
from . import settings_files

_LARGEST = 1 << 20
_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key of a file. ``verb``: ``()`` for every verb, or ``("image", "build")``; ``key``: as an option, without ``--``."""

    verb: tuple[str, ...]
    key: str
    value: Any
    file: Path
    line: int

    @property
    def place(self) -> str:
        return f"{short_path(self.file)}:{self.line}"

    @property
    def name(self) -> str:
        return ".".join((*self.verb, self.key))

    def path(self, text: str) -> Path:
        """A path; a relative one is relative to the file of the setting."""
        return Path(short_path(self.file.parent / Path(text).expanduser()))

    @property
    def refusal(self) -> str:
        """Why only the user's own file may have it; empty if this file may."""
        if self.file.name != settings_files.PROJECT:
            return ""
        outside = settings_files.outside(self.key, self.value, self.file.parent)
        return settings_files.refusal(self.verb, self.key) or outside


def read(file: Path) -> list[Setting]:
    """Raises UsageError for a file that is no TOML."""
    try:
        text = paths.read(file, _LARGEST).decode()
        content = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{short_path(file)}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{short_path(file)}: not valid TOML: not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        match = _LINE.search(str(error))
        where = f"{short_path(file)}:{match[1]}" if match else short_path(file)
        raise UsageError(f"{where}: not valid TOML: {_LINE.sub('', str(error)).strip()}") from None
    return list(_settings(content, (), file, _lines(text)))


def _settings(
    content: Mapping[str, Any], verb: tuple[str, ...], file: Path, lines: Mapping[tuple[str, ...], int]
) -> Iterator[Setting]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, (*verb, key), file, lines)
        else:
            line = lines.get((*verb, key), 1)
            yield Setting(verb=verb, key=key.replace("_", "-"), value=value, file=file, line=line)


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Key with its tables -> its line. tomllib keeps no positions."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*\[+([^\]]+)\]", line):
            table = _key(match[1])
            lines.setdefault(table, number)
        elif match := re.match(r"\s*([^=#\[{]+?)\s*=", line):
            lines.setdefault((*table, *_key(match[1])), number)
    return lines


def _key(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def plugins(settings: Iterable[Setting]) -> tuple[Path, ...]:
    """The folders of plugins that the strongest file names."""
    named = [setting for setting in settings if setting.name == "plugins" and not setting.refusal]
    folders = named[-1].value if named else []
    folders = folders if isinstance(folders, list) else [folders]
    return tuple(named[-1].path(str(folder)) for folder in folders)
