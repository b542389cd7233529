"""Estimate a training: bytes of collectives, steps, memory, time."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import click

from ...core.sizing import replay_items, traces
from ...model.errors import UsageError
from ...model.frozen import dataclass
from ...store import unpack
from ..inputs import options, size_options, size_request
from ..inputs.session import Session
from ..render import size_view

_FORMS = "ccbed size --trace takes a PARAM comms trace or Chakra execution traces (JSON or .et), gzipped or not, or a folder of them"


@options.command()
@size_options.model
@size_options.distribution
@size_options.bounds
@options.force("Overwrite the file of --emit.")
@options.as_json
@click.pass_obj
def command(
    session: Session, /, as_json: bool, emit: Path | None, trace: Path | None, force: bool, **values: Any
) -> int:
    """Estimate a training: bytes of every collective, steps, memory, time on a link. Nothing is started."""
    if (trace is None) == (values["model_name"] is None):
        raise UsageError(
            "give one of --model and --trace", hint="ccbed size --model mnist-mlp --batch 8192 --dataset 60000"
        )
    modules = {name: session.catalogue.algorithms[name].module for name in session.catalogue.algorithms}
    if trace is not None:
        return _trace(session, trace, values, modules, _Emission(file=emit, force=force), as_json)
    estimate = size_request.estimate(values, modules)
    written = _Emission(file=emit, force=force)
    if emit:
        made = replay_items.from_training_size(estimate)
        written.check(
            replay_items.write_trial(_name(emit), made, estimate.request.layout.gpus, size_view.notes(estimate))
        )
    if as_json:
        session.terminal.json(size_view.document(estimate))
    else:
        size_view.show(session.terminal, estimate)
    written.write(session, quiet=as_json)
    return 0


def _trace(
    session: Session, path: Path, values: dict[str, Any], modules: dict[str, Any], written: _Emission, as_json: bool
) -> int:
    size_request.only_traced(values)
    try:
        replay = traces.replay(_files(path), size_request.chooser(modules, values["algorithm"]), values["gpus"])
    except ValueError as error:
        raise UsageError(*str(error).splitlines(), hint=_FORMS) from None
    if written.file:
        notes = [f"From the {replay.form} {path}.", *(f"{note[:1].upper()}{note[1:]}." for note in replay.notes)]
        written.check(replay_items.write_trial(_name(written.file), replay.items, replay.ranks, notes))
    if as_json:
        session.terminal.json(size_view.replay_document(replay))
    else:
        size_view.show_replay(session.terminal, replay, path)
    written.write(session, quiet=as_json)
    return 0


def _files(path: Path) -> dict[str, bytes]:
    """Read the trace, or the traces of a folder: name -> content."""
    if not path.exists():
        raise UsageError(f"--trace {path}: no such file or folder", hint=_FORMS)
    files = (
        sorted(file for form in ("*.json", "*.json.gz", "*.et", "*.et.gz") for file in path.glob(form))
        if path.is_dir()
        else [path]
    )
    return {file.name: _content(file) for file in files}


def _content(file: Path) -> bytes:
    if file.suffix != ".gz":
        return file.read_bytes()
    limit = unpack.allowed(file.stat().st_size)
    try:
        with gzip.open(file) as source:
            content = source.read(limit + 1)
        if len(content) > limit:
            raise UsageError(f"{file}: more than {limit:,} bytes when unpacked", hint=f"gunzip {file}")
        return content
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{file}: not a gzip file: {error}", hint=_FORMS) from None


def _name(file: Path) -> str:
    """Return the trial's name: that of the file, with the letters that a name may have."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in file.stem)
    return letters.strip("-")[:60] or "emulate"


@dataclass(kw_only=True)
class _Emission:
    """The file of --emit, if there is one. It is checked before anything is printed, and written after that."""

    file: Path | None
    force: bool
    text: str = ""

    def check(self, text: str) -> None:
        """Raises UsageError where the file exists with another content, or cannot be written."""
        self.text, file = text, self.file
        if file is None:
            return
        if not file.absolute().parent.is_dir():
            raise UsageError(f"--emit {file}: no such directory: {file.parent}", hint=f"mkdir -p {file.parent}")
        try:
            differs = file.exists() and file.read_bytes() != text.encode()
        except OSError as error:
            raise self._failed(error) from None
        if differs and not self.force:
            raise UsageError(
                f"--emit {file}: exists with another content", hint="overwrite it with --force, or give another name"
            )

    def write(self, session: Session, *, quiet: bool) -> None:
        """Write the file, if there is one. Raises UsageError."""
        if self.file is None:
            return
        try:
            self.file.write_text(self.text)
        except OSError as error:
            raise self._failed(error) from None
        if not quiet:
            session.terminal.line(f"written   {self.file}      to replay it: ccbed run {self.file}")

    def _failed(self, error: OSError) -> UsageError:
        return UsageError(f"--emit {self.file}: {error.strerror}", hint="name a file in a directory that you may write")
