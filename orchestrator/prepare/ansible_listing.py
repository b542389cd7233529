"""Runs Ansible's programs, and reads an inventory through `ansible-inventory --list`, with variable files and the vault values needed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.inventory import parse_listing, variable_positions
from ..core.spec import source_positions, written_values
from ..model.bed import Inventory
from ..model.errors import UsageError
from ..model.frozen import dataclass
from ..store import paths, shipped
from .vault import Vault, arguments

#: A dynamic inventory queries a cloud; a broken one hangs.
LIST_S = 60.0
YAML = (".yml", ".yaml")
HEADER = b"$ANSIBLE_VAULT;"
#: A larger file is not an inventory.
LARGEST = 16 * 1024 * 1024


def read(path: Path, vault: Vault) -> tuple[Inventory, tuple[str, ...]]:
    """The inventory, and the values of its vault that no message may show. Raises UsageError."""
    sources, encrypted = _sources(path)
    with arguments(vault) as options:
        listing = _list(path, vault, options)
        files = parse_listing.SourceFiles(
            path=str(path),
            directory=str((path if path.is_dir() else path.parent).absolute()),
            sources=sources,
            has_encrypted_file=bool(encrypted),
            documents=tuple(_document(text) for text in _opened(path, vault, options, encrypted).values()),
            decrypted=_opened(path, vault, options, parse_listing.needed_ciphertexts(listing)),
        )
    return parse_listing.parse(listing, files), parse_listing.secrets(files)


def matching(path: Path, pattern: str, vault: Vault) -> frozenset[str]:
    """The hosts of an inventory that a pattern of Ansible names; none where a part of it names none. Raises UsageError."""
    with arguments(vault) as options:
        argv = ["all", "-i", str(path), "--limit", pattern, "--list-hosts", *options]
        done = run("ansible", argv, LIST_S, about=str(path))
    is_unknown = done.code or "Could not match supplied host pattern" in done.errors
    return frozenset() if is_unknown else frozenset(line.strip() for line in done.output.splitlines()[1:])


def _list(path: Path, vault: Vault, options: Sequence[str]) -> variable_positions.Listing:
    """Raises UsageError."""
    argv = ["-i", str(path), "--list", "--playbook-dir", str(shipped.folder("playbooks")), *options]
    done = run("ansible-inventory", argv, LIST_S, about=str(path))
    if done.code:
        raise _failed(path, vault, done.errors)
    skipped = re.findall(r"Skipping unexpected key \((.*?)\) in group \((.*?)\)", done.errors)
    if skipped:
        known = ("hosts", "children", "vars")
        text = "a group has hosts, children and vars"
        raise UsageError(
            *(f"{path}: {group}.{key}: {text}; {written_values.nearest(key, known)}" for key, group in skipped)
        )
    try:
        listing = json.loads(done.output)
    except ValueError:
        raise UsageError(f"{path}: ansible-inventory printed text that is not JSON") from None
    if not isinstance(listing, dict):
        raise UsageError(f"{path}: ansible-inventory printed JSON that is not an inventory")
    return variable_positions.Listing(content=listing)


def _opened(path: Path, vault: Vault, options: Sequence[str], sealed: Sequence[str]) -> dict[str, str]:
    """Ciphertext -> text, all at once. Raises UsageError."""
    if not sealed or not vault.has_password():
        return {}

    def opened(text: str) -> str:
        done = run("ansible-vault", ["decrypt", "--output", "-", *options], LIST_S, about=str(path), stdin=text)
        if done.code:
            raise _closed(path, vault)
        return done.output

    with ThreadPoolExecutor(max_workers=4) as pool:
        return dict(zip(sealed, pool.map(opened, sealed), strict=True))


def _document(text: str) -> Any:
    """A file as YAML or JSON; of any other file the values of its assignments."""
    try:
        value = source_positions.load(text, "").content
    except UsageError:
        value = None
    return value if isinstance(value, dict | list) else re.findall(r"=[ \t]*[\"']?([^\s\"']+)", text)


def _failed(path: Path, vault: Vault, errors: str) -> UsageError:
    """The error of Ansible without repetitions; errors of a vault in ccbed's own words."""
    if "vault" in errors.lower() or "decrypt" in errors.lower():
        return _closed(path, vault)
    problems = list(dict.fromkeys(_lines(errors)))[:5] or ["ansible-inventory cannot read it, and gives no reason"]
    return UsageError(*(f"{path}: {line}" for line in problems))


