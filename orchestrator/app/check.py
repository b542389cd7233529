"""Judge a run again from its bundle; needs no bed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from ..model.errors import InfrastructureError
from ..model.events import RunEnd
from ..model.frozen import dataclass
from ..model.launch import Result
from ..run import judging
from ..store import bundle, index, paths, seal, signing
from .places import short_path
from .requests import named_run, option, runs_directory
from .session import Session

BED_KEY = (
    "A key of the run's bed, beds/BED/keeper/events.key in ccbed's state directory (until `ccbed down`; `ccbed bundle verify RUN`"
    " names it): verify that its host agent signed its events and the list of all evidence."
)


def bed_keys() -> Any:
    """The field for the keys of a bed."""
    return option((), BED_KEY, metavar="FILE", flags=("--bed-key",))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """The request of `ccbed check`."""

    run: str = named_run("latest")
    runs_dir: Path = runs_directory()
    accept_changed: bool = option(
        False, "Use a check of --plugins even if its file has changed since the run was planned."
    )
    keys: tuple[Path, ...] = bed_keys()


def run(session: Session, request: CheckRequest) -> Result:
    """Verify the seal and the signatures of a run, and judge it. Raises UsageError, TornBundleError, InfrastructureError."""
    directory = index.resolve(request.run, request.runs_dir)
    verify(directory)
    if request.keys and (problems := signing.unsigned(directory, request.keys)):
        raise paths.TornBundleError(
            *problems, hint=f"without --bed-key it is judged: ccbed check {short_path(directory)}"
        )
    return judging.conclude(
        session.catalogue, directory, accept_changed=request.accept_changed, is_signed=bool(request.keys), read_only=True,
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
        hint = f"if it was interrupted while it was closed: ccbed resume {where}; else copy the bundle again from where it was made"
        raise paths.TornBundleError(f"{where}: not closed: it has no {seal.MANIFEST}", hint=hint)
    hint = f"wait for it: ccbed watch {where}; or, if its orchestrator is gone: ccbed resume {where}"
    raise InfrastructureError(f"{where}: the run has not ended", hint=hint)
