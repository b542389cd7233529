"""What goes wrong on hosts, told for all of them at once: who is not reached, lacks preparation, or has another's bed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..model.bed import BedSpec, BedStatus, HostSpec
from ..model.errors import InfrastructureError, OwnedError, UnpreparedError, UnreachedError, UsageError
from ..node.files import label
from . import owners
from .docker.engines import EngineProblem

Problems = Mapping[str, Exception]


class AbsentError(EngineProblem):
    """What preparation brings to a host is not there."""


def refuse(bed: BedSpec, problems: Problems) -> None:
    """Raises InfrastructureError where there are any: UnpreparedError where preparation helps."""
    unprepared = [host for host, problem in problems.items() if isinstance(problem, AbsentError)]
    if unprepared:
        prepare_command = f"ccbed up --prepare {bed.inventory}"
        raise UnpreparedError(*lines(bed, problems), hosts=unprepared, hint=prepare_command)
    if problems:
        raise InfrastructureError(*lines(bed, problems), hint=_again(bed))


def unreached(bed: BedSpec, problems: Problems, status: BedStatus) -> UnreachedError:
    """With what the other hosts say."""
    reached = [host for host, problem in problems.items() if _answered(problem)]
    return UnreachedError(
        *lines(bed, problems), status=status, hosts=texts(problems), reached=reached, hint=_again(bed)
    )


def _answered(problem: Exception) -> bool:
    """Is the host there? ``reached`` of a HostError; whatever else it is, the host itself said it, unless it took too long."""
    return bool(getattr(problem, "reached", not isinstance(problem, TimeoutError)))


def lines(bed: BedSpec, problems: Problems) -> list[str]:
    return [f"host {host.name}: {problems[host.name]}" for host in bed.hosts if host.name in problems]


def texts(problems: Problems) -> dict[str, str]:
    return {host: str(problem) for host, problem in problems.items()}


def refuse_foreign(bed: BedSpec, own_id: str, statuses: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises OwnedError with a line for each host on which another orchestrator has a bed of this name."""
    theirs = {host: _theirs(host_status, owners.text(bed), own_id) for host, host_status in statuses.items()}
    problems = [
        f"host {host}: bed {bed.name} is there already and belongs to {whose}"
        for host, whose in theirs.items()
        if whose
    ]
    if problems:
        ways = (
            f"end it there, or choose another ccbed_bed; or take it away from them: ccbed down {bed.inventory} --force"
        )
        raise OwnedError(*problems, hint=ways)


def refuse_doubled(bed: BedSpec, status: BedStatus) -> None:
    """Raises UsageError with a line for each host that is another one of the bed, under another address or name."""
    machines: dict[str, str] = {}
    problems = []
    for host in (host for host in status.hosts if host.directory_id):
        if host.directory_id in machines:
            problems.append(
                f"host {host.name}: is the same machine as {machines[host.directory_id]}, which has {bed.hostdir} already"
            )
        machines.setdefault(host.directory_id, host.name)
    if problems:
        raise UsageError(
            *problems, hint="set ansible_host of each to its own address, or take one out of the inventory"
        )


def _theirs(host_status: Mapping[str, Any], own: str, own_id: str) -> str:
    """Whose it is if not ours: by the label of its keeper, alive or not; where there is none, by those of its containers."""
    keeper = host_status["keeper"]
    if keeper.get("owner") or keeper.get("owner_id"):
        return str(keeper.get("owner") or keeper["owner_id"]) if label.is_foreign(keeper, own, own_id) else ""
    return ", ".join(sorted({*host_status.get("owners", ())} - {own}))


def absent(host: HostSpec, images: Sequence[str]) -> EngineProblem:
    """Images that are not there: those of a host elsewhere are brought by preparation."""
    listed = ", ".join(images)
    if host.connection == "local":
        return EngineProblem(f"image {listed} is not there: ccbed image build, or docker pull {images[0]}")
    return AbsentError(f"image {listed} is not there any more")


def _again(bed: BedSpec) -> str:
    return f"to continue: ccbed up {bed.inventory}"
