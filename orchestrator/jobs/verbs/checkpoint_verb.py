"""Check the files of training checkpoints without loading them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...cli.inputs import options
from ...cli.inputs.terminal_session import Session
from ..app import checkpoint_audit
from ..app.checkpoint_audit import Audited, CheckpointRequest

_MOST = 8


@options.group()
def command() -> None:
    """Check the files of training checkpoints without loading them."""


@options.shows(
    CheckpointRequest, checkpoint_audit.check, below=command, short_help="Say which checkpoints of DIR are whole."
)
def check(session: Session, audited: Audited) -> None:
    """Say which checkpoints of DIR are whole: torch.save files, safetensors, torch.distributed.checkpoint, and directories of
    Hugging Face, DeepSpeed and Lightning.

    Torn files, missing shards, parts of different steps, a "latest" that names what is not whole. Nothing is unpickled, nothing is
    changed. Exit code 0: all are whole; 1: one is damaged, or the newest does not fit the world; 2: one is unknown.
    """
    session.terminal.lines(map(_printable, _lines(audited)))


def _lines(audited: Audited) -> Iterator[str]:
    audit = audited.audit
    by_outcome = [made for outcome in ("damaged", "misfit", "unknown", "whole") for made in audited.of(outcome)]
    shown = by_outcome[:_MOST]
    for checkpoint in audit.checkpoints:
        if checkpoint in shown:
            step = f", step {checkpoint.step:g}" if checkpoint.step is not None else ""
            size = f"{len(checkpoint.files)} files, {checkpoint.size / 1024**2:.1f} MiB"
            yield f"{checkpoint.outcome:8} {checkpoint.name}: {checkpoint.form or 'torch.save'}{step}, {size}"
            texts = (*checkpoint.problems, *filter(None, [checkpoint.misfit]), *checkpoint.doubts)
            yield from (f"    {text}" for text in texts[:4])
    rest = Counter(checkpoint.outcome for checkpoint in by_outcome[_MOST:])
    yield from (f"{count} more are {outcome}" for outcome, count in sorted(rest.items()))
    yield from audit.pointers
    if audit.unfinished:
        yield f"left over from saves that did not end, and not read: {', '.join(audit.unfinished[:4])}"
    yield from (f"not read: {text}" for text in audit.unread[:_MOST])
    yield audited.text


def _printable(text: str) -> str:
    """Return a text with what no terminal prints, such as the line break in a file's name, as an escape."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
