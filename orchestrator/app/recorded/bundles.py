"""Export a run's bundle, sign it, and verify it."""

from __future__ import annotations

from pathlib import Path

from ...model.errors import EXIT_PASS, EXIT_UNKNOWN, UsageError
from ...model.frozen import dataclass
from ...store import bundle, index, paths, seal, signing, unpack
from .. import check
from ..places import short_path
from ..requests import named_run, option, runs_directory
from ..session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """The request of `ccbed bundle export`."""

    run: str = named_run()
    output: Path | None = option(None, "The archive; default RUN.tar.gz.", flags=("-o", "--output"), is_file=True)
    runs_dir: Path = runs_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An archive that was written."""

    archive: Path
    files: int
    size_bytes: int
    sealed: bool


def export(_session: Session, request: ExportRequest) -> Exported:
    """Write a run as one archive. Raises UsageError, InfrastructureError."""
    directory = index.resolve(request.run, request.runs_dir)
    target = request.output or Path(f"{directory.name}.tar.gz")
    count = unpack.export(directory, target)
    is_sealed = bundle.is_sealed(directory)
    return Exported(archive=target, files=count, size_bytes=target.stat().st_size, sealed=is_sealed)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """The request of `ccbed bundle verify`."""

    run: str = named_run(metavar="RUN|ARCHIVE")
    allowed_signers: Path | None = option(None, "The keys that may have signed it: see ssh-keygen(1).")
    signer: str = option("", "Accept only this one of the allowed signers.", metavar="NAME")
    keys: tuple[Path, ...] = check.bed_keys()
    runs_dir: Path = runs_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A check of a seal and its signatures. ``signers``: who signed the evidence; ``unchecked``: signatures without a key to check them."""

    run: str
    problems: tuple[str, ...]
    signer: str | None
    signers: tuple[str, ...]
    hint: str
    unchecked: str = ""

    @property
    def code(self) -> int:
        return EXIT_UNKNOWN if self.problems else EXIT_PASS

    @property
    def document(self) -> object:
        return {"run": self.run, "ok": not self.problems, "problems": list(self.problems), "signer": self.signer}


def verify(session: Session, request: VerifyRequest) -> Verified:
    """Compare the files of a run, or of an archive, with its seal, and its signatures with the keys. Raises UsageError."""
    if request.signer and request.allowed_signers is None:
        raise UsageError("--signer needs --allowed-signers FILE", hint="one line per signer: NAME ssh-ed25519 AAAA…")
    if Path(request.run).is_file():
        with unpack.unpacked(Path(request.run)) as directory:
            return _verified(session, directory, request, f"{directory.parent}/")
    return _verified(session, index.resolve(request.run, request.runs_dir), request, "")


def _verified(session: Session, directory: Path, request: VerifyRequest, head: str) -> Verified:
    """``head``: of paths, which problems leave out."""
    problems, name, hint = seal.verify(directory), None, "copy the bundle again from where it was made"
    try:
        problems += signing.unsigned(directory, request.keys) if request.keys and not problems else ()
        if request.allowed_signers and not problems:
            name = signing.signer(directory, request.allowed_signers, request.signer)
    except paths.TornBundleError as error:
        problems, hint = tuple(error.problems), error.hint
    return Verified(
        run=request.run,
        problems=tuple(problem.replace(head, "") if head else problem for problem in problems),
        signer=name,
        signers=(*(["the key of its bed"] if request.keys else []), *([name] if name else [])),
        hint=hint,
        unchecked="" if problems else _unchecked(session, directory, request),
    )


def _unchecked(session: Session, directory: Path, request: VerifyRequest) -> str:
    """Return which signatures are there, but were not checked."""
    text = ""
    if (directory / seal.SIGNATURE).exists() and not request.allowed_signers:
        text += "; its signature was not checked: give --allowed-signers FILE"
    if (directory / seal.KEEPERS_SIGNATURES).exists() and not request.keys:
        files = signing.keys_of_bed(session.state, directory)
        known = " ".join(f"--bed-key {short_path(file)}" for file in files)
        text += (
            f"; its host agents' signatures were not checked: give {known or '--bed-key FILE (its bed is not up here)'}"
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SignRequest:
    """The request of `ccbed bundle sign`."""

    run: str = named_run()
    key: Path = option(Path("~/.ssh/id_ed25519"), "An SSH key.")
    runs_dir: Path = runs_directory()


def sign(request: SignRequest) -> Path:
    """Sign the sealed evidence of a run, and return the signature. Raises UsageError, InfrastructureError."""
    directory = index.resolve(request.run, request.runs_dir)
    if not bundle.is_sealed(directory):
        raise UsageError(f"{short_path(directory)}: the run is not closed yet", hint=f"ccbed resume {request.run}")
    return signing.sign(directory, request.key.expanduser())
