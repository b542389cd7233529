"""What a run could not gather from its nodes, and why."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.event import History
from ..model.events import GatherDone


def unfetched(history: History) -> Mapping[str, str]:
    """Path in the bundle, of a file or of a whole tree -> why gather could not bring it whole."""
    reasons: dict[str, str] = {}
    for event in history.of(GatherDone):
        missing = [(file.path, file.node, file.reason) for file in event.data.missing or ()]
        capped = [(file.path, file.node, None) for file in event.data.capped or ()]
        for name, node, why in (*missing, *capped):
            path, reason = name or "", why or "not fetched whole"
            tree = "" if path.startswith("runs/") else f"/{path}"  # the tree of a run lies in the node's own directory
            reasons |= {path: reason, f"nodes/{node}{tree}": reason}
    return reasons


def excuse(path: str, reasons: Mapping[str, str]) -> str:
    """Why a file is not there, if it or a tree that it is in was reported; empty otherwise."""
    parts = path.split("/")
    return next((reasons[tree] for n in range(len(parts), 0, -1) if (tree := "/".join(parts[:n])) in reasons), "")
