"""Passwords of ansible-vault for Ansible: files that the user names, or a typed password, which is stored nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..model.errors import UsageError
from ..model.frozen import dataclass

#: Ansible itself reads these.
VARIABLES = ("ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vault:
    """``files``: with a password, or a program that prints it; ``password``: as the user typed it."""

    files: tuple[str, ...] = ()
    password: str | None = None

    def has_password(self, environ: Mapping[str, str] = os.environ) -> bool:
        return bool(self.files or self.password is not None or any(environ.get(name) for name in VARIABLES))


def check(vault: Vault) -> None:
    """Raises UsageError for password files that cannot be read."""
    unreadable = [file for file in vault.files if not os.access(file, os.R_OK)]
    if unreadable:
        raise UsageError(
            *(f"{file}: the vault's password file cannot be read" for file in unreadable),
            hint="--vault-password-file FILE, or --ask-vault-pass",
        )


@contextmanager
def arguments(vault: Vault) -> Iterator[Sequence[str]]:
    """Options for Ansible's programs. While they run, a typed password is in a file of this user, in memory."""
    check(vault)
    options = [part for file in vault.files for part in ("--vault-password-file", str(Path(file).absolute()))]
    if vault.password is None:
        yield options
        return
    import tempfile

    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.NamedTemporaryFile("w", prefix="ccbed-", dir=memory) as file:
        file.write(vault.password + "\n")
        file.flush()
        yield [*options, "--vault-password-file", file.name]
