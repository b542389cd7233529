"""What `ansible-inventory --list` says -> Inventory, with every mistake at its place in the files around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...model import vaulted
from ...model.bed import Host, Inventory
from ...model.errors import UsageError
from ..spec import values
from . import literal, ssh_options, templates, variable_positions, variables

#: What ccbed itself needs to reach a host. Nothing else of Ansible's variables is kept, passwords least of all.
REACH = (
    "ansible_connection", "ansible_host", "ansible_port", "ansible_user", "ansible_ssh_private_key_file",
    "ansible_python_interpreter", *ssh_options.VARIABLES,
)  # fmt: skip
#: Older names of the same.
ALIASES = {
    "ansible_ssh_host": "ansible_host",
    "ansible_ssh_port": "ansible_port",
    "ansible_ssh_user": "ansible_user",
    "ansible_private_key_file": "ansible_ssh_private_key_file",
}
_SEALED = "__ansible_vault"
#: Of Ansible's variables, those that are no secrets.
_PUBLIC = ("ansible_connection", "ansible_port", "ansible_python_interpreter")
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The files that the listing came from, and what of the vault was opened: values, and the ``documents`` of whole files."""

    path: str
    directory: str = ""
    sources: Sequence[variable_positions.Source] = ()
    encrypted: bool = False
    opened: Mapping[str, str] = field(default_factory=dict)
    documents: Sequence[Any] = ()


def sealed(listing: Mapping[str, Any]) -> tuple[str, ...]:
    """The encrypted values that ccbed needs: each once, as they stand. All others stay closed."""
    found: dict[str, None] = {}
    for given in _hostvars(listing).values():
        wanted = [value for key, value in given.items() if _needed(key)]
        text = " ".join(str(value) for value in wanted if templates.has(value))
        wanted += [value for key, value in given.items() if key in text and not _needed(key)]
        found.update(dict.fromkeys(one for value in wanted for one in _ciphertexts(value)))
    return tuple(found)


def secrets(around: Surroundings) -> tuple[str, ...]:
    """Everything that came out of the vault, but for settings that say how many nodes there are and of which kind."""
    found = set(around.opened.values()) | {text for document in around.documents for text in _leaves(document)}
    return tuple(sorted({form for text in found for form in _forms(text) if form}))


def _forms(text: str) -> Iterator[str]:
    """As it is, without space around it, and each of several lines, as a program prints them."""
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


