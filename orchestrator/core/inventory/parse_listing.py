"""Parse the output of `ansible-inventory --list` into hosts; every mistake has its position in the source files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...model import vaulted
from ...model.bed import Host, Inventory
from ...model.errors import UsageError
from ...model.frozen import dataclass, field
from ..spec import written_values
from . import causes, literal, ssh_options, variable_positions, variables

#: Variables with which ccbed connects to a host. All other variables of Ansible are dropped, passwords in particular.
REACH = (
    "ansible_connection", "ansible_host", "ansible_port", "ansible_user", "ansible_ssh_private_key_file",
    "ansible_python_interpreter", "ansible_host_key_checking", *ssh_options.VARIABLES,
)  # fmt: skip
#: With one of them Ansible becomes root on a host whose sudo asks for a password. ccbed does not read them.
BECOME_PASSWORDS = frozenset({"ansible_become_password", "ansible_become_pass"})
#: The problem of values in a vault without a password.
ENCRYPTED = "is encrypted, and there is no password for its vault; give --vault-password-file FILE or --ask-vault-pass"
#: Older names of these variables.
ALIASES = {
    "ansible_ssh_host": "ansible_host",
    "ansible_ssh_port": "ansible_port",
    "ansible_ssh_user": "ansible_user",
    "ansible_private_key_file": "ansible_ssh_private_key_file",
    "ansible_ssh_host_key_checking": "ansible_host_key_checking",
}
_ENCRYPTED = "__ansible_vault"
#: Inventory plugins mark what others wrote, such as tags of a cloud: Ansible fills in no templates there.
_UNSAFE = "__ansible_unsafe"
#: Variables of Ansible that are not secret.
_PUBLIC = ("ansible_connection", "ansible_port", "ansible_python_interpreter")
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The files of the listing. ``decrypted``: ciphertext -> text; ``documents``: the content of encrypted files.

    ``problems``: what is wrong in the files themselves: line, text.
    """

    path: str
    directory: str = ""
    sources: Sequence[variable_positions.Source] = ()
    has_encrypted_file: bool = False
    decrypted: Mapping[str, str] = field(default_factory=dict)
    documents: Sequence[Any] = ()
    problems: Sequence[tuple[int, str]] = ()


def needed_ciphertexts(listing: variable_positions.Listing) -> tuple[str, ...]:
    """The encrypted values that ccbed needs, without repetition. All others stay encrypted."""
    ciphertexts: dict[str, None] = {}
    for host_variables in listing.hostvars.values():
        needed = [value for key, value in host_variables.items() if _is_needed(key)]
        text = " ".join(str(value) for value in needed if variables.has_template(value))
        needed += [value for key, value in host_variables.items() if key in text and not _is_needed(key)]
        ciphertexts.update(dict.fromkeys(ciphertext for value in needed for ciphertext in _ciphertexts(value)))
    return tuple(ciphertexts)


def secrets(files: SourceFiles) -> tuple[str, ...]:
    """Every value from the vault, except public settings such as the number of nodes."""
    texts = set(files.decrypted.values()) | {text for document in files.documents for text in _leaves(document)}
    return tuple(sorted({form for text in texts for form in _forms(text) if form}))


