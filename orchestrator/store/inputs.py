"""Selects the user's files that a bundle keeps: code and configuration. Of other files it keeps name, size, time and SHA-256."""

from __future__ import annotations

import datetime
import fnmatch
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ..core.spec import redact, redacted_copies
from ..model import redaction
from ..model.frozen import dataclass
from ..model.plan import LeftOut, Redacted
from ..model.trial import Trial

#: The directory of the files beside a script, in payload and bundle.
USER = "user/"
CODE = {".py", ".pyi", ".pyx", ".sh", ".bash", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
CONFIGURATION = {".toml", ".ini", ".cfg", ".conf", ".yaml", ".yml", ".json", ".properties"}
NAMES = ("requirements*.txt", "constraints*.txt", "Makefile", "Dockerfile", "*.Dockerfile")
#: Larger files are data, whatever their name, in bytes.
LARGEST = 1024 * 1024
#: Other files up to this size are searched for secrets: a larger file is no key, vault or inventory.
LARGEST_SECRET = 64 * 1024
#: Names of files that hold secrets; case does not matter.
SECRET_NAMES = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.gpg",
    "*.age", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".pgpass", ".npmrc", ".pypirc",
    ".htpasswd", ".git-credentials", ".boto", "credentials", "credentials.*", "*credentials.json", "secrets", "secrets.*",
    "secret.*", "token", "token.*", "*.token", "kubeconfig", "service-account*.json", "service_account*.json",
    "vault", "vault.*", "vault_pass*", ".vault_pass*",
)  # fmt: skip
#: Files that hold secrets by their purpose.
_WHOLE = {
    "holds a private key": redaction.PRIVATE_KEY,
    "holds an Ansible vault": re.compile(r"\A\s*\$ANSIBLE_VAULT;|!vault\b"),
    "holds a Kubernetes Secret": re.compile(r"""\bkind["']?\s{0,9}:\s{0,9}["']?Secret\b"""),
    "holds a login of a registry": re.compile(r"""["']auths["']\s{0,9}:\s{0,9}\{"""),
}
_INVENTORY = re.compile(r"(?:^|[\s\[{\"'])(?:ansible|ccbed)_\w+[\"']?\s*[:=]")
KNOWN = "holds a redacted value"


def script(trial: Trial) -> Path | None:
    return Path(trial.params["file"]) if trial.params.get("file") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The user's files. ``root``: their directory; ``files``: path below it -> content; ``left_out``: path -> the reason.

    ``in_place``: the nodes share the file system of this machine, and run the script where it is.
    """

    root: Path
    files: Mapping[str, bytes]
    left_out: Mapping[str, str]
    in_place: bool = False


#: The files that the bundle keeps, the facts about the other files, and what the copies lack.
Selection = tuple[Mapping[str, bytes], tuple[LeftOut, ...], tuple[Redacted, ...]]


def of_run(project: Project | None, trial_files: Mapping[str, bytes], secrets: Iterable[str]) -> Selection:
    """Select as ``select`` does, or from ``trial_files`` if the trial runs no script. ``secrets``: known values."""
    values = tuple(secrets)
    if project is None:
        return without_secrets(trial_files, lambda content: redact.contains_secret(content, values))
    return select(project, lambda content: redact.contains_secret(content, values))


def select(project: Project, holds_secret: Callable[[bytes], bool]) -> Selection:
    """Select from the files of a project. ``holds_secret``: whether a secret that is known is in a content."""
    kept: dict[str, bytes] = {}
    left_out = []
    redacted: list[Redacted] = []
    for path, content in sorted(project.files.items()):
        name = f"{USER}{path}"
        secret = reason_secret(name, content) or (KNOWN if holds_secret(content) else "")
        reason = secret or _reason_other(name, content)
        if not reason:
            kept[name], lacking = redacted_copy(name, content)
            redacted += lacking
            continue
        digest = "" if secret else hashlib.sha256(content).hexdigest()
        left_out.append(_left_out(project.root, name, reason, digest))
    left_out += [_left_out(project.root, f"{USER}{path}", why, "") for path, why in sorted(project.left_out.items())]
    return kept, tuple(left_out), tuple(redacted)


def without_secrets(files: Mapping[str, bytes], holds_secret: Callable[[bytes], bool]) -> Selection:
    """Select the files that hold no known secret: for the file of a trial."""
    copies = {name: redacted_copy(name, content) for name, content in files.items() if not holds_secret(content)}
    left_out = (LeftOut(path=name, reason=KNOWN) for name in files if name not in copies)
    redacted = (entry for _, lacking in copies.values() for entry in lacking)
    return {name: copy for name, (copy, _) in copies.items()}, tuple(left_out), tuple(redacted)


def holds_secret(name: str, content: bytes) -> bool:
    """Return whether a bundle does not keep all of a file because of a secret."""
    return bool(reason_secret(name, content) or (not _reason_other(name, content) and redacted_copy(name, content)[1]))


def redacted_copy(name: str, content: bytes) -> tuple[bytes, tuple[Redacted, ...]]:
    """(the content of a file without secrets, what was redacted), by our rules and those of the detectors."""
    return redacted_copies.redact(name, content, detect)


def detect(line: str) -> tuple[str, ...] | None:
    """The secrets in a line by the detectors of bc-detect-secrets, imported when our rules leave a suspect line. None: they failed."""
    try:
        return tuple(str(value) for detector in _detectors() for value in detector.analyze_string(line))
    except Exception:  # noqa: BLE001 - whatever fails in another's code, the caller redacts the line
        return None


@functools.cache
def _detectors() -> tuple[Any, ...]:
    """One of each kind that recognizes a form or a name. ``analyze_string`` is the part of a detector that sends nothing."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.high_entropy_strings import HighEntropyStringsPlugin

    kinds = get_mapping_from_secret_type_to_class().values()
    return tuple(kind() for kind in kinds if not issubclass(kind, HighEntropyStringsPlugin))


def reason_secret(name: str, content: bytes) -> str:
    """Return why all of a file counts as secret: its name or its content; empty for any other file."""
    path = PurePosixPath(name.lower())
    if any(fnmatch.fnmatch(path.name, pattern) for pattern in SECRET_NAMES) and path.suffix not in CODE:
        return "secret by its name"
    if len(content) > (LARGEST if path.suffix in CODE | CONFIGURATION else LARGEST_SECRET):
        return ""
    text = content.decode(errors="replace")
    if reason := next((reason for reason, form in _WHOLE.items() if form.search(text)), ""):
        return reason
    if path.suffix not in CODE and _is_text(content) and _INVENTORY.search(text):
        return "an inventory"
    return "holds a token" if _reason_other(name, content) and redaction.TOKEN.search(text) else ""


def _reason_other(name: str, content: bytes) -> str:
    path = PurePosixPath(name)
    known = path.suffix.lower() in CODE | CONFIGURATION or any(fnmatch.fnmatch(path.name, pattern) for pattern in NAMES)
    if not known or not _is_text(content):
        return "neither code nor configuration"
    return f"larger than {LARGEST // 1024**2} MiB" if len(content) > LARGEST else ""


def _is_text(content: bytes) -> bool:
    return b"\0" not in content[:8192]


def _left_out(directory: Path, name: str, reason: str, digest: str) -> LeftOut:
    try:
        status = (directory / name.removeprefix(USER)).lstat()
    except OSError:
        return LeftOut(path=name, reason=reason, sha256=digest)
    modified = datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC)
    return LeftOut(
        path=name, reason=reason, size_bytes=status.st_size, modified=f"{modified:%Y-%m-%dT%H:%M:%SZ}", sha256=digest
    )
