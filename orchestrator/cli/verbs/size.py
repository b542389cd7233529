"""Say what a training will move and hold before it runs: bytes, trials, memory, time on a link."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ...core.sizing import items, traces
from ...model.errors import UsageError
from ..inputs import options, size_options, size_request
from ..inputs.session import Session
from ..render import size_view

_FORMS = "ccbed size --trace takes a PARAM comms trace or Chakra execution traces (JSON or .et), gzipped or not, or a folder of them"


@options.command()
@size_options.model
@size_options.spread
@size_options.bounds
@options.force("Also write over another file that is there.")
@options.as_json
@click.pass_obj
def command(
    session: Session, /, as_json: bool, emit: Path | None, trace: Path | None, force: bool, **asked: Any
) -> int:
    """Say what a training moves and holds: bytes of every collective, trials, memory, time on a link. Nothing is started."""
    if (trace is None) == (asked["model_name"] is None):
        raise UsageError(
            "say one of --model and --trace", hint="ccbed size --model mnist-mlp --batch 8192 --dataset 60000"
        )
    modules = {name: session.catalogue.algorithms[name].module for name in session.catalogue.algorithms}
    if trace is not None:
        return _trace(session, trace, asked, modules, _Emission(file=emit, force=force), as_json)
    found = size_request.answer(asked, modules)
    written = _Emission(file=emit, force=force)
    if emit:
        made = items.of_answer(found)
        written.check(items.trial(_name(emit), made, found.question.layout.gpus, size_view.notes(found)))
    if as_json:
        session.terminal.json(size_view.document(found))
    else:
        size_view.show(session.terminal, found)
    written.write(session, quiet=as_json)
    return 0


def _trace(
    session: Session, path: Path, asked: dict[str, Any], modules: dict[str, Any], written: _Emission, as_json: bool
) -> int:
    size_request.only_traced(asked)
    try:
        found = traces.replay(_files(path), size_request.chooser(modules, asked["algorithm"]), asked["gpus"])
    except ValueError as error:
        raise UsageError(*str(error).splitlines(), hint=_FORMS) from None
    if written.file:
        notes = [f"From the {found.form} {path}.", *(f"{note[:1].upper()}{note[1:]}." for note in found.notes)]
        written.check(items.trial(_name(written.file), found.items, found.ranks, notes))
    if as_json:
        session.terminal.json(size_view.replay_document(found))
    else:
        size_view.show_replay(session.terminal, found, path)
    written.write(session, quiet=as_json)
    return 0


def _files(path: Path) -> dict[str, bytes]:
    """The trace, or those of a folder: name -> content."""
    if not path.exists():
        raise UsageError(f"--trace {path}: no such file or folder", hint=_FORMS)
    found = (
        sorted(one for form in ("*.json", "*.json.gz", "*.et", "*.et.gz") for one in path.glob(form))
        if path.is_dir()
        else [path]
    )
    return {file.name: _content(file) for file in found}


def _content(file: Path) -> bytes:
    content = file.read_bytes()
    if file.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{file}: not a gzip file: {error}", hint=_FORMS) from None


def _name(file: Path) -> str:
    """The trial's name: the file's, as far as a name of a trial may have its letters."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in file.stem)
    return letters.strip("-")[:60] or "emulate"


@dataclass(kw_only=True)
class _Emission:
    """The trial's file, if one is asked for. It is checked before anything is told, and written after that."""

    file: Path | None
    force: bool
    text: str = ""

    def check(self, text: str) -> None:
        """Raises UsageError where another file is in the way, or none can be written."""
        self.text, file = text, self.file
        if file is None:
            return
        if not file.absolute().parent.is_dir():
            raise UsageError(f"--emit {file}: no such directory: {file.parent}", hint=f"mkdir -p {file.parent}")
        try:
            other = file.exists() and file.read_bytes() != text.encode()
        except OSError as error:
            raise self._failed(error) from None
        if other and not self.force:
            raise UsageError(f"--emit {file}: is there with another content", hint="--force, or another name")

    def write(self, session: Session, *, quiet: bool) -> None:
        """Nothing where none is asked for. Raises UsageError."""
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
