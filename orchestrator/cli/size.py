"""Say what a training will move and hold before it runs: bytes, trials, memory, time on a link."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import click

from ..core.sizing import items, traces
from ..model.errors import UsageError
from . import options, sizeoptions, sizeview, sizing
from .session import Session


@options.command()
@sizeoptions.model
@sizeoptions.spread
@sizeoptions.bounds
@options.as_json
@click.pass_obj
def command(session: Session, /, as_json: bool, emit: Path | None, trace: Path | None, **asked: Any) -> int:
    """Say what a training moves and holds: bytes of every collective, trials, memory, time on a link. Nothing is started."""
    if (trace is None) == (asked["model_name"] is None):
        raise UsageError(
            "say one of --model and --trace", hint="ccbed size --model mnist-mlp --batch 8192 --dataset 60000"
        )
    modules = {name: session.catalogue.algorithms[name].module for name in session.catalogue.algorithms}
    if trace is not None:
        return _trace(session, trace, asked, modules, emit, as_json)
    found = sizing.answer(asked, modules)
    if as_json:
        session.terminal.json(sizeview.document(found))
    else:
        sizeview.show(session.terminal, found)
    if emit:
        made = items.of_answer(found)
        notes = sizeview.notes(found)
        _write(session, emit, items.trial(_name(emit), made, found.question.layout.gpus, notes), quiet=as_json)
    return 0


def _trace(
    session: Session, path: Path, asked: dict[str, Any], modules: dict[str, Any], emit: Path | None, as_json: bool
) -> int:
    sizing.only_traced(asked)
    try:
        found = traces.replay(_files(path), sizing.chooser(modules, asked["algorithm"]), asked["gpus"])
    except ValueError as error:
        raise UsageError(*str(error).splitlines()) from None
    if as_json:
        session.terminal.json(sizeview.replay_document(found))
    else:
        sizeview.show_replay(session.terminal, found, path)
    if emit:
        notes = [f"From the {found.form} {path}.", *(f"{note[:1].upper()}{note[1:]}." for note in found.notes)]
        _write(session, emit, items.trial(_name(emit), found.items, found.ranks, notes), quiet=as_json)
    return 0


def _files(path: Path) -> dict[str, bytes]:
    """The trace, or those of a folder: name -> content."""
    if not path.exists():
        raise UsageError(f"--trace {path}: no such file or folder")
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
        raise UsageError(f"{file}: not a gzip file: {error}") from None


def _name(file: Path) -> str:
    """The trial's name: the file's, as far as a name of a trial may have its letters."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in file.stem)
    return letters.strip("-")[:60] or "emulate"


def _write(session: Session, file: Path, text: str, *, quiet: bool) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise UsageError(f"--emit {file}: {error.strerror}") from None
    if not quiet:
        session.terminal.line(f"written   {file}      to replay it: ccbed run {file}")