def build(listing: Mapping[str, Any], around: Surroundings) -> Inventory:
    """Raises UsageError with all that is wrong."""
    reader = _Reader(listing=listing, around=around)
    hosts = tuple(reader.host(name) for name in _ordered(listing))
    if not hosts:
        raise UsageError(f"{around.path}: no host; at least one is needed")
    if reader.problems:
        raise UsageError(*reader.told())
    return Inventory(path=around.path, hosts=hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    place: variable_positions.Place
    host: str
    key: str
    text: str


@dataclass(slots=True, kw_only=True)
class _Reader:
    listing: Mapping[str, Any]
    around: Surroundings
    problems: list[_Problem] = field(default_factory=list)

    def host(self, name: str) -> Host:
        given = _hostvars(self.listing).get(name, {})
        kept = {key: value for key, value in given.items() if _needed(key)}
        found: dict[str, Any] = {}
        places: dict[str, str] = {}
        for key, raw in kept.items():
            place = _place(self.listing, self.around, name, key, raw)
            target = ALIASES.get(key, key)
            found[target] = self._value(name, key, raw, place)
            places[target] = place.text
        where = variable_positions.host(self.around.sources, name) or f"{self.around.path}: hosts.{name}"
        self._name(name, where)
        return Host(name=name, variables=found, place=where, places=places)

    def _name(self, name: str, where: str) -> None:
        try:
            literal.host_name(name)
        except ValueError as error:
            place = variable_positions.Place(file=self.around.path, line=0, text=values.printable(where))
            self.problems.append(
                _Problem(place=place, host=name, key="", text=f"its name {error} (got {values.show(name)})")
            )

    def _value(self, host: str, key: str, raw: Any, place: variable_positions.Place) -> Any:
        hidden = bool(tuple(_ciphertexts(raw))) or (self.around.encrypted and not place.line)
        shown = raw
        try:
            shown = self._plain(host, raw)
            return _read(key, shown)
        except ValueError as error:
            got = "" if isinstance(error, _SaysNothingOfItsValue) else f" (got {_shown(shown, hidden)})"
            self.problems.append(_Problem(place=place, host=host, key=key, text=f"{error}{got}"))
            return raw

    def _plain(self, host: str, raw: Any) -> Any:
        """Opened and filled in. Raises ValueError."""
        opened = _open(raw, self.around.opened)
        if any(_ciphertexts(opened)):
            raise _SaysNothingOfItsValue("is encrypted; give --vault-password-file FILE or --ask-vault-pass")
        return templates.fill(opened, self._context(host)) if templates.has(opened) else opened

    def _context(self, host: str) -> dict[str, Any]:
        given = {name: _open(value, self.around.opened) for name, value in _hostvars(self.listing)[host].items()}
        groups = {name: variable_positions.members(self.listing, name) for name in self.listing if name != "_meta"}
        return {
            "inventory_hostname": host,
            "inventory_hostname_short": host.partition(".")[0],
            "inventory_dir": self.around.directory,
            "inventory_file": self.around.path,
            "groups": groups,
            "group_names": [
                name for name in sorted(groups) if host in groups[name] and name not in ("all", "ungrouped")
            ],
            "hostvars": _hostvars(self.listing),
            **given,
        }

    def told(self) -> list[str]:
        """One line per mistake: hosts that share it, share the line."""
        grouped: dict[tuple[str, str, str], list[_Problem]] = {}
        for one in self.problems:
            where = one.place.text if one.place.line else ""
            grouped.setdefault((where, one.key, one.text), []).append(one)
        firsts = [(group[0], len(group) - 1) for group in grouped.values()]
        ordered = sorted(firsts, key=lambda item: (item[0].place.file, item[0].place.line))
        return [f"{one.place.text}{_others(one, more)}: {one.text}" for one, more in ordered]


class _SaysNothingOfItsValue(ValueError):
    """The name or the state of a variable is wrong, not its value."""


def _read(key: str, value: Any) -> Any:
    """Raises ValueError."""
    if not key.startswith(variables.PREFIX):
        read = literal.ANSIBLE.get(ALIASES.get(key, key))
        return read(value) if read else value
    known = variables.KNOWN.get(key.removeprefix(variables.PREFIX))
    if known is None:
        full = [variables.PREFIX + one for one in variables.KNOWN]
        raise _SaysNothingOfItsValue(f"unknown variable; {values.nearest(key, full)}")
    word = _WORDS.get(value.lower()) if isinstance(value, str) else None
    return known.read(value if word is None else word)


def _others(one: _Problem, more: int) -> str:
    if one.place.line or not more:
        return ""
    return f" (and on {more} other host{'s' if more > 1 else ''})"


def _shown(value: Any, hidden: bool) -> str:
    return "a value of the vault" if hidden else values.show(value)


def _needed(key: str) -> bool:
    return key.startswith(variables.PREFIX) or key in REACH or key in ALIASES


def _hostvars(listing: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = listing.get("_meta", {}).get("hostvars", {})
    return found


def _ordered(listing: Mapping[str, Any]) -> tuple[str, ...]:
    """All hosts in the order of the groups, which is that of the files."""
    return variable_positions.members(listing, "all")


def _place(listing: Mapping[str, Any], around: Surroundings, host: str, key: str, raw: Any) -> variable_positions.Place:
    value = raw if not isinstance(raw, dict) or _SEALED not in raw else raw[_SEALED]
    found = variable_positions.variable(around.sources, variable_positions.groups(listing, host), host, key, value)
    return found or variable_positions.Place(file=around.path, line=0, text=f"{around.path}: hosts.{host}.{key}")


def _ciphertexts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if _SEALED in value:
            yield str(value[_SEALED])
        else:
            for item in value.values():
                yield from _ciphertexts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _ciphertexts(item)


def _open(value: Any, opened: Mapping[str, str]) -> Any:
    """``value`` with what was opened in place of what was encrypted."""
    if isinstance(value, dict):
        if _SEALED not in value:
            return {key: _open(item, opened) for key, item in value.items()}
        return opened.get(value[_SEALED], value)
    return [_open(item, opened) for item in value] if isinstance(value, list) else value
