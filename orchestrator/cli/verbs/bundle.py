"""Export a run's bundle, sign it, and verify it."""

from __future__ import annotations

from pathlib import Path

import click

from ...app.places import short_path
from ...model.errors import EXIT_UNKNOWN, UsageError
from ...store import bundle as store
from ...store import index, paths, seal, signing, unpack
from ..inputs import options
from ..inputs.session import Session


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "CCBED"})
def command() -> None:
    """Export a run's bundle, sign it, and verify it."""


@command.command(context_settings={"auto_envvar_prefix": "CCBED"})
@options.of_run()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The archive; default RUN.tar.gz."
)
@options.runs_dir
@options.as_json
@click.pass_obj
def export(session: Session, run: str, output: Path | None, runs_dir: Path, as_json: bool) -> int:
    """Write RUN as one archive."""
    directory = index.resolve(run, runs_dir)
    target = output or Path(f"{directory.name}.tar.gz")
    count = unpack.export(directory, target)
    if as_json:
        document = {"archive": str(target), "files": count, "size_bytes": target.stat().st_size}
        session.terminal.json({**document, "sealed": store.is_sealed(directory)})
        return 0
    size = target.stat().st_size / 1024**2
    sealed = "" if store.is_sealed(directory) else "; the run has not ended, so it is not sealed"
    session.terminal.line(
        f"{short_path(target)}: {count} files, {size:.1f} MiB{sealed}     verify: ccbed bundle verify {target}"
    )
    return 0


@command.command(
    context_settings={"auto_envvar_prefix": "CCBED"},
    short_help="Compare the files of RUN or ARCHIVE with seal and signatures.",
)
@options.of_run(metavar="RUN|ARCHIVE")
@click.option(
    "--allowed-signers", type=click.Path(path_type=Path), help="The keys that may have signed it: see ssh-keygen(1)."
)
@click.option("--signer", default="", metavar="NAME", help="Accept only this one of the allowed signers.")
@options.bed_keys
@options.runs_dir
@options.as_json
@click.pass_obj
def verify(
    session: Session,
    run: str,
    allowed_signers: Path | None,
    signer: str,
    keys: tuple[Path, ...],
    runs_dir: Path,
    as_json: bool,
) -> int:
    """Compare every file of RUN, or of an exported archive, with its seal, and its signatures with the keys."""
    if signer and allowed_signers is None:
        raise UsageError("--signer needs --allowed-signers FILE", hint="one line per signer: NAME ssh-ed25519 AAAA…")
    if Path(run).is_file():
        with unpack.unpacked(Path(run)) as directory:
            problems, name, hint = _verified(directory, allowed_signers, signer, keys)
            unchecked = "" if problems else _unchecked(session, directory, allowed_signers, keys)
            problems = tuple(problem.replace(f"{directory.parent}/", "") for problem in problems)
    else:
        directory = index.resolve(run, runs_dir)
        problems, name, hint = _verified(directory, allowed_signers, signer, keys)
        unchecked = "" if problems else _unchecked(session, directory, allowed_signers, keys)
    if as_json:
        session.terminal.json({"run": run, "ok": not problems, "problems": list(problems), "signer": name})
    elif problems:
        session.terminal.error(problems, hint)
    else:
        signers = [*(["the key of its bed"] if keys else []), *([name] if name else [])]
        signed = f", and {' and '.join(signers)} signed the evidence" if signers else ""
        derived = "; verdicts and report are no evidence: ccbed check judges it again" if signers else ""
        session.terminal.line(f"{run}: every file matches its seal{signed}{unchecked}{derived}")
    return EXIT_UNKNOWN if problems else 0


def _unchecked(session: Session, directory: Path, allowed: Path | None, keys: tuple[Path, ...]) -> str:
    """Return which signatures are there, but were not checked."""
    text = ""
    if (directory / seal.SIGNATURE).exists() and not allowed:
        text += "; its signature was not checked: give --allowed-signers FILE"
    if (directory / seal.KEEPERS_SIGNATURES).exists() and not keys:
        files = signing.keys_of_bed(session.state, directory)
        known = " ".join(f"--bed-key {short_path(file)}" for file in files)
        text += f"; its keepers' signatures were not checked: give {known or '--bed-key FILE (its bed is not up here)'}"
    return text


def _verified(
    directory: Path, allowed: Path | None, signer: str, keys: tuple[Path, ...]
) -> tuple[tuple[str, ...], str | None, str]:
    """Return the problems, the signer where allowed signers are given, and what to do about the problems."""
    problems = seal.verify(directory)
    try:
        problems += signing.unsigned(directory, keys) if keys and not problems else ()
        name = signing.signer(directory, allowed, signer) if allowed and not problems else None
        return problems, name, "copy the bundle again from where it was made"
    except paths.TornBundleError as error:
        return tuple(error.problems), None, error.hint


@command.command(
    context_settings={"auto_envvar_prefix": "CCBED"}, short_help="Sign the sealed evidence of RUN with an SSH key."
)
@options.of_run()
@click.option(
    "--key", type=click.Path(path_type=Path), default=Path("~/.ssh/id_ed25519"), show_default=True, help="An SSH key."
)
@options.runs_dir
@options.as_json
@click.pass_obj
def sign(session: Session, run: str, key: Path, runs_dir: Path, as_json: bool) -> int:
    """Sign the sealed evidence of RUN with an SSH key: without the key it cannot be changed and sealed again unnoticed."""
    directory = index.resolve(run, runs_dir)
    if not store.is_sealed(directory):
        raise UsageError(f"{short_path(directory)}: the run is not sealed yet", hint=f"ccbed resume {run}")
    signature = signing.sign(directory, key.expanduser())
    if as_json:
        session.terminal.json({"run": directory.name, "signature": str(signature)})
        return 0
    session.terminal.line(
        f"{short_path(signature)}: signed     verify: ccbed bundle verify {run} --allowed-signers FILE"
    )
    return 0
