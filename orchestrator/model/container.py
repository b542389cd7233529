"""Names, labels and variables of a node's container, and the parts of its create request that its keeper fills in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

BED, NODE, ROLE = "ccbed.bed", "ccbed.node", "ccbed.role"
SPEC, INCARNATION, ORDINAL = "ccbed.spec", "ccbed.incarnation", "ccbed.ordinal"
#: The owner of the bed, shown if the container's name is in use: user, machine and directory.
OWNER = "ccbed.owner"
#: The capabilities of nodes that the container's engine lacks, with commas.
LACKS = "ccbed.lacks"
#: Environment of the main process: the process tag, and the label of the incarnation as JSON.
MARK_VARIABLE, LABEL_VARIABLE = "CCBED_NODE", "CCBED_LABEL"
#: Facts that a container cannot determine itself, for system.json: the id of its image, the version of its engine.
IMAGE_VARIABLE, ENGINE_VARIABLE = "CCBED_IMAGE_ID", "CCBED_ENGINE_VERSION"


#: The beginning of the names of images that ccbed builds.
OWN_IMAGES = "ccbed/"


def split_image(image: str) -> tuple[str, str]:
    """The name of an image, and its tag or digest (``latest`` if there is none); the port of a registry is no tag."""
    if "@" in image:
        name, _, digest = image.partition("@")
        return name, digest
    name, _, tag = image.rpartition(":") if ":" in image.rsplit("/", 1)[-1] else (image, "", "latest")
    return name, tag


def is_podman(version: Mapping[str, Any]) -> bool:
    """Is an engine podman? ``version``: its response to ``/version``."""
    return any(part.get("Name") == "Podman Engine" for part in version.get("Components") or ())


def container_name(bed: str, node: str) -> str:
    return f"ccbed-{bed}-{node}"


def network_name(bed: str) -> str:
    return f"ccbed-{bed}"


def fill_incarnation(request: Mapping[str, Any], *, process_tag: str, label: Mapping[str, Any]) -> dict[str, Any]:
    """The create request with the ``process_tag`` and ``label`` of an incarnation (``label`` has incarnation and ordinal)."""
    values = {MARK_VARIABLE: process_tag, LABEL_VARIABLE: json.dumps(label, separators=(",", ":"))}
    others = [item for item in request["Env"] if item.partition("=")[0] not in values]
    labels = {INCARNATION: str(label["incarnation"]), ORDINAL: str(label["ordinal"])}
    return {
        **request,
        "Env": [*others, *(f"{name}={value}" for name, value in values.items())],
        "Labels": {**request["Labels"], **labels},
    }
