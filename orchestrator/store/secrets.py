"""The key that masks secrets on this machine; the secrets and the environment of a bed's open run."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from ..model.frozen import asdict, dataclass, field
from ..system import plain_files
from . import paths

KEY = "redaction.key"
OF_RUN = "run-secrets.json"
OF_RUN_FIELDS = ("secrets", "environment", "exports")


def mask(state: Path) -> Callable[[str], str]:
    """Secret -> placeholder. It holds a digest under a key of this state directory: without the key nothing can be guessed."""
    return lambda secret: f"<redacted:{_digest(_key(state), secret.encode())[:16]}>"


def salt(state: Path) -> bytes:
    """The salt for digests of files with secrets, so that a digest reveals nothing without the key."""
    return _digest(_key(state), b"salt of payloads").encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRun:
    """``secrets``: placeholder -> secret; ``environment``, ``exports``: see model/launch.py."""

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    exports: Mapping[str, str] = field(default_factory=dict, repr=False)


def keep(workdir: Path, run: str, values: OfRun) -> None:
    """Keep them with the bed while the run is open: resuming it requires them."""
    if values != OfRun():
        paths.write_json(workdir / OF_RUN, {"run": run, **asdict(values)})


def of_run(workdir: Path, run: str) -> OfRun:
    """The secrets and the environment of an open run; empty if it has none."""
    try:
        content = json.loads((workdir / OF_RUN).read_bytes())
        return OfRun(**{name: content[name] for name in OF_RUN_FIELDS}) if content["run"] == run else OfRun()
    except (OSError, ValueError, KeyError, TypeError):
        return OfRun()


def forget(workdir: Path, run: str) -> None:
    if of_run(workdir, run) != OfRun():
        (workdir / OF_RUN).unlink(missing_ok=True)


def _key(state: Path) -> bytes:
    file = state / KEY
    if not file.exists():
        candidate = state / f".{KEY}.{secrets.token_hex(4)}"
        paths.write(candidate, secrets.token_hex(32).encode())
        plain_files.publish(candidate, file)
    return file.read_bytes()


def _digest(key: bytes, value: bytes) -> str:
    return hmac.new(key, value, hashlib.sha256).hexdigest()
