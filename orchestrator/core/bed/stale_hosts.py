"""Finds the hosts that require preparation, and why: compares the inputs of preparation with those of the last time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ...model.bed import BedSpec, HostSpec
from ...model.frozen import dataclass

#: Part -> the text that names its change as the reason.
_REASONS = {
    "playbooks": "ccbed's playbooks have changed",
    "image": "another image",
    "image_id": "the image has changed",
    "hostdir": "another directory",
    "engine": "another engine",
    "gpus": "other GPUs",
    "rdma": "rdma has changed",
    "reached": "another address, port or user",
    "hosts": "other hosts to allow in its firewall",
}
_STAMP_MISSING = "the stamp of its preparation is missing: it was reinstalled, or it is another machine"
_STAMP_DIFFERS = "it was prepared differently since"


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A host to prepare, and why."""

    host: str
    reason: str


def parts(bed: BedSpec, playbooks: str, image_ids: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Host behind SSH -> the inputs of its preparation. ``playbooks``: their hash; ``image_ids``: on the controller."""
    return {host.name: _parts(bed, host, playbooks, image_ids) for host in bed.hosts if host.connection == "ssh"}


def fingerprint(parts: Mapping[str, Any]) -> str:
    """A hash of the parts without the other hosts, so that a new host does not change it."""
    hashed = {key: value for key, value in parts.items() if key != "hosts"}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:12]


def find_due(current: Mapping[str, Mapping[str, Any]], records: Mapping[str, Mapping[str, Any]]) -> tuple[Due, ...]:
    """The hosts to prepare. ``records``: host -> ``parts`` and ``firewall`` of its last preparation."""
    result = []
    for host, new_parts in current.items():
        if host not in records:
            result.append(Due(host=host, reason="never prepared"))
            continue
        earlier = records[host].get("parts", {})
        reasons = [text for part, text in _REASONS.items() if _differs(part, new_parts, earlier, records[host])]
        if reasons:
            result.append(Due(host=host, reason=", ".join(reasons)))
    return tuple(result)


def find_changed(records: Mapping[str, Mapping[str, Any]], stamps: Mapping[str, str]) -> tuple[Due, ...]:
    """Hosts that changed since their last preparation. ``stamps``: host -> the fingerprint observed on it."""
    expected = {host: fingerprint(record["parts"]) for host, record in records.items() if "parts" in record}
    return tuple(
        Due(host=host, reason=_STAMP_DIFFERS if stamps[host] else _STAMP_MISSING)
        for host, stamp in expected.items()
        if host in stamps and stamps[host] != stamp
    )


def images(bed: BedSpec) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node.container.image for node in bed.all_nodes if node.container))


def addresses(bed: BedSpec) -> tuple[str, ...]:
    """The addresses at which the bed's hosts connect to each other."""
    candidates = [node.address for node in bed.nodes] + [host.address for host in bed.hosts]
    return tuple(sorted({address for address in candidates if address}))


def _differs(part: str, current: Mapping[str, Any], earlier: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    if part == "hosts" and not record.get("firewall"):
        return False
    if part == "image_id" and not current.get(part):
        return False  # the controller does not have the image: the host's image is correct
    return bool(current.get(part) != earlier.get(part))


def _parts(bed: BedSpec, host: HostSpec, playbooks: str, image_ids: Mapping[str, str]) -> dict[str, Any]:
    containers = [node.container for node in bed.all_nodes if node.host == host.name and node.container]
    image = containers[0].image if containers else ""
    return {
        "playbooks": playbooks,
        "image": image,
        "image_id": image_ids.get(image, ""),
        "hostdir": bed.hostdir,
        "engine": host.engine,
        "gpus": sorted({"cdi" if "=" in device else "index" for spec in containers for device in spec.gpu_devices}),
        "rdma": any(spec.rdma for spec in containers),
        "reached": [host.address, host.port, host.user],
        "hosts": list(addresses(bed)),
    }
