"""Keeps the link probe of a bed's last sound run, for later runs on the same nodes and links.

The file lies in the bed's directory, so a bed that is brought down takes it along. A later run hands it to its ranks, which
confirm every direction before they rely on it, and write it into their own events: no bundle depends on the file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..model import codec
from ..model.errors import CcbedError
from ..model.event import History
from ..model.events import FaultInjected, LinkFit, LinkPair
from ..model.launch import Request
from ..model.plan import Plan
from ..store import bundle, paths

FILE = "links.json"
#: Seconds after which the links are measured again.
OLDEST_S = 24 * 3600.0
#: Bytes. Larger files, of many ranks, are neither written nor read.
LARGEST = 4 * 1024**2
#: Facts of the bundle's fingerprint that a probe depends on.
FACTS = ("torch", "python", "kernel", "cpu", "cores", "nccl", "driver", "code")


def find(request: Request, plan: Plan, directory: Path) -> dict[str, Any] | None:
    """The probe of an earlier run that still holds; None if there is none. A run with faults removes it."""
    file = Path(request.bed.workdir) / FILE
    if request.trial.faults:
        file.unlink(missing_ok=True)
    if "probe_s" not in request.trial.params or request.trial.params.get("fresh_probe"):
        return None
    try:
        document = json.loads(paths.read(file, LARGEST))
        content = document["links"]
        if document["sha256"] != codec.digest(content):
            raise ValueError("its content does not match its checksum")
        age, is_same = time.time() - content["at"], content["key"] == _key(request, plan, directory)
    except FileNotFoundError:
        return None
    except (CcbedError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        request.on_note(f"{file}: damaged ({error}); the links are measured again")
        return None
    return content if is_same and 0 <= age <= OLDEST_S else None


def of_ranks(links: Mapping[str, Any], ranks: tuple[int, ...]) -> dict[str, Any]:
    """Return what these ranks need: the directions in which they send, and the line of all."""
    return {**links, "directions": [value for value in links["directions"] if value.get("rank") in ranks]}


def keep(request: Request, plan: Plan, directory: Path) -> None:
    """Keep the probe of a run that has ended, unless it was reused or a fault was injected."""
    if "probe_s" not in request.trial.params or not bundle.has_ended(directory):
        return
    history = bundle.read_history(directory)
    content = _content(history)
    file = Path(request.bed.workdir) / FILE
    if history.of(FaultInjected):
        file.unlink(missing_ok=True)
    elif content is not None:
        content |= {"key": _key(request, plan, directory), "run": plan.run}
        written = paths.as_json({"sha256": codec.digest(content), "links": content})
        if len(written) <= LARGEST:
            with suppress(OSError):  # without the file, the next run measures
                paths.write(file, written)


def _content(history: History) -> dict[str, Any] | None:
    """Every direction and the line of the only attempt, with the time of the measurement; None for a probe that was reused."""
    fits, pairs = history.of(LinkFit), history.of(LinkPair)
    if len(fits) != 1 or fits[0].data.reused_from:
        return None
    world = len({pair.data.rank for pair in pairs})
    if len(pairs) != world * (world - 1) or any(pair.data.interval is None for pair in pairs):
        return None
    return {
        "at": fits[0].at.wall,
        "fit": codec.plain(fits[0].data),
        "directions": [codec.plain(pair.data) for pair in pairs],
    }


def _key(request: Request, plan: Plan, directory: Path) -> str:
    """The digest of all that a probe depends on: nodes and their incarnations, links, ranks, backend, code, and the probe's
    own parameters.
    """
    bed, world, params = request.bed, request.trial.world, request.trial.params
    facts = paths.document(directory, bundle.FINGERPRINT)
    parts = {
        "bed": (bed.name, bed.hash),
        "nodes": [
            (name, plan.nodes[name].host, plan.nodes[name].incarnation, plan.nodes[name].leaf) for name in plan.slots
        ],
        "specs": {node.name: node.hash for node in bed.nodes},
        "link": plan.link,
        "ranks": (world.nodes, world.ranks_per_node),
        "backend": (plan.backend, plan.threads),
        "facts": {fact: facts.get(fact) for fact in FACTS},
        "probe": (params.get("probe_s"), params.get("drain")),
    }
    return codec.digest(parts)
