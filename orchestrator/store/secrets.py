"""The key that masks secrets on this machine, and the secrets of a bed's open run."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from . import paths

KEY = "redaction.key"
OF_RUN = "run-secrets.json"


def mask(state: Path) -> Callable[[str], str]:
    """Secret -> placeholder. It holds a digest under a key of this state directory: without the key nothing can be guessed."""
    return lambda secret: f"<redacted:{_digest(_key(state), secret.encode())[:16]}>"


def salt(state: Path) -> bytes:
    """The salt for digests of files with secrets, so that a digest reveals nothing without the key."""
    return _digest(_key(state), b"salt of payloads").encode()


def keep(workdir: Path, run: str, values: Mapping[str, str]) -> None:
    """Keep placeholder -> secret with the bed while the run is open: resuming it requires them."""
    if values:
        paths.write_json(workdir / OF_RUN, {"run": run, "secrets": dict(values)})


def of_run(workdir: Path, run: str) -> dict[str, str]:
    """Placeholder -> secret of an open run; empty if it has none."""
    try:
        content = json.loads((workdir / OF_RUN).read_bytes())
        return dict(content["secrets"]) if content["run"] == run else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def forget(workdir: Path, run: str) -> None:
    """Remove the secrets of an ended run."""
    if of_run(workdir, run):
        (workdir / OF_RUN).unlink(missing_ok=True)


def _key(state: Path) -> bytes:
    file = state / KEY
    if not file.exists():
        candidate = state / f".{KEY}.{secrets.token_hex(4)}"
        paths.write(candidate, secrets.token_hex(32).encode())
        with suppress(FileExistsError):  # another process was first: its key counts
            os.link(candidate, file)
        candidate.unlink()
    return file.read_bytes()


def _digest(key: bytes, value: bytes) -> str:
    return hmac.new(key, value, hashlib.sha256).hexdigest()
