"""Export a run's bundle, sign it, and verify it."""

from __future__ import annotations

from ...app.places import short_path
from ...app.recorded import bundles
from ...app.recorded.bundles import ExportRequest, SignRequest, VerifyRequest
from ...model.errors import EXIT_PASS, EXIT_UNKNOWN
from ..inputs import options
from ..inputs.session import Session


@options.group()
def command() -> None:
    """Export a run's bundle, sign it, and verify it."""


@options.verb(ExportRequest, below=command)
def export(session: Session, request: ExportRequest) -> int:
    """Write RUN as one archive."""
    exported = bundles.export(request)
    if session.is_json:
        session.terminal.json(exported)
        return EXIT_PASS
    size = exported.size_bytes / 1024**2
    sealed = "" if exported.sealed else "; the run has not ended, so it is not sealed"
    archive = exported.archive
    session.terminal.line(
        f"{short_path(archive)}: {exported.files} files, {size:.1f} MiB{sealed}     verify: ccbed bundle verify {archive}"
    )
    return EXIT_PASS


@options.verb(VerifyRequest, below=command, short_help="Compare the files of RUN or ARCHIVE with seal and signatures.")
def verify(session: Session, request: VerifyRequest) -> int:
    """Compare every file of RUN, or of an exported archive, with its seal, and its signatures with the keys."""
    verified = bundles.verify(session, request)
    run, problems, signers = request.run, verified.problems, verified.signers
    if session.is_json:
        session.terminal.json({"run": run, "ok": not problems, "problems": problems, "signer": verified.signer})
    elif problems:
        session.terminal.error(problems, verified.hint)
    else:
        signed = f", and {' and '.join(signers)} signed the evidence" if signers else ""
        derived = "; verdicts and report are no evidence: ccbed check judges it again" if signers else ""
        session.terminal.line(f"{run}: every file matches its seal{signed}{verified.unchecked}{derived}")
    return EXIT_UNKNOWN if problems else EXIT_PASS


@options.verb(SignRequest, below=command, short_help="Sign the sealed evidence of RUN with an SSH key.")
def sign(session: Session, request: SignRequest) -> int:
    """Sign the sealed evidence of RUN with an SSH key: without the key it cannot be changed and sealed again unnoticed."""
    signature, run = bundles.sign(request), request.run
    if session.is_json:
        session.terminal.json({"run": signature.parent.name, "signature": str(signature)})
    else:
        text = f"{short_path(signature)}: signed     verify: ccbed bundle verify {run} --allowed-signers FILE"
        session.terminal.line(text)
    return EXIT_PASS
