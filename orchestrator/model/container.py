"""Names, labels and variables of a node's container, and the parts of its create request that its keeper fills in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

BED, NODE, ROLE = "ccbed.bed", "ccbed.node", "ccbed.role"
SPEC, INCARNATION, ORDINAL = "ccbed.spec", "ccbed.incarnation", "ccbed.ordinal"
#: The owner of the bed, shown if the container's name is in use: user, machine and directory.
OWNER = "ccbed.owner"
#: Environment of the main process: the mark (agent/mark.py), and the label of the incarnation as JSON (agent/label.py).
MARK_VARIABLE, LABEL_VARIABLE = "CCBED_NODE", "CCBED_LABEL"
#: What a container cannot find out itself, for system.json: the id of its image, the version of its engine.
IMAGE_VARIABLE, ENGINE_VARIABLE = "CCBED_IMAGE_ID", "CCBED_ENGINE_VERSION"


def container_name(bed: str, node: str) -> str:
    return f"ccbed-{bed}-{node}"


def network_name(bed: str) -> str:
    """The name of a bed's private network."""
    return f"ccbed-{bed}"


def filled(request: Mapping[str, Any], *, mark: str, label: Mapping[str, Any]) -> dict[str, Any]:
    """The request for one incarnation: its ``mark`` and ``label`` (with incarnation and ordinal) in their places."""
    values = {MARK_VARIABLE: mark, LABEL_VARIABLE: json.dumps(label, separators=(",", ":"))}
    kept = [item for item in request["Env"] if item.partition("=")[0] not in values]
    labels = {INCARNATION: str(label["incarnation"]), ORDINAL: str(label["ordinal"])}
    return {
        **request,
        "Env": [*kept, *(f"{name}={value}" for name, value in values.items())],
        "Labels": {**request["Labels"], **labels},
    }
