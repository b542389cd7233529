"""Check what each host of an inventory lacks; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.bed import selection
from ...model import codec
from ...model.bed import BedSpec
from ...model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, UsageError
from ...model.frozen import dataclass
from ...model.requirements import Requirement
from .. import beds
from ..places import short_path
from ..requests import PlanRequest
from ..session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A bed, and what was found on each host."""

    bed: BedSpec
    findings: Mapping[str, tuple[Requirement, ...]]

    @property
    def lacking(self) -> list[str]:
        """The hosts on which something is lacking."""
        return [host for host, listed in self.findings.items() if any(item.outcome == "fail" for item in listed)]

    @property
    def code(self) -> int:
        return EXIT_INFRASTRUCTURE if self.lacking else EXIT_PASS

    @property
    def grouped(self) -> list[tuple[Requirement, list[str]]]:
        """The findings that are not ok, with their hosts: what lacks comes first."""
        grouped: dict[Requirement, list[str]] = {}
        for host, listed in self.findings.items():
            for finding in listed:
                if finding.outcome != "ok":
                    grouped.setdefault(finding, []).append(host)
        return sorted(grouped.items(), key=lambda item: item[0].outcome)

    @property
    def document(self) -> object:
        """All of it, for programs."""
        bed = self.bed
        return {"bed": bed.name, "provider": bed.provider, "lacking": self.lacking, "hosts": codec.plain(self.findings)}


def run(session: Session, request: PlanRequest) -> Examined:
    """Examine the hosts of an inventory. Raises UsageError, InfrastructureError."""
    from ...prepare import doctor_survey

    bed = beds.wanted(session, request.inventory)
    if bed.provider == "slurm":
        raise UsageError(
            f"bed {bed.name}: doctor inspects hosts by SSH, and Slurm chooses the nodes when the job starts",
            hint=f"`ccbed plan {short_path(bed.inventory)}` shows the job; `ccbed up` checks its nodes",
        )
    limit = request.limit
    hosts = beds.limited_hosts(session, bed, limit) if limit else beds.acting_hosts(session, bed)
    if not limit and not session.is_json:
        beds.mention_drains(session, bed)
    part = selection.on_hosts(bed, hosts)
    session.terminal.status(f"  checking {len(part.hosts) or 1} hosts …")
    return Examined(bed=bed, findings=doctor_survey.examine(part))
