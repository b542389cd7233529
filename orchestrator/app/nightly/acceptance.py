"""Probe a new cluster once, every node and every link, and write its acceptance certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...model.errors import UsageError
from ...model.frozen import dataclass
from ..requests import INCLUDE_QUARANTINED, BedRef, argument, baselines_directory, bed_name, option, runs_directory
from ..session import Session
from .request import NightRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRequest:
    """The request of `ccbed accept`: of a bed that is up, or of an inventory."""

    inventory: Path | None = argument(None, completes="inventories")
    bed: str | None = bed_name()
    suite: str = option("acceptance", "Another suite of trials than the built-in one.", metavar="SUITE|FILE.yml")
    include_quarantined: bool = option(False, INCLUDE_QUARANTINED)
    baselines: Path = baselines_directory()
    runs_dir: Path = runs_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A certificate, and the file that has it as text."""

    directory: Path
    summary: Path
    certificate: dict[str, Any]

    @property
    def code(self) -> int:
        return int(self.certificate["exit"])

    @property
    def document(self) -> object:
        return {**self.certificate, "directory": str(self.directory)}


def run(session: Session, request: AcceptRequest) -> Acceptance:
    """Run the suite as a night that is not recorded, and certify the bed. Raises UsageError, InfrastructureError, Interrupted."""
    from ...nightly.judging import certificate
    from . import nights

    if request.inventory and request.bed:
        raise UsageError("INVENTORY and --bed exclude each other; give one of them")
    night = NightRequest(
        suite=request.suite, bed=BedRef(bed=request.bed, inventory=request.inventory), baselines=request.baselines,
        include_quarantined=request.include_quarantined, runs_dir=request.runs_dir,
    )  # fmt: skip
    directory = nights.begin(session, night).directory
    return Acceptance(
        directory=directory, certificate=certificate.write(directory), summary=directory / certificate.SUMMARY
    )
