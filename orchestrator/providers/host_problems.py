"""Problems of hosts, reported for all hosts at once: unreachable, not prepared, or with a bed of another owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..model.bed import BedSpec, BedStatus, HostSpec
from ..model.errors import InfrastructureError, OwnedError, UnpreparedError, UnreachedError, UsageError
from ..model.requirements import ENGINE_SOCKET
from ..node.files import label
from . import owners
from .docker.engines import EngineProblem

Problems = Mapping[str, Exception]


class MissingImageError(EngineProblem):
    """A host lacks an image or file that preparation provides."""


def refuse(bed: BedSpec, problems: Problems) -> None:
    """Raises InfrastructureError if there are problems, UnpreparedError if preparation helps."""
    unprepared = [host for host, problem in problems.items() if isinstance(problem, MissingImageError)]
    if unprepared:
        prepare_command = f"ccbed up --prepare {bed.inventory}"
        raise UnpreparedError(*lines(bed, problems), hosts=unprepared, hint=prepare_command)
    if problems:
        raise InfrastructureError(*lines(bed, problems), hint=_continue_hint(bed))


def unreached(bed: BedSpec, problems: Problems, status: BedStatus) -> UnreachedError:
    """The error, with the status of the hosts that respond."""
    reached = [host for host, problem in problems.items() if _has_responded(problem)]
    return UnreachedError(
        *lines(bed, problems), status=status, hosts=texts(problems), reached=reached, hint=_continue_hint(bed)
    )


def _has_responded(problem: Exception) -> bool:
    """Return whether the host responded: ``reached`` of a HostError; any other error comes from the host, except a timeout."""
    return bool(getattr(problem, "reached", not isinstance(problem, TimeoutError)))


def lines(bed: BedSpec, problems: Problems) -> list[str]:
    return [f"host {host.name}: {problems[host.name]}" for host in bed.hosts if host.name in problems]


def texts(problems: Problems) -> dict[str, str]:
    return {host: str(problem) for host, problem in problems.items()}


def refuse_foreign(bed: BedSpec, own_id: str, statuses: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises OwnedError with a line for each host on which another orchestrator has a bed of this name."""
    other_owners = {host: _other_owner(host_status, owners.text(bed), own_id) for host, host_status in statuses.items()}
    problems = [
        f"host {host}: bed {bed.name} exists already and belongs to {owner}"
        for host, owner in other_owners.items()
        if owner
    ]
    if problems:
        hint = f"end it there, or choose another ccbed_bed; to end it by force: ccbed down {bed.inventory} --force"
        raise OwnedError(*problems, hint=hint)


def refuse_duplicates(bed: BedSpec, status: BedStatus) -> None:
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
            *problems, hint="set ansible_host of each to its own address, or remove one from the inventory"
        )


def _other_owner(host_status: Mapping[str, Any], own: str, own_id: str) -> str:
    """The other owner of a bed, or empty: by the label of its keeper, alive or not, else by the labels of its containers."""
    keeper = host_status["keeper"]
    if keeper.get("owner") or keeper.get("owner_id"):
        return str(keeper.get("owner") or keeper["owner_id"]) if label.is_foreign(keeper, own, own_id) else ""
    return ", ".join(sorted({*host_status.get("owners", ())} - {own}))


def missing_images(host: HostSpec, images: Sequence[str]) -> EngineProblem:
    """The error for missing images: preparation copies them to remote hosts."""
    listed = ", ".join(images)
    if host.connection == "local":
        own = "" if host.engine == ENGINE_SOCKET else f"DOCKER_HOST=unix://{host.engine} "
        return EngineProblem(f"image {listed} is missing: {own}ccbed image build, or {own}docker pull {images[0]}")
    return MissingImageError(f"image {listed} is missing")


def _continue_hint(bed: BedSpec) -> str:
    return f"to continue: ccbed up {bed.inventory}"
