"""Judge a run again from its bundle; needs no bed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..model.errors import InfrastructureError
from ..model.events import RunEnd
from ..model.launch import Result
from ..run import judging
from ..store import bundle, paths, seal, signing
from .places import short_path
from .session import Session


def judge_again(
    session: Session, directory: Path, *, accept_changed: bool = False, keys: Sequence[Path] = ()
) -> Result:
    """Verify the seal, and the signatures of ``keys``, and judge the run. Raises TornBundleError, InfrastructureError."""
    verify(directory)
    if keys and (problems := signing.unsigned(directory, keys)):
        raise paths.TornBundleError(
            *problems, hint=f"without --bed-key it is judged: ccbed check {short_path(directory)}"
        )
    return judging.conclude(
        session.catalogue, directory, accept_changed=accept_changed, is_signed=bool(keys), read_only=True,
        redraw=False, on_stage=session.terminal.status,
    )  # fmt: skip


def verify(directory: Path) -> None:
    """Raises TornBundleError when the evidence does not match its seal, InfrastructureError when it has none."""
    if not bundle.is_sealed(directory):
        _unsealed(directory)
    problems = seal.verify_evidence(directory)
    if problems:
        hint = "changed evidence proves nothing: copy the bundle again from where it was made"
        raise paths.TornBundleError(*problems, hint=hint)


def _unsealed(directory: Path) -> NoReturn:
    """Raises InfrastructureError for a run that has not ended, TornBundleError for one whose seal is missing."""
    where = short_path(directory)
    if bundle.read_history(directory).last(RunEnd):
        hint = f"if it was interrupted while it sealed: ccbed resume {where}; else copy the bundle again from where it was made"
        raise paths.TornBundleError(f"{where}: not sealed: it has no {seal.MANIFEST}", hint=hint)
    hint = f"wait for it: ccbed watch {where}; or, if its orchestrator is gone: ccbed resume {where}"
    raise InfrastructureError(f"{where}: the run has not ended", hint=hint)
