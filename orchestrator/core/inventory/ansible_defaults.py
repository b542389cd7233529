"""Reads from Ansible's configuration what the inventory does not say of hosts: user, key, port, arguments of ssh, host keys, connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model.bed import Host, Inventory
from ...model.errors import UsageError
from ...model.frozen import dataclass, field, replace
from ..spec import written_values
from . import literal, ssh_options

#: Setting of ``ansible-config dump`` -> the variable of a host that has the same effect.
_VARIABLES = {
    "remote_user": "ansible_user", "port": "ansible_port", "private_key_file": "ansible_ssh_private_key_file",
    "ssh_args": "ansible_ssh_args", "ssh_common_args": "ansible_ssh_common_args", "ssh_extra_args": "ansible_ssh_extra_args",
    "host_key_checking": "ansible_host_key_checking", "INTERPRETER_PYTHON": "ansible_python_interpreter",
    "DEFAULT_TRANSPORT": "ansible_connection",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """``file``: the ansible.cfg that counts, empty if none does; ``settings``: name -> name, origin and value."""

    file: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """One line: the file, and what it says of connections; empty without a file."""
        used = [name.lower() for name in _VARIABLES if name in self.settings]
        return f"{self.file} ({', '.join(used) or 'nothing of connections'})" if self.file else ""

    def apply(self, inventory: Inventory) -> Inventory:
        """The inventory with these settings for each host behind SSH. Raises UsageError for values that ccbed cannot use."""
        return replace(inventory, hosts=tuple(map(self._with, inventory.hosts)))

    def _with(self, host: Host) -> Host:
        if is_local(host) or host.variables.get("ccbed_provider") == "slurm":
            return host
        values, positions, problems = dict(host.variables), dict(host.positions), []
        for name, key in _VARIABLES.items():
            value = self.settings.get(name, {}).get("value")
            if value in (None, "") or key in host.variables:
                continue
            positions[key] = f"{self.settings[name]['origin']}: {name.lower()}"
            try:
                values[key] = literal.ANSIBLE[key](value) if key in literal.ANSIBLE else value
            except ValueError as error:
                problems.append(f"{positions[key]}: {error} (got {written_values.show(value)})")
        if problems:
            raise UsageError(*problems)
        may_become = host.has_become_password or "BECOME_PASSWORD_FILE" in self.settings
        return replace(host, variables=values, positions=positions, has_become_password=may_become)


def is_local(host: Host) -> bool:
    return bool(host.variables.get("ansible_connection") == "local")


def opening(host: Host) -> str:
    """Return the position of Ansible's own setting that decides first on keys of new hosts; empty if none does."""
    for name in (ssh_options.VARIABLES[0], "ansible_host_key_checking", *ssh_options.VARIABLES[1:]):
        value, position = host.variables.get(name), host.positions.get(name, "")
        is_configured = position.endswith(f": {name.removeprefix('ansible_')}")
        if value is False or (is_configured and "stricthost" in str(value).lower()):
            return position
    return ""


def names_provider(inventory: Inventory) -> bool:
    return any(host.variables.get("ccbed_provider") for host in inventory.hosts)


def with_provider(inventory: Inventory) -> Inventory:
    """The provider follows from the connection where the inventory names none: hosts behind SSH hold containers."""
    if names_provider(inventory) or all(map(is_local, inventory.hosts)):
        return inventory
    hosts = (replace(host, variables={**host.variables, "ccbed_provider": "docker"}) for host in inventory.hosts)
    return replace(inventory, hosts=tuple(hosts))
