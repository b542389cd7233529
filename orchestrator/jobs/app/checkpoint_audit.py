"""Say which checkpoints of a directory are whole, without loading them."""

from __future__ import annotations

import os
from pathlib import Path

from ...app.requests import argument, option
from ...app.session import Session
from ...model.errors import EXIT_FINDING, EXIT_PASS, EXIT_UNKNOWN
from ...model.frozen import dataclass
from ..checkpoints import audit as audits

_WORDS = {EXIT_PASS: "pass", EXIT_FINDING: "fail", EXIT_UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """The request of `ccbed checkpoint check`."""

    directory: Path = argument(metavar="DIR")
    world: int | None = option(None, "Ranks that would load it: files of each rank must be there for all.", least=1)
    quick: bool = option(False, "Compare sizes and structure only: do not read every byte.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The checkpoints, the sentence on all of them, and the exit code."""

    audit: audits.Audit
    text: str
    code: int

    def of(self, outcome: str) -> list[audits.Checkpoint]:
        """Those with this outcome, the newest first."""
        return [checkpoint for checkpoint in reversed(self.audit.checkpoints) if checkpoint.outcome == outcome]

    @property
    def document(self) -> object:
        """All of it, for programs."""
        newest = self.audit.newest_whole
        return {
            "outcome": _WORDS[self.code],
            "newest_whole": newest.name if newest else None,
            "pointers": list(self.audit.pointers),
            "unfinished": list(self.audit.unfinished),
            "unread": list(self.audit.unread),
            "checkpoints": [_entry(checkpoint) for checkpoint in self.audit.checkpoints],
        }


def check(_session: Session, request: CheckpointRequest) -> Audited:
    """Read every checkpoint of a directory, and conclude. Raises UsageError where there is none, or more than is read."""
    audit = audits.audit(request.directory, world=request.world, whole=not request.quick)
    text, code = _conclusion(audit)
    return Audited(audit=audit, text=text, code=code)


def _conclusion(audit: audits.Audit) -> tuple[str, int]:
    """Return the last line, and the exit code. Older checkpoints may be of another world than the newest."""
    outcomes = [checkpoint.outcome for checkpoint in audit.checkpoints]
    count, damaged, unknown = len(outcomes), outcomes.count("damaged"), outcomes.count("unknown")
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
    whole = outcomes.count("whole")
    what = f"{whole} checkpoints are whole; {loaded}" if whole > 1 else f"{audit.newest.name} is whole"
    return f"PASS  {what}", EXIT_PASS


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
