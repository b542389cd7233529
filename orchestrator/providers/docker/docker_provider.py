"""Nodes as containers on the engines of one or several hosts; on each host a keeper starts them and sees them exit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from ...core.bed import container_requests, engine_kind
from ...model import container as names
from ...model.bed import BedSpec, HostSpec, NodeSpec
from ...model.event import Command
from ...model.events import NodeApply
from ...node.keeper.keeper_start import HUGE_PAGES
from ...node.oslayer import processes
from .. import host_problems, owners, sites
from ..event_reader import CAPABILITIES
from ..hosts_provider import HostsProvider
from ..sites import Site
from . import engines


class DockerProvider(HostsProvider):
    """See HostsProvider. ``engine``: makes the client of a host's container engine."""

    def __init__(
        self,
        state: Path,
        connect: Callable[[BedSpec, HostSpec, bool], Site] = sites.connect,
        engine: Callable[[HostSpec, Callable[..., Any]], engines.Engine] = engines.Engine,
    ) -> None:
        super().__init__(state, connect)
        self._engine = engine
        self._requests: dict[str, Mapping[str, Any]] = {}
        self._lacks: dict[str, frozenset[str]] = {}

    def capabilities(self, host: str) -> frozenset[str]:
        """Return the capabilities that the host's engine has: its containers name what it lacks, since they were observed."""
        return CAPABILITIES - self._lacks.get(host, frozenset())

    def _host_status(self, bed: BedSpec, host: HostSpec, deadline_s: float = 10.0, *, memory: bool) -> Any:
        status = super()._host_status(bed, host, deadline_s, memory=memory)
        self._lacks[host.name] = frozenset(status.get("lacks", ()))
        specs = {node.name: node for node in bed.all_nodes if node.host == host.name}
        for row in status["nodes"]:
            if (before := row.pop("request", None)) and row["name"] in specs:
                row["changed"] = _changes(bed, specs[row["name"]], before)
        return status

    def perform(self, command: Command) -> None:
        """node.apply carries the create request of its container."""
        request = self._requests.get(str(command.node))
        if command.kind is NodeApply and command.data.hash is not None and request:
            command = replace(command, value={**command.value, "request": request})
        super().perform(command)

    def _engine_socket(self, host: HostSpec) -> str:
        return host.engine

    def _prepare_host(self, bed: BedSpec, host: HostSpec, archive_path: str) -> None:
        """Prepare network and images, and the create request of each container."""
        nodes = [node for node in bed.all_nodes if node.host == host.name]
        site = self._site(bed, host)
        wanted = [node.container for node in nodes if node.container]
        missing = partial(host_problems.missing_images, host)
        ready = engines.ready(self._engine(host, site.call), bed, wanted, lambda: site.call("routes"), missing)
        owner = self._make_directories(bed, host)
        about: dict[str, Any] = {"archive": archive_path, "owner": (owner["uid"], owner["gid"]), "ready": ready}
        self._requests.update({node.name: _request(bed, node, **about) for node in nodes})

    def _end_host(self, bed: BedSpec, host: HostSpec) -> None:
        if bed.network == "private":
            self._engine(host, self._site(bed, host).call).remove_network(bed)

    def _keeper(self, bed: BedSpec, host: HostSpec) -> dict[str, Any]:
        return {**super()._keeper(bed, host), "python": _python(host)}


def _request(
    bed: BedSpec, node: NodeSpec, archive: str, owner: tuple[int, int], ready: engines.Ready
) -> Mapping[str, Any]:
    image = ready.images.get(node.container.image, "") if node.container else ""
    return container_requests.request(
        bed,
        node,
        archive=archive,
        owner=owner,
        addresses=ready.addresses,
        tag=processes.bed_tag(bed.name, bed.hostdir),
        env={**HUGE_PAGES, names.IMAGE_VARIABLE: image},
        owner_label=owners.text(bed),
        engine=ready.engine,
    )


def _changes(bed: BedSpec, node: NodeSpec, before: container_requests.Body) -> tuple[str, ...]:
    """Return how the container's request differs from what it would be now, with all that only its host knows. Raises ValueError."""
    uid, _, gid = str(before["User"]).partition(":")
    endpoints = before.get("NetworkingConfig", {}).get("EndpointsConfig", {}).values()
    own = [IPv4Address(endpoint["IPAMConfig"]["IPv4Address"]) for endpoint in endpoints]
    addresses = engines.addresses(bed, *(address - engines.FIRST - int(node.name[1:]) for address in own))
    ready = engines.Ready(engine=engine_kind.Engine(version=""), images={}, addresses=addresses)
    after = _request(bed, node, before["Entrypoint"][1], (int(uid), int(gid or uid)), ready)
    return container_requests.changes(before, after)


def _python(host: HostSpec) -> str:
    """The interpreter of a host; on this machine its own, unless the inventory names another."""
    return sys.executable if host.connection == "local" and host.python == "python3" else host.python
