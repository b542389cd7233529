"""Read what Ansible's configuration says of connections, as ``ansible-config dump`` prints it, for ccbed's own connections as well.

Where the file lies is Ansible's rule: ANSIBLE_CONFIG, ./ansible.cfg, ~/.ansible.cfg, /etc/ansible/ansible.cfg. A file that was
found in the current directory may be a stranger's: while it names programs, nothing of Ansible is run, until the user names
the file in ANSIBLE_CONFIG. Its digest is remembered.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.inventory import ansible_defaults
from ..model.errors import UsageError
from ..store import paths
from . import ansible_listing

NAME = "ANSIBLE_CONFIG"
_FILES = (Path("ansible.cfg"), Path("~/.ansible.cfg"), Path("/etc/ansible/ansible.cfg"))
#: Settings that ccbed itself or a vault sets; they say nothing of connections.
_OTHERS = (NAME, "ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST", "ANSIBLE_HOME")
#: Settings with programs, or with folders of them.
_PROGRAMS = re.compile(
    r".*_(PLUGIN_PATH|PASSWORD_FILE|EXECUTABLE)|COLLECTIONS_PATHS|DEFAULT_(MODULE|MODULE_UTILS)_PATH|DEFAULT_BECOME_EXE"
    r"|DEFAULT_VAULT_IDENTITY_LIST|(ssh|sftp|scp)_executable|pkcs11_provider"
)
#: Options of ssh that run a program, or name a file that may.
_RUNS = re.compile(r"(?i)(proxy|local|knownhosts)command|pkcs11provider|-F\b|\binclude\b")
_REMEMBERED = "ansible-configurations.json"


def read(state: Path, environ: Mapping[str, str] = os.environ) -> ansible_defaults.Defaults:
    """The settings that are not Ansible's defaults; ``state``: where accepted files are remembered. Raises UsageError."""
    file = _file(environ)
    if not file and not any(name.startswith("ANSIBLE_") and name not in _OTHERS for name in environ):
        return ansible_defaults.Defaults()
    base = {row["name"]: row for row in _dump("base") if "name" in row}
    if file and (file == _FILES[0] or environ.get(NAME)):
        _accept(state, file, base.values(), is_named=bool(environ.get(NAME)))
    ssh = {row["name"]: row for entry in _dump("connection", "ssh") for rows in entry.values() for row in rows}
    return ansible_defaults.Defaults(file=str(base.get("CONFIG_FILE", {}).get("value") or ""), settings={**base, **ssh})


def _file(environ: Mapping[str, str]) -> Path | None:
    """The file that may count; ansible-config says whether it does."""
    named = environ.get(NAME)
    if named:
        path = Path(named).expanduser()
        return path / "ansible.cfg" if path.is_dir() else path
    return next((path for file in _FILES if (path := file.expanduser()).is_file()), None)


def _accept(state: Path, file: Path, rows: Iterable[Any], *, is_named: bool) -> None:
    """Raises UsageError for a file of the current directory that names programs and was not accepted."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}", hint=f"correct {NAME}, or unset it") from None
    programs = [f"{file}: {text}, which Ansible runs" for text in _programs(rows, content.decode(errors="replace"))]
    if not programs:
        return
    try:
        known = json.loads((state / _REMEMBERED).read_text())
    except (OSError, ValueError):
        known = {}
    path, digest = str(file.absolute()), hashlib.sha256(content).hexdigest()
    if known.get(path) == digest:
        return
    if not is_named:
        hint = f"read it; to accept it as it is now: {NAME}={file} before the command, once"
        raise UsageError(*(f"{text}, and the file lies in the current directory" for text in programs), hint=hint)
    paths.write_json(state / _REMEMBERED, {**known, path: digest})


def _programs(rows: Iterable[Any], text: str) -> Iterable[str]:
    """The settings of a file that name programs. Those of plug-ins are found as text: to list them, Ansible imports the plug-ins."""
    for row in rows:
        name = str(row.get("name"))
        if _PROGRAMS.fullmatch(name) and str(row["origin"]).startswith("/"):
            yield f"{name} names {row['value']}"
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if not key.startswith(("#", ";")) and (
            _PROGRAMS.fullmatch(key) or (key.endswith("_args") and _RUNS.search(value))
        ):
            yield f"{key} names {value}"


def _dump(kind: str, *names: str) -> list[Any]:
    """Raises UsageError."""
    argv = ["dump", "--format", "json", "--only-changed", "--type", kind, *names]
    done = ansible_listing.run("ansible-config", argv, ansible_listing.LIST_S, about="Ansible's configuration")
    try:
        content = json.loads(done.output)
    except ValueError:
        lines = [line for line in done.errors.splitlines() if line.strip()]
        raise UsageError(
            f"Ansible's configuration: {' '.join(lines[-1:]) or 'ansible-config printed no JSON'}"
        ) from None
    return [row for row in content if isinstance(row, dict)]
