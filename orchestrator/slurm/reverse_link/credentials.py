"""The certificate and the tokens of a bed: files that only their owner can access, on the file system that its hosts share."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from ...model.errors import InfrastructureError
from ...node.hostlink.reverse_link import CERTIFICATE, MAX_LINE, TOKENS, read_private
from ...system import plain_files

KEY = "link-key.pem"
_TOKEN_BYTES = 32
#: A bed lives for hours or weeks; a certificate that ends earlier than its bed would cut it off.
_VALID = datetime.timedelta(days=3650)


def ensure_certificate(shared: Path, private: Path) -> None:
    """Create key and certificate unless they exist. ``private``: holds the key, which no host needs.

    Raises OSError, and InfrastructureError for directories in which other users can replace files.
    """
    for directory in (shared, shared / TOKENS, private):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for directory in (shared.parent, shared, shared / TOKENS, private):
        _refuse_foreign(directory)
    if (private / KEY).exists() and (shared / CERTIFICATE).exists():
        return
    key, certificate = _new_certificate()
    plain_files.replace_file(private / KEY, key)
    plain_files.replace_file(shared / CERTIFICATE, certificate)


def new_token(shared: Path, host: str) -> None:
    """Draw the token of a host. Its earlier token, and the step that holds it, are rejected from now on. Raises OSError."""
    plain_files.replace_file(shared / TOKENS / host, secrets.token_hex(_TOKEN_BYTES).encode())


def is_token(shared: Path, host: str, token: str) -> bool:
    """Return whether this is the present token of a host; the comparison takes the same time for every wrong token."""
    if not host or "/" in host or host.startswith("."):
        return False
    try:
        present = read_private(shared / TOKENS / host, MAX_LINE)
    except OSError:
        return False
    return len(present) == 2 * _TOKEN_BYTES and hmac.compare_digest(
        hashlib.sha256(present).digest(), hashlib.sha256(token.encode()).digest()
    )


def _refuse_foreign(directory: Path) -> None:
    """Raises InfrastructureError for a directory of another user, or one in which others can create files."""
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise InfrastructureError(f"{directory} belongs to another user", hint="set another ccbed_workdir")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InfrastructureError(f"{directory}: other users can write there", hint=f"chmod go-w {directory}")


def _new_certificate() -> tuple[bytes, bytes]:
    """(key, certificate) as PEM: P-256, signed by itself, with no name of a machine or user."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ccbed bed")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks of nodes differ
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoded_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded_key, certificate.public_bytes(serialization.Encoding.PEM)