def _forms(text: str) -> Iterator[str]:
    """The text, the text without surrounding space, and its lines: the forms in which a program may print it."""
    yield from (text, text.strip())
    lines = text.strip().splitlines()
    yield from (line for line in lines if len(lines) > 1 and len(line) >= vaulted.SHORTEST)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if str(key).removeprefix(variables.PREFIX) not in variables.PUBLIC and key not in _PUBLIC:
                yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def parse(listing: variable_positions.Listing, files: SourceFiles) -> Inventory:
    """The hosts of a listing. Raises UsageError with every mistake."""
    reader = _Reader(listing=listing, files=files)
    hosts = tuple(reader.host(name) for name in listing.members("all"))
    if not hosts and not files.problems:
        where = variable_positions.position(files.sources[0], ("all", "hosts")).text if files.sources else files.path
        raise UsageError(f"{where}: no host; at least one is needed")
    if messages := reader.messages():
        raise UsageError(*causes.fold(messages, [host.name for host in hosts]))
    return Inventory(path=files.path, hosts=hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    position: variable_positions.Position
    host: str
    key: str
    text: str


@dataclass(slots=True, kw_only=True)
class _Reader:
    listing: variable_positions.Listing
    files: SourceFiles
    problems: list[_Problem] = field(default_factory=list)

    def host(self, name: str) -> Host:
        needed = {key: value for key, value in self.listing.hostvars.get(name, {}).items() if _is_needed(key)}
        converted: dict[str, Any] = {}
        positions: dict[str, str] = {}
        for key, raw in needed.items():
            position = _position(self.listing, self.files, name, key, raw)
            target = ALIASES.get(key, key)
            converted[target] = self._value(name, key, raw, position)
            positions[target] = position.text
        where = variable_positions.find_host(self.files.sources, name) or f"{self.files.path}: hosts.{name}"
        self._check_name(name, where)
        may_become = not BECOME_PASSWORDS.isdisjoint(self.listing.hostvars.get(name, {}))
        return Host(name=name, variables=converted, position=where, positions=positions, has_become_password=may_become)

    def _check_name(self, name: str, where: str) -> None:
        try:
            literal.host_name(name)
        except ValueError as error:
            position = variable_positions.Position(file=self.files.path, line=0, text=written_values.printable(where))
            self.problems.append(
                _Problem(
                    position=position, host=name, key="", text=f"its name {error} (got {written_values.show(name)})"
                )
            )

    def _value(self, host: str, key: str, raw: Any, position: variable_positions.Position) -> Any:
        is_secret = bool(tuple(_ciphertexts(raw))) or (self.files.has_encrypted_file and not position.line)
        value = raw
        try:
            value = self._resolve(host, raw)
            return _read(key, value)
        except ValueError as error:
            quoted = "a value of the vault" if is_secret else written_values.show(value)
            suffix = "" if isinstance(error, _NotAboutValueError) else f" (got {quoted})"
            self.problems.append(_Problem(position=position, host=host, key=key, text=f"{error}{suffix}"))
            return raw

    def _resolve(self, host: str, raw: Any) -> Any:
        """``raw`` decrypted, with its templates filled in. Raises ValueError."""
        if isinstance(raw, dict) and _UNSAFE in raw:
            return raw[_UNSAFE]
        value = _decrypt(raw, self.files.decrypted)
        if any(_ciphertexts(value)):
            raise _NotAboutValueError(ENCRYPTED)
        return variables.fill_templates(value, self._context(host)) if variables.has_template(value) else value

    def _context(self, host: str) -> dict[str, Any]:
        own = {name: _decrypt(value, self.files.decrypted) for name, value in self.listing.hostvars[host].items()}
        groups = self.listing.groups
        return {
            "inventory_hostname": host,
            "inventory_hostname_short": host.partition(".")[0],
            "inventory_dir": self.files.directory,
            "inventory_file": self.files.path,
            "groups": groups,
            "group_names": [
                name for name in sorted(groups) if host in groups[name] and name not in ("all", "ungrouped")
            ],
            "hostvars": self.listing.hostvars,
            **own,
        }

    def messages(self) -> list[str]:
        """A line per mistake, by file and line; all values of a vault without a password share one."""
        encrypted = [problem for problem in self.problems if problem.text == ENCRYPTED][:1]
        others = [problem for problem in self.problems if problem.text != ENCRYPTED]
        rows = {(self.files.path, line, text) for line, text in self.files.problems} | {
            (problem.position.file, problem.position.line, f"{problem.position.text}: {problem.text}")
            for problem in (*encrypted, *others)
        }
        return [text for *_, text in sorted(rows)]


class _NotAboutValueError(ValueError):
    """The name or the encryption of a variable is wrong, not its value."""


def _read(key: str, value: Any) -> Any:
    """Raises ValueError."""
    if not key.startswith(variables.PREFIX):
        read = literal.ANSIBLE.get(ALIASES.get(key, key))
        return read(value) if read else value
    known = variables.KNOWN.get(key.removeprefix(variables.PREFIX))
    if known is None:
        names = [variables.PREFIX + name for name in variables.KNOWN]
        raise _NotAboutValueError(f"unknown variable; {written_values.nearest(key, names)}")
    word = _WORDS.get(value.lower()) if isinstance(value, str) else None
    return known.read(value if word is None else word)


def _is_needed(key: str) -> bool:
    return key.startswith(variables.PREFIX) or key in REACH or key in ALIASES


def _position(
    listing: variable_positions.Listing, files: SourceFiles, host: str, key: str, raw: Any
) -> variable_positions.Position:
    value = raw if not isinstance(raw, dict) or _ENCRYPTED not in raw else raw[_ENCRYPTED]
    groups = listing.groups_of(host)
    position = variable_positions.find_variable(files.sources, groups, host, key, value)
    return position or variable_positions.Position(file=files.path, line=0, text=f"{files.path}: hosts.{host}.{key}")


def _ciphertexts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if _ENCRYPTED in value:
            yield str(value[_ENCRYPTED])
        else:
            for item in value.values():
                yield from _ciphertexts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _ciphertexts(item)


def _decrypt(value: Any, decrypted: Mapping[str, str]) -> Any:
    """``value`` with decrypted text in place of ciphertext."""
    if isinstance(value, dict):
        if _UNSAFE in value:
            return value[_UNSAFE]
        if _ENCRYPTED not in value:
            return {key: _decrypt(item, decrypted) for key, item in value.items()}
        return decrypted.get(value[_ENCRYPTED], value)
    return [_decrypt(item, decrypted) for item in value] if isinstance(value, list) else value
