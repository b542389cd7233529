"""Read what Ansible's configuration says of connections, as ``ansible-config dump`` prints it, for ccbed's own connections as well.

Where the file lies is Ansible's rule: ANSIBLE_CONFIG, ./ansible.cfg, ~/.ansible.cfg, /etc/ansible/ansible.cfg. A file that was
found in the current directory may be a stranger's: unless it has harmless settings only, nothing of Ansible is run, until the
user names the file in ANSIBLE_CONFIG. Its digest is remembered.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.inventory import ansible_defaults, ssh_options
from ..core.spec import written_values
from ..model.errors import UsageError
from ..store import paths
from . import ansible_listing

NAME = "ANSIBLE_CONFIG"
_FILES = (Path("ansible.cfg"), Path("~/.ansible.cfg"), Path("/etc/ansible/ansible.cfg"))
#: Settings that ccbed itself or a vault sets; they say nothing of connections.
_OTHERS = (NAME, "ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST", "ANSIBLE_HOME")
#: Keys that run no program and lead no connection elsewhere, as long as their values are plain.
_HARMLESS = (
    "remote_user", "remote_port", "port", "private_key_file", "host_key_checking", "forks", "timeout", "retries",
    "gathering", "retry_files_enabled", "inventory", "nocows", "nocolor", "deprecation_warnings", "command_warnings",
    "system_warnings", "localhost_warning", "pipelining", "become", "become_user", "become_ask_pass",
    "display_skipped_hosts", "force_valid_group_names", "any_errors_fatal", "verbosity",
)  # fmt: skip
#: Keys that name plug-ins or programs -> Ansible's own that are harmless.
_NAMES = {
    "stdout_callback": ("default", "minimal", "yaml", "json"),
    "interpreter_python": ("auto", "auto_silent", "auto_legacy", "auto_legacy_silent"),
}
_REMEMBERED = "ansible-configurations.json"


def read(state: Path, environ: Mapping[str, str] = os.environ) -> ansible_defaults.Defaults:
    """The settings that are not Ansible's defaults; ``state``: where accepted files are remembered. Raises UsageError."""
    file = _file(environ)
    if not file and not any(name.startswith("ANSIBLE_") and name not in _OTHERS for name in environ):
        return ansible_defaults.Defaults()
    if file and (file == _FILES[0] or environ.get(NAME)):
        _accept(state, file, is_named=bool(environ.get(NAME)))
    base = {row["name"]: row for row in _dump("base") if "name" in row}
    ssh = {row["name"]: row for entry in _dump("connection", "ssh") for rows in entry.values() for row in rows}
    return ansible_defaults.Defaults(file=str(base.get("CONFIG_FILE", {}).get("value") or ""), settings={**base, **ssh})


def _file(environ: Mapping[str, str]) -> Path | None:
    """The file that may count; ansible-config says whether it does."""
    named = environ.get(NAME)
    if named:
        path = Path(named).expanduser()
        return path / "ansible.cfg" if path.is_dir() else path
    return next((path for file in _FILES if (path := file.expanduser()).is_file()), None)


def _accept(state: Path, file: Path, *, is_named: bool) -> None:
    """Raises UsageError for a file of the current directory that has more than harmless settings and was not accepted."""
    try:
        content = file.read_bytes()
        refused = list(_refused(content.decode(errors="surrogateescape")))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}", hint=f"correct {NAME}, or unset it") from None
    except configparser.Error as error:
        raise UsageError(f"{file}: cannot be parsed: {' '.join(str(error).split())}") from None
    if not refused:
        return
    try:
        known = json.loads((state / _REMEMBERED).read_text())
    except (OSError, ValueError):
        known = {}
    path, digest = str(file.absolute()), hashlib.sha256(content).hexdigest()
    if known.get(path) == digest:
        return
    if not is_named:
        why = "Ansible may run programs or connect elsewhere, and the file lies in the current directory"
        hint = f"read it; to accept it as it is now: {NAME}={file} before the command, once"
        raise UsageError(*(f"{file}: {text}: with it {why}" for text in refused), hint=hint)
    paths.write_json(state / _REMEMBERED, {**known, path: digest})


def _refused(text: str) -> Iterable[str]:
    """Parse a file as Ansible does, and name the settings that are not known to be harmless. Raises configparser.Error."""
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",))
    parser.read_string(text)
    for key, value in (item for section in parser.values() for item in section.items()):
        is_harmless = ssh_options.PLAIN.fullmatch(value) if key in _HARMLESS else value in _NAMES.get(key, ())
        if not (ssh_options.are_harmless(value) if key in ssh_options.SETTINGS else is_harmless):
            yield f"{key} = {written_values.printable(value)}"


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
