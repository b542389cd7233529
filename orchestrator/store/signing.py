"""The signatures of a bundle: keepers sign their events, an SSH key of the user signs the list of SHA-256 checksums.

``evidence.md`` beside this file explains what the signatures prove, and what they do not prove.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..model.errors import UsageError
from ..system import plain_files
from . import paths, seal

#: The namespace of the signature: a signature for another purpose is not valid for a bundle.
NAMESPACE = "ccbed-bundle"
_TIMEOUT_S = 60.0


def sign(directory: Path, key: Path) -> Path:
    """Sign the sealed evidence; the file of the signature. Raises UsageError, or TornBundleError if the seal does not match."""
    if not key.is_file():
        raise UsageError(f"{key}: no such SSH key", hint="--key FILE, or make one: ssh-keygen -t ed25519")
    if problems := seal.verify_evidence(directory):
        raise paths.TornBundleError(*problems)
    signature = directory / seal.SIGNATURE
    manifest = (directory / seal.MANIFEST).read_bytes()
    done = _ssh_keygen(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], manifest, ask=True)
    if done.returncode:
        raise UsageError(
            f"{key}: cannot sign: {_reason(done)}",
            hint="the key's file, or its passphrase; ssh-add holds it in an agent",
        )
    paths.write(signature, done.stdout)
    return signature


def signer(directory: Path, allowed: Path, name: str = "") -> str:
    """The signer of the evidence, from a file of allowed signers (see ssh-keygen(1)); ``name``: accept only this signer.

    Raises UsageError where that cannot be looked up, TornBundleError where the signature does not hold.
    """
    signature = directory / seal.SIGNATURE
    if not allowed.is_file():
        raise UsageError(f"{allowed}: no such file of allowed signers", hint="a line for each: NAME ssh-ed25519 AAAA…")
    if not signature.is_file():
        raise paths.TornBundleError(
            f"{directory}: not signed: it has no {seal.SIGNATURE}", hint=f"ccbed bundle sign {directory}"
        )
    common = ["-s", str(signature), "-f", str(allowed)]
    name = name or _principal(common, allowed)
    manifest = paths.data(directory, seal.MANIFEST)
    done = _ssh_keygen(["-Y", "verify", "-n", NAMESPACE, "-I", name, *common], manifest)
    if done.returncode:
        raise paths.TornBundleError(
            f"{signature}: not a signature of {name} for this evidence: {_reason(done)}",
            hint="the checksums were made anew after it was signed, or another key signed it",
        )
    return name


def unsigned(directory: Path, keys: Iterable[Path]) -> tuple[str, ...]:
    """Return what none of the keepers' ``keys`` has signed: the manifest, and of each file of keepers' events the first such line.

    Raises UsageError for a key that cannot be read.
    """
    contents = [_read_key(key) for key in keys]
    problems = list(_unsigned_manifest(directory, contents))
    for path in (path for path in paths.walk(directory) if path.startswith("keepers/")):
        lines = paths.data(directory, path).splitlines()
        wrong = [n for n, line in enumerate(lines, start=1) if not any(_is_signed(line, key) for key in contents)]
        if wrong:
            reason = f"not signed by the key of its bed ({len(wrong)} of {len(lines)} lines)"
            problems.append(f"{directory / path}:{wrong[0]}: {reason}")
    return tuple(problems)


def _unsigned_manifest(directory: Path, keys: Iterable[bytes]) -> Iterator[str]:
    """A mac is ``node.hostlink.bed_files.sign_manifest``."""
    file = directory / seal.KEEPERS_SIGNATURES
    if not file.is_file():
        yield f"{directory / seal.MANIFEST}: no host agent has signed it: {file.name} is missing"
        return
    macs = [line.partition("  ")[0] for line in paths.text(directory, file.name).splitlines()]
    text = f"manifest {plain_files.sha256(directory / seal.MANIFEST)}".encode()
    due = [hmac.new(key, text, hashlib.sha256).hexdigest() for key in keys]
    if not any(hmac.compare_digest(mac.encode(), right.encode()) for mac in macs for right in due):
        reason = "files were changed after the run was closed, or the key is of another bed"
        yield f"{directory / seal.MANIFEST}: not signed by the key of its bed: {reason}"


def _is_signed(line: bytes, key: bytes) -> bool:
    text, _, mac = line.rpartition(b',"mac":"')
    due = hmac.new(key, text + b"}", hashlib.sha256).hexdigest()
    return hmac.compare_digest(mac, f'{due}"}}'.encode())


def keys_of_bed(state: Path, directory: Path) -> tuple[Path, ...]:
    """The files on this machine with the keys of the bed of a run: one for each host with a keeper."""
    bed = str(paths.document(directory, "plan.json").get("bed"))
    return tuple(sorted((state / "beds" / bed).glob("keeper*/events.key"))) if Path(bed).name == bed else ()


def _read_key(key: Path) -> bytes:
    try:
        return key.read_bytes()
    except OSError as error:
        hint = "keeper/events.key in the directory of the bed: ccbed bundle verify RUN names it; ccbed down removes it"
        raise UsageError(f"{key}: {error.strerror}", hint=hint) from None


def _principal(common: list[str], allowed: Path) -> str:
    done = _ssh_keygen(["-Y", "find-principals", *common], b"")
    names = done.stdout.decode(errors="replace").split()
    if done.returncode or not names:
        raise paths.TornBundleError(
            f"{allowed}: its signers do not include the key that signed: {_reason(done)}", hint="--allowed-signers FILE"
        )
    return names[0]


def _ssh_keygen(arguments: list[str], text: bytes, *, ask: bool = False) -> subprocess.CompletedProcess[bytes]:
    """``ask``: ssh-keygen may prompt for a passphrase. Raises UsageError if it is missing, too old or hangs."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise UsageError("ssh-keygen is not on PATH", hint="install OpenSSH 8.2 or newer (package openssh-client)")
    environment = {**os.environ, "LC_ALL": "C", **({} if ask else {"SSH_ASKPASS_REQUIRE": "never"})}
    try:
        return subprocess.run(
            [program, *arguments], input=text, capture_output=True, timeout=_TIMEOUT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"ssh-keygen did not end within {_TIMEOUT_S:g} s", hint="ssh-add holds the key in an agent"
        ) from None


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
