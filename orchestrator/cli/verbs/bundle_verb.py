"""Export a run's bundle, sign it, and verify it."""

from __future__ import annotations

from ...app.places import short_path
from ...app.recorded import bundles
from ...app.recorded.bundles import ExportRequest, SignRequest, VerifyRequest
from ...model.errors import EXIT_PASS
from ..inputs import options
from ..inputs.terminal_session import Session


@options.group()
def command() -> None:
    """Export a run's bundle, sign it, and verify it."""


@options.shows(ExportRequest, bundles.export, below=command)
def export(session: Session, exported: bundles.Exported) -> None:
    """Write RUN as one archive."""
    size = exported.size_bytes / 1024**2
    sealed = "" if exported.sealed else "; the run has not ended, so it has no checksums"
    archive = exported.archive
    session.terminal.line(
        f"{short_path(archive)}: {exported.files} files, {size:.1f} MiB{sealed}     verify: ccbed bundle verify {archive}"
    )


@options.shows(
    VerifyRequest,
    bundles.verify,
    below=command,
    short_help="Compare the files of RUN or ARCHIVE with their checksums and signatures.",
)
def verify(session: Session, verified: bundles.Verified) -> None:
    """Compare every file of RUN, or of an exported archive, with its checksum, and its signatures with the keys."""
    signers = verified.signers
    if verified.problems:
        session.terminal.error(verified.problems, verified.hint)
    else:
        signed = f", and {' and '.join(signers)} signed the evidence" if signers else ""
        derived = "; verdicts and report are no evidence: ccbed check judges it again" if signers else ""
        session.terminal.line(f"{verified.run}: every file matches its checksum{signed}{verified.unchecked}{derived}")


@options.verb(SignRequest, below=command, short_help="Sign the evidence of RUN with an SSH key.")
def sign(session: Session, request: SignRequest) -> int:
    """Sign the evidence of RUN with an SSH key: without the key it cannot be changed unnoticed, with new checksums."""
    signature, run = bundles.sign(request), request.run
    if session.is_json:
        session.terminal.json({"run": signature.parent.name, "signature": str(signature)})
    else:
        text = f"{short_path(signature)}: signed     verify: ccbed bundle verify {run} --allowed-signers FILE"
        session.terminal.line(text)
    return EXIT_PASS
