"""Settings in files: config.toml of the user, and ccbed.toml of the project, which wins.

A file has the names of options as keys, at its top for every verb that has the option, or in a table of one verb:

    bed = "lab"
    [run]
    fail-node = ["2"]
    [image.build]
    kind = "cuda"
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..model.errors import UsageError
from ..model.frozen import dataclass, replace
from ..store import paths
from .places import short_path
from .session import FORMER, FORMER_VERBS, user_directory

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
        """Return why only the user's own file may have it; empty if this file may."""
        if self.file.name != PROJECT:
            return ""
        return refusal(self.verb, self.key) or outside(self.key, self.value, self.file.parent)


def read(file: Path, warn: Callable[[str], None]) -> list[Setting]:
    """The settings by the present names of options; ``warn`` of former ones. Raises UsageError for a file that is no TOML."""
    import tomllib  # 4 modules, which a start without such a file does not need

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
    return [_by_present_name(item, warn) for item in _settings(content, (), file, _lines(text))]


def _by_present_name(item: Setting, warn: Callable[[str], None]) -> Setting:
    """A key at the top is one of any verb."""
    if item.verb and (present := FORMER_VERBS.get(item.verb[0])):
        warn(f"{item.place}: the verb {item.verb[0]} is now {present[0]}; the former name works for one release")
        item = replace(item, verb=(present[0],))
    former = {key: name for verb, names in FORMER.items() if item.verb in ((), (verb,)) for key, name in names.items()}
    if item.key not in former:
        return item
    warn(f"{item.place}: {item.key} is now {former[item.key]}; the former name works for one release")
    return replace(item, key=former[item.key])


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


# --- the files, and what ccbed.toml of a repository may set ---

PROJECT = "ccbed.toml"
#: Option -> what ccbed.toml of a repository could do with it. ``size.model``: only that of one verb.
EXECUTING = {
    "plugins": "ccbed imports its files",
    "vault-password-file": "it may be a program, and what it prints opens your vault",
    "inventory": "it names hosts, and the commands that switch them off; an executable one is run",
    "env": "LD_PRELOAD and PYTHONPATH run code in every rank",
    "suite": "it names scripts to run",
    "on-culprit": "it is a command",
    "notify": "it sends what was found to an address",
    "module": "its file is run",
    "size.model": "its file is imported",
    "file": "it is run",
    "exec": "it is a program",
    "exec-": "it is a program",
    "launcher": "it is a program",
    "cwd": "programs and modules are found there",
    "map": "reference runs write there",
    "base": "programs of that image run in every node",
    "wheelhouse": "packages of it run in every node",
}
_CONFIRMS = "it confirms an act, or widens it"
_TRUSTS = "it says whose signature counts"
_OVERWRITES = "it overwrites a file"
#: Options that confirm an act, or widen it, say whose signature counts, or overwrite a file -> which of them.
CONFIRMING = {
    **dict.fromkeys(("html", "index", "junit-xml", "output", "plot"), _OVERWRITES),
    **dict.fromkeys(("allowed-signers", "bed-key", "signer"), _TRUSTS),
    **dict.fromkeys((
        "abandon", "accept-changed", "all", "apply", "because", "force", "include-quarantined", "prolog", "record", "recorded",
        "end", "reset", "resume-open", "runs",
    ), _CONFIRMS),
}  # fmt: skip
#: Options that name paths -> what ccbed does with them. ccbed.toml may name those below its own directory.
_READS, _WRITES = "ccbed reads it", "ccbed writes there"
PATHS = {
    **dict.fromkeys(("data-dir", "key", "resume", "trace"), _READS),
    **dict.fromkeys(("baselines", "emit", "log-dir", "report-dir", "runs-dir"), _WRITES),
    "root": "its files travel to the hosts",
    "checkpoints": "its files are restored before a reference run",
}


def refusal(verb: Sequence[str], key: str) -> str:
    """Return why ccbed.toml may not set a key; empty if it may. Who writes the repository must not decide about this machine."""
    reasons = (
        reason
        for option, reason in {**EXECUTING, **CONFIRMING}.items()
        if option in (key, ".".join((*verb, key))) or (not verb and option.endswith(f".{key}"))
    )
    return next(reasons, "")


def outside(key: str, value: object, project: Path) -> str:
    """Return why ccbed.toml in ``project`` may not set this option to this value: the path, its links resolved, leaves the project."""
    own = os.path.realpath(project)
    for text in value if isinstance(value, list) else [value]:
        for base in (own, Path.cwd()) if key in PATHS else ():
            with suppress(ValueError, RuntimeError):  # no path at all; the option says so
                path = Path(base, Path(str(text)).expanduser())
                for form in (path, Path(os.path.normpath(path))):  # ".." as the kernel takes it, and as text
                    if not (resolved := Path(os.path.realpath(form))).is_relative_to(own):
                        return f"{resolved} is outside of {own}: {PATHS[key]}"
    return ""


def find(warn: Callable[[str], None]) -> tuple[Path, ...]:
    """The files that exist, the weakest first. ``warn`` gets why a file is not read: it could name programs."""
    files = [file for file in (user_file(), project_file()) if file is not None and _exists(file, warn)]
    foreign = [file for file in files if file.stat().st_uid not in (0, os.getuid())]
    for file in foreign:
        warn(f"{short_path(file)}: not read: it belongs to another user (uid {file.stat().st_uid})")
    return tuple(file for file in files if file not in foreign)


def _exists(file: Path, warn: Callable[[str], None]) -> bool:
    try:
        return file.is_file()
    except PermissionError:  # the home of another user
        warn(f"{file}: not read: it is in a directory that you may not read")
        return False


def user_file() -> Path:
    """``XDG_CONFIG_HOME`` sets the parent of its directory."""
    return user_directory("XDG_CONFIG_HOME", "~/.config") / "config.toml"


def project_file() -> Path | None:
    """The nearest ccbed.toml in the current directory or above it, up to the top of the git repository."""
    directory = Path.cwd()
    for folder in (directory, *directory.parents):
        if (folder / PROJECT).is_file():
            return folder / PROJECT
        if (folder / ".git").exists():
            return None
    return None
