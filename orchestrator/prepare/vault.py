"""Passwords of ansible-vault on their way to Ansible: files that the user names, or one asked for once and kept nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..model.errors import UsageError

#: Honoured by Ansible itself.
VARIABLES = ("ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vault:
    """``files`` as given (a password, or a program that prints it); ``password``: what was typed."""

    files: tuple[str, ...] = ()
    password: str | None = None

    def given(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Whether there is anything to open a vault with."""
        return bool(self.files or self.password is not None or any(environ.get(name) for name in VARIABLES))


def check(vault: Vault) -> None:
    """Raises UsageError for password files that cannot be read."""
    wrong = [file for file in vault.files if not os.access(file, os.R_OK)]
    if wrong:
        raise UsageError(
            *(f"{file}: the vault's password file cannot be read" for file in wrong),
            hint="--vault-password-file FILE, or --ask-vault-pass",
        )


@contextmanager
def arguments(vault: Vault) -> Iterator[Sequence[str]]:
    """Options for Ansible's programs. A typed password lies in memory, in a file of this user's, for as long as they run."""
    check(vault)
    given = [part for file in vault.files for part in ("--vault-password-file", str(Path(file).absolute()))]
    if vault.password is None:
        yield given
        return
    import tempfile

    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.NamedTemporaryFile("w", prefix="ccbed-", dir=memory) as file:
        file.write(vault.password + "\n")
        file.flush()
        yield [*given, "--vault-password-file", file.name]