def _closed(path: Path, vault: Vault) -> UsageError:
    hint = "ANSIBLE_VAULT_PASSWORD_FILE=FILE before the command; up, plan, doctor and down also take --ask-vault-pass"
    if vault.has_password():
        return UsageError(f"{path}: the password does not open the vault", hint=hint)
    return UsageError(f"{path}: is encrypted, and there is no password for its vault", hint=hint)


def _lines(errors: str) -> Iterator[str]:
    script_error = re.search(r"Standard error from inventory script:\n(.*?)(?:\n\n|\Z)", errors, re.DOTALL)
    if script_error:
        last = script_error[1].strip().splitlines()[-1:]
        yield f"the inventory script failed: {' '.join(last) or 'it printed nothing'}"
        return
    for line in errors.splitlines():
        match = re.match(r"\[(?:WARNING|ERROR)\]:\s*(?:Failed to parse inventory with '(\w+)' plugin:\s*)?(.*)", line)
        if match and match[2] and "Completely failed" not in match[2] and match[1] != "auto":
            yield match[2].rstrip(".")


def _sources(path: Path) -> tuple[tuple[variable_positions.Source, ...], tuple[str, ...]]:
    """The YAML files of the listing, and the texts of encrypted files. Raises UsageError."""
    sources = []
    encrypted = []
    for kind, name, file in _files(path):
        try:
            data = paths.read(file, LARGEST)
        except OSError as error:
            raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
        text = data.decode(errors="replace")
        if data.startswith(HEADER):
            encrypted.append(data.decode(errors="replace"))
        elif kind != "inventory" or file.suffix in YAML:
            sources.append(
                variable_positions.Source(kind=kind, name=name, document=source_positions.load(text, str(file)))
            )
        else:
            source_positions.check_limits(text, str(file))  # Ansible parses it as YAML before it tries INI
    _reject_repeated_keys(sources)
    return tuple(sources), tuple(encrypted)


def _reject_repeated_keys(sources: Iterable[variable_positions.Source]) -> None:
    """Raises UsageError for keys that a file repeats: the last value would silently count."""
    problems = [
        f"{source.document.position(*where)}: {'.'.join(map(str, where))}: appears twice"
        for source in sources
        for where in source.document.repeated
    ]
    if problems:
        raise UsageError(*problems)


def _files(path: Path) -> Iterator[tuple[Any, str, Path]]:
    """Kind, name of host or group, file."""
    base = path if path.is_dir() else path.parent
    inventories = sorted(base.rglob("*")) if path.is_dir() else [path]
    for file in (
        candidate
        for candidate in inventories
        if not {"group_vars", "host_vars"} & set(candidate.relative_to(base).parts)
    ):
        if file.is_file() and not (file.suffix not in YAML and os.access(file, os.X_OK)):
            yield "inventory", "", file
    for kind in ("group_vars", "host_vars"):
        for entry in sorted((base / kind).glob("*")):
            inner = sorted(entry.rglob("*")) if entry.is_dir() else [entry]
            for file in (
                candidate for candidate in inner if candidate.is_file() and candidate.suffix in ("", ".json", *YAML)
            ):
                yield kind, entry.name.removesuffix(entry.suffix if entry.suffix in YAML else ""), file


#: The same output for all users; a file that cannot be parsed is an error and no warning.
SETTINGS = {
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_FORCE_COLOR": "0",
    "ANSIBLE_DEPRECATION_WARNINGS": "0",
    "ANSIBLE_VERBOSITY": "0",
    "ANSIBLE_DEBUG": "0",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
    "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
    "LC_ALL": "C.UTF-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    code: int
    output: str
    errors: str


def find(name: str) -> str:
    """The program of the environment that ccbed runs in. Raises UsageError where Ansible is not installed."""
    program = Path(sys.executable).parent / name
    if not os.access(program, os.X_OK):
        raise UsageError(
            f"{name} is missing beside {sys.executable}", hint="pip install ansible-core, into ccbed's environment"
        )
    return str(program)


def run(name: str, arguments: Sequence[str], limit_s: float, *, about: str, stdin: str = "") -> ProgramResult:
    """Run a program. Raises UsageError if it is missing or does not end in time."""
    argv = [find(name), *arguments]
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env={**os.environ, **SETTINGS},
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{about}: {name} did not end within {limit_s:.0f} s") from None
    return ProgramResult(code=done.returncode, output=done.stdout, errors=done.stderr)
