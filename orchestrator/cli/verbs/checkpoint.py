"""Check the files of training checkpoints without loading them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from ...model.errors import EXIT_FINDING, EXIT_PASS, EXIT_UNKNOWN
from ...store.checkpoints import audit as audits
from ..inputs import options
from ..inputs.session import Session

_MOST = 8


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "CCBED"})
def command() -> None:
    """Check the files of training checkpoints without loading them."""


@command.command(context_settings={"auto_envvar_prefix": "CCBED"}, short_help="Say which checkpoints of DIR are whole.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--world", type=click.IntRange(min=1), help="Ranks that would load it: files of each rank must be there for all."
)
@click.option("--quick", is_flag=True, help="Compare sizes and structure only: do not read every byte.")
@options.as_json
@click.pass_obj
def check(session: Session, directory: Path, world: int | None, quick: bool, as_json: bool) -> int:
    """Say which checkpoints of DIR are whole: torch.save files, safetensors, torch.distributed.checkpoint, and directories of
    Hugging Face, DeepSpeed and Lightning.

    Torn files, missing shards, parts of different steps, a "latest" that names what is not whole. Nothing is unpickled, nothing is
    changed. Exit code 0: all are whole; 1: one is damaged, or the newest does not fit the world; 2: one is unknown.
    """
    audit = audits.audit(directory, world=world, whole=not quick)
    by_outcome: dict[str, list[audits.Checkpoint]] = {name: [] for name in ("damaged", "misfit", "unknown", "whole")}
    for checkpoint in reversed(audit.checkpoints):
        by_outcome[checkpoint.outcome].append(checkpoint)
    text, code = _conclusion(audit, by_outcome)
    if as_json:
        session.terminal.json(_document(audit, code))
        return code
    shown = [checkpoint for group in by_outcome.values() for checkpoint in group][:_MOST]
    for checkpoint in audit.checkpoints:
        if checkpoint in shown:
            texts = (*checkpoint.problems, *filter(None, [checkpoint.misfit]), *checkpoint.doubts)
            session.terminal.line(_plain(_line(checkpoint)))
            session.terminal.lines(_plain(f"    {text}") for text in texts[:4])
    rest = Counter(checkpoint.outcome for checkpoint in audit.checkpoints if checkpoint not in shown)
    session.terminal.lines(f"{count} more are {outcome}" for outcome, count in sorted(rest.items()))
    session.terminal.lines(map(_plain, audit.pointers))
    if audit.unfinished:
        left = f"left over from saves that did not end, and not read: {', '.join(audit.unfinished[:4])}"
        session.terminal.line(_plain(left))
    session.terminal.lines(_plain(f"not read: {text}") for text in audit.unread[:_MOST])
    session.terminal.line(_plain(text))
    return code


def _plain(text: str) -> str:
    """Return a text with what no terminal prints, such as the line break in a file's name, as an escape."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _line(checkpoint: audits.Checkpoint) -> str:
    step = f", step {checkpoint.step:g}" if checkpoint.step is not None else ""
    size = f"{len(checkpoint.files)} files, {checkpoint.size / 1024**2:.1f} MiB"
    return f"{checkpoint.outcome:8} {checkpoint.name}: {checkpoint.form or 'torch.save'}{step}, {size}"


def _conclusion(audit: audits.Audit, by_outcome: Mapping[str, Sequence[audits.Checkpoint]]) -> tuple[str, int]:
    """Return the last line, and the exit code. Older checkpoints may be of another world than the newest."""
    count, damaged, unknown = len(audit.checkpoints), len(by_outcome["damaged"]), len(by_outcome["unknown"])
    newest = audit.newest_whole
    loaded = f"the newest whole checkpoint is {newest.name}" if newest else "no checkpoint is whole"
    if damaged or audit.pointers:
        what = f"{damaged} of {count} checkpoints damaged" if damaged else "the newest is not found"
        return f"FAIL  {what}; {loaded}", EXIT_FINDING
    if audit.newest.misfit:
        return f"FAIL  {audit.newest.name}: {audit.newest.misfit}", EXIT_FINDING
    if unknown or audit.unread:
        what = f"{unknown} of {count} checkpoints" if unknown else f"{len(audit.unread)} directories were not read"
        return f"UNKNOWN  {what}; {loaded}", EXIT_UNKNOWN
    whole = len(by_outcome["whole"])
    what = f"{whole} checkpoints are whole; {loaded}" if whole > 1 else f"{audit.newest.name} is whole"
    return f"PASS  {what}", EXIT_PASS


def _document(audit: audits.Audit, code: int) -> object:
    return {
        "outcome": {EXIT_PASS: "pass", EXIT_FINDING: "fail", EXIT_UNKNOWN: "unknown"}[code],
        "newest_whole": audit.newest_whole.name if audit.newest_whole else None,
        "pointers": list(audit.pointers),
        "unfinished": list(audit.unfinished),
        "unread": list(audit.unread),
        "checkpoints": [_entry(checkpoint) for checkpoint in audit.checkpoints],
    }


def _entry(checkpoint: audits.Checkpoint) -> object:
    folder = checkpoint.place if checkpoint.place.is_dir() else checkpoint.place.parent
    return {
        "name": checkpoint.name,
        "form": checkpoint.form or "torch.save",
        "outcome": checkpoint.outcome,
        "step": checkpoint.step,
        "updates": checkpoint.updates,
        "size_bytes": checkpoint.size,
        "misfit": checkpoint.misfit,
        "problems": checkpoint.problems,
        "doubts": checkpoint.doubts,
        "files": [os.path.relpath(part.path, folder) for part in checkpoint.files],
    }
