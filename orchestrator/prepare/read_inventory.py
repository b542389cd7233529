"""Reads any inventory that Ansible can list; a plain YAML file of this machine is read without Ansible, in a millisecond."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..core.inventory import parse_inventory, parse_listing
from ..model.bed import Inventory
from ..model.errors import UsageError
from ..model.frozen import dataclass
from ..store import paths
from .vault import Vault

_YAML = (".yml", ".yaml")
#: Features that need Ansible: encrypted values, templates, host ranges, configurations of inventory plugins.
_NEEDS_ANSIBLE = re.compile(
    r"!vault\b|\{[{%]|\[\w+:\w+(?::\w+)?\][\w.-]*['\"]?\s*:|^['\"]?plugin['\"]?\s*:", re.MULTILINE
)
_HEADER = "$ANSIBLE_VAULT;"
#: A larger file is not an inventory.
_LARGEST = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """An inventory, and the values of its vault that no message may show; ``settings``: the ansible.cfg that counts, in words."""

    inventory: Inventory
    secrets: tuple[str, ...] = ()
    settings: str = ""


def read(path: Path, vault: Vault, state: Path) -> Read:
    """Read an inventory; ``state``: where accepted configurations of Ansible are remembered. Raises UsageError with all problems.

    A file whose hosts are all this machine is read without Ansible: nothing that Ansible could add concerns them.
    """
    if not path.exists():
        raise UsageError(f"{path}: cannot be read: No such file or directory")
    if not (path.is_file() or path.is_dir()):
        raise UsageError(f"{path}: cannot be read: neither a file nor a directory")
    text = _plain(path)
    if text is not None:
        listing, files = parse_inventory.read(text, str(path))
        if files.problems or all(host.get("ansible_connection") == "local" for host in listing.hostvars.values()):
            return Read(inventory=parse_listing.parse(listing, files))
    from . import ansible_listing, ansible_settings

    defaults = ansible_settings.read(state)
    inventory, secrets = ansible_listing.read(path, vault)
    return Read(inventory=defaults.apply(inventory), secrets=secrets, settings=defaults.text)


def _plain(path: Path) -> str | None:
    """The text of a self-contained YAML file; None if Ansible has to list the inventory."""
    if path.is_dir() or path.suffix not in _YAML or (os.access(path, os.X_OK) and _is_script(path)):
        return None
    if any((path.parent / name).is_dir() for name in ("group_vars", "host_vars")):
        return None
    text = _text(path)
    return None if text.startswith(_HEADER) or _NEEDS_ANSIBLE.search(text) else text


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _text(path: Path) -> str:
    """Raises UsageError."""
    try:
        return paths.read(path, _LARGEST).decode()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not valid YAML: not UTF-8 text (byte {error.start})") from None
