"""The files of settings: config.toml of the user, and ccbed.toml of the project."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ..places import short_path

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
    **dict.fromkeys(("html", "index", "output", "plot"), _OVERWRITES),
    **dict.fromkeys(("allowed-signers", "bed-key", "signer"), _TRUSTS),
    **dict.fromkeys((
        "abandon", "accept-changed", "all", "apply", "force", "include-quarantined", "record", "recorded", "release",
        "reset", "resume-open", "runs",
    ), _CONFIRMS),
}  # fmt: skip
#: Options that name paths -> what ccbed does with them. ccbed.toml may name those below its own directory.
_READS, _WRITES = "ccbed reads it", "ccbed writes there"
PATHS = {
    **dict.fromkeys(("data-dir", "key", "resume", "trace"), _READS),
    **dict.fromkeys(("baselines", "emit", "log-dir", "runs-dir"), _WRITES),
    "root": "its files travel to the hosts",
    "checkpoints": "its files are restored before a reference run",
}


def refusal(verb: Sequence[str], key: str) -> str:
    """Why ccbed.toml may not set a key; empty if it may. Who writes the repository must not decide about this machine."""
    reasons = (
        reason
        for option, reason in {**EXECUTING, **CONFIRMING}.items()
        if option in (key, ".".join((*verb, key))) or (not verb and option.endswith(f".{key}"))
    )
    return next(reasons, "")


def outside(key: str, value: object, project: Path) -> str:
    """Why ccbed.toml in ``project`` may not set this option to this value: the path, its links resolved, leaves the project."""
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
    import platformdirs

    return platformdirs.user_config_path("ccbed") / "config.toml"


def project_file() -> Path | None:
    """The nearest ccbed.toml in the current directory or above it, up to the top of the git repository."""
    directory = Path.cwd()
    for folder in (directory, *directory.parents):
        if (folder / PROJECT).is_file():
            return folder / PROJECT
        if (folder / ".git").exists():
            return None
    return None
