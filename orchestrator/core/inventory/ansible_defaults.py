"""What Ansible's configuration says of hosts whose inventory does not: user, key, port, arguments of ssh, host keys, connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...model.bed import Host, Inventory
from ...model.errors import UsageError
from ...model.frozen import dataclass, field, replace
from ..spec import written_values
from . import literal

#: Setting of ``ansible-config dump`` -> the variable of a host that has the same effect.
_VARIABLES = {
    "remote_user": "ansible_user",
    "port": "ansible_port",
    "private_key_file": "ansible_ssh_private_key_file",
    "ssh_args": "ansible_ssh_args",
    "ssh_common_args": "ansible_ssh_common_args",
    "ssh_extra_args": "ansible_ssh_extra_args",
    "host_key_checking": "ansible_host_key_checking",
    "INTERPRETER_PYTHON": "ansible_python_interpreter",
    "DEFAULT_TRANSPORT": "ansible_connection",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """``file``: the ansible.cfg that counts, empty if none does; ``settings``: name -> name, origin and value."""

    file: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """One line: the file, and what it says of connections; empty without a file."""
        used = [name.lower() for name in _VARIABLES if name in self.settings]
        return f"{self.file} ({', '.join(used) or 'nothing of connections'})" if self.file else ""

    def apply(self, inventory: Inventory) -> Inventory:
        """The inventory with these settings for each host behind SSH. Raises UsageError for values that ccbed cannot use."""
        problems: dict[str, None] = {}
        defaults = {key: (value, where) for key, value, where in self._variables(problems)}
        if problems:
            raise UsageError(*problems)
        hosts = tuple(self._with_defaults(host, defaults) for host in inventory.hosts)
        return replace(inventory, hosts=hosts)

    def _variables(self, problems: dict[str, None]) -> Iterator[tuple[str, Any, str]]:
        for name, key in _VARIABLES.items():
            if name not in self.settings or self.settings[name]["value"] in (None, ""):
                continue
            value, where = self.settings[name]["value"], f"{self.settings[name]['origin']}: {name.lower()}"
            try:
                yield key, literal.ANSIBLE[key](value) if key in literal.ANSIBLE else value, where
            except ValueError as error:
                problems[f"{where}: {error} (got {written_values.show(value)})"] = None

    def _with_defaults(self, host: Host, defaults: Mapping[str, tuple[Any, str]]) -> Host:
        if host.variables.get("ansible_connection") == "local":
            return host
        values = {key: value for key, (value, _) in defaults.items()}
        places = {key: where for key, (_, where) in defaults.items()}
        return replace(
            host,
            variables={**values, **host.variables},
            positions={**places, **host.positions},
            has_become_password=host.has_become_password or "BECOME_PASSWORD_FILE" in self.settings,
        )
