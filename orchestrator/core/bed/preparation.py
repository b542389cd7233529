"""Which hosts have to be prepared, and why: the parts that preparation depends on, then and now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...model.bed import BedSpec, HostSpec

#: How each part is called where it is the reason.
_REASONS = {
    "playbooks": "ccbed's playbooks have changed",
    "image": "another image",
    "image_id": "the image has changed",
    "hostdir": "another directory",
    "engine": "another engine",
    "gpus": "other GPUs",
    "rdma": "rdma has changed",
    "reached": "another address, port or user",
    "hosts": "other hosts to let through its firewall",
}


_GONE = "what preparation left there is gone: it was installed anew, or is another machine"
_OTHERWISE = "it was prepared otherwise since"


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A host to prepare, and why."""

    host: str
    reason: str


def parts(bed: BedSpec, playbooks: str, image_ids: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Per host behind SSH what its preparation depends on. ``playbooks``: their hash; ``image_ids``: those of this machine."""
    return {host.name: _parts(bed, host, playbooks, image_ids) for host in bed.hosts if host.connection == "ssh"}


def fingerprint(parts: Mapping[str, Any]) -> str:
    """One name for all of it; the other hosts are left out, so that a new one does not change this."""
    kept = {key: value for key, value in parts.items() if key != "hosts"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def due(wanted: Mapping[str, Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]]) -> tuple[Due, ...]:
    """``known``: per host the ``parts`` and the ``firewall`` of its last preparation."""
    found = []
    for host, now in wanted.items():
        if host not in known:
            found.append(Due(host=host, reason="never prepared"))
            continue
        before = known[host].get("parts", {})
        reasons = [text for part, text in _REASONS.items() if _differs(part, now, before, known[host])]
        if reasons:
            found.append(Due(host=host, reason=", ".join(reasons)))
    return tuple(found)


def lost(known: Mapping[str, Mapping[str, Any]], stamps: Mapping[str, str]) -> tuple[Due, ...]:
    """Hosts that are not as their last preparation left them. ``stamps``: what those that were looked at say themselves."""
    expected = {host: fingerprint(found["parts"]) for host, found in known.items() if "parts" in found}
    return tuple(
        Due(host=host, reason=_OTHERWISE if stamps[host] else _GONE)
        for host, wanted in expected.items()
        if host in stamps and stamps[host] != wanted
    )


def images(bed: BedSpec) -> tuple[str, ...]:
    """The images that the nodes of the bed run."""
    return tuple(dict.fromkeys(node.container.image for node in bed.nodes if node.container))


def addresses(bed: BedSpec) -> tuple[str, ...]:
    """Where the bed's hosts are reached by each other."""
    found = [node.address for node in bed.nodes] + [host.address for host in bed.hosts]
    return tuple(sorted({address for address in found if address}))


def _differs(part: str, now: Mapping[str, Any], before: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    if part == "hosts" and not known.get("firewall"):
        return False
    if part == "image_id" and not now.get(part):
        return False  # this machine does not have it: what the host has is right
    return bool(now.get(part) != before.get(part))


def _parts(bed: BedSpec, host: HostSpec, playbooks: str, image_ids: Mapping[str, str]) -> dict[str, Any]:
    containers = [node.container for node in bed.nodes if node.host == host.name and node.container]
    image = containers[0].image if containers else ""
    return {
        "playbooks": playbooks,
        "image": image,
        "image_id": image_ids.get(image, ""),
        "hostdir": bed.hostdir,
        "engine": host.engine,
        "gpus": sorted({"cdi" if "=" in device else "index" for one in containers for device in one.gpu_devices}),
        "rdma": any(one.rdma for one in containers),
        "reached": [host.address, host.port, host.user],
        "hosts": list(addresses(bed)),
    }
