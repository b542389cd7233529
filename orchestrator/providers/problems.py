"""What goes wrong on hosts, told for all of them at once: who is not reached, lacks preparation, or has another's bed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..agent import label
from ..model.bed import BedSpec, BedStatus, HostSpec
from ..model.errors import InfrastructureError, OwnedError, UnpreparedError, UnreachedError
from . import owners
from .engines import EngineProblem

Problems = Mapping[str, Exception]


class AbsentError(EngineProblem):
    """What preparation brings to a host is not there."""


def refuse(bed: BedSpec, problems: Problems) -> None:
    """Raises InfrastructureError where there are any: UnpreparedError where preparation helps."""
    unprepared = [host for host, problem in problems.items() if isinstance(problem, AbsentError)]
    if unprepared:
        again = f"ccbed up --prepare {bed.inventory}"
        raise UnpreparedError(*lines(bed, problems), hosts=unprepared, hint=again)
    if problems:
        raise InfrastructureError(*lines(bed, problems), hint=_again(bed))


def unreached(bed: BedSpec, problems: Problems, status: BedStatus) -> UnreachedError:
    """With what the other hosts say."""
    return UnreachedError(*lines(bed, problems), status=status, hosts=texts(problems), hint=_again(bed))


def lines(bed: BedSpec, problems: Problems) -> list[str]:
    return [f"host {host.name}: {problems[host.name]}" for host in bed.hosts if host.name in problems]


def texts(problems: Problems) -> dict[str, str]:
    return {host: str(problem) for host, problem in problems.items()}


def refuse_foreign(bed: BedSpec, own_id: str, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises OwnedError with a line for each host on which another orchestrator has a bed of this name."""
    own = owners.text(bed)
    keepers = {host: look["keeper"] for host, look in looks.items() if look["keeper"]["alive"]}
    others = {host: str(keeper.get("owner")) for host, keeper in keepers.items() if label.foreign(keeper, own, own_id)}
    if others:
        told = [f"host {host}: bed {bed.name} is up there, and is {theirs}'s" for host, theirs in others.items()]
        ways = (
            f"end it there, or choose another ccbed_bed; or take it away from them: ccbed down {bed.inventory} --force"
        )
        raise OwnedError(*told, hint=ways)


def absent(host: HostSpec, images: Sequence[str]) -> EngineProblem:
    """Images that are not there: those of a host elsewhere are brought by preparation."""
    listed = ", ".join(images)
    if host.connection == "local":
        return EngineProblem(f"image {listed} is not there: ccbed image build, or docker pull {images[0]}")
    return AbsentError(f"image {listed} is not there any more")


def _again(bed: BedSpec) -> str:
    return f"to go on: ccbed up {bed.inventory}"
