"""Trace files -> items to replay: the form is recognised, ranks are matched with each other, computing is kept as gaps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import chakra_protobuf, chakra_trace, items, matching, param_trace, recorded
from .items import Item
from .recorded import Recording, TraceError

_RANK = re.compile(r"(\d+)(?!.*\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """``form``: what the trace was; ``timed``: whether it has times; ``notes``: what is not as it was."""

    form: str
    ranks: int
    collectives: int
    timed: bool
    items: tuple[Item, ...]
    notes: tuple[str, ...]


def replay(files: Mapping[str, bytes], algorithms: matching.Algorithms, gpus: int | None = None) -> Replay:
    """``files``: name -> content; several are one per rank. ``algorithms``: the one to take for (operation, ranks).

    Raises TraceError.
    """
    if not files:
        raise TraceError("there is no trace: no *.json, *.json.gz, *.et or *.et.gz in that folder")
    found: list[Recording] = []
    forms: list[str] = []
    problems: list[str] = []
    for file, content in files.items():
        try:
            form, recording = _read(file, content, _rank(file) if len(files) > 1 or _named(file) else None)
            forms.append(form)
            found.append(recording)
        except TraceError as error:
            problems += str(error).splitlines()
    problems += (_more(found, gpus) or _missing(found)) if not problems else []
    if problems:
        raise TraceError("\n".join(_some(problems)))
    if len(found) == 1:
        matched = matching.alone(found[0], gpus)
    else:
        matched = matching.together(found, gpus)
    if not matched.steps:
        raise TraceError(f"{', '.join(files)}: has no collective")
    made = items.merged(matching.item(step, matched.ranks, algorithms) for step in matched.steps)
    return Replay(
        form=forms[0], ranks=matched.ranks, collectives=sum(len(step.groups) for step in matched.steps),
        timed=matched.timed, items=made, notes=matched.notes,
    )  # fmt: skip


def _read(file: str, content: bytes, rank: int | None) -> tuple[str, Recording]:
    binary = _is_binary(file, content)
    document: Any = _from_protobuf(content, file) if binary else _document(content.decode(), file)
    if document in ([], {}) or (isinstance(document, dict) and document.get("nodes") == []):
        raise TraceError(f"{file}: is empty")
    if isinstance(document, dict) and "traceEvents" in document:
        raise TraceError(f"{file}: is a Kineto (Chrome) trace; link it with the execution trace: chakra_trace_link")
    try:
        if param_trace.is_one(document):
            return "PARAM comms trace", param_trace.read(document, file, rank)
        if chakra_trace.is_one(document):
            return "Chakra execution trace", chakra_trace.read(document, file, rank)
    except TraceError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise TraceError(f"{file}: not in the form of such a trace: {type(error).__name__}: {error}") from None
    raise TraceError(f"{file}: neither a PARAM comms trace nor a Chakra execution trace in JSON")


def _is_binary(file: str, content: bytes) -> bool:
    if file.removesuffix(".gz").endswith(".et") and content.strip()[:1] not in (b"", b"{", b"["):
        return True
    try:
        return "\0" in content.decode()[:4096]
    except UnicodeDecodeError:
        return True


def _from_protobuf(content: bytes, file: str) -> list[dict[str, Any]]:
    try:
        return chakra_protobuf.nodes(content)
    except TraceError as error:
        raise TraceError(f"{file}: neither JSON nor a Chakra trace in protobuf form (*.et): {error}") from None


def _document(text: str, file: str) -> Any:
    """One JSON value, or the list of those that follow one another, as chakra_jsonizer writes them."""
    decoder, found, at = json.JSONDecoder(), [], 0
    if not text.strip():
        raise TraceError(f"{file}: is empty")
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise TraceError(f"{file}: not valid JSON: {error}") from None
        found.append(value)
    return found[0] if len(found) == 1 else found


def _rank(file: str) -> int | None:
    match = _RANK.search(file.removesuffix(".gz").removesuffix(".json").removesuffix(".et"))
    return int(match[1]) if match else None


def _named(file: str) -> bool:
    """Whether a lone file says whose it is: rank-0.json, rank0.json, chakra.0.et."""
    return re.search(r"(?:rank|\.)[-_.]?\d+\.(?:json|et)", file) is not None


def _missing(found: list[Recording]) -> list[str]:
    """Of several files: ranks that have none, and files that say no rank or the same one."""
    if len(found) < 2:
        return []
    problems = [f"{one.file}: whose is it? its name has no number of a rank" for one in found if one.rank is None]
    ranks = {one.rank for one in found if one.rank is not None}
    if len(ranks) + len(problems) < len(found):
        problems.append("two files are of the same rank")
    world = max(max((one.world or 0 for one in found), default=0), max(ranks, default=-1) + 1)
    lacking = sorted(set(range(world)) - ranks)
    return problems + [f"the trace of rank {rank} of {world} is missing: a missing peer" for rank in lacking]


def _more(found: list[Recording], gpus: int | None) -> list[str]:
    world = max((one.world or 0 for one in found), default=0)
    if world > recorded.MOST:
        return [f"the trace has {world:,} ranks: must be <= {recorded.MOST:,}"]
    return [f"--gpus {gpus}: the trace has {world} ranks"] if gpus is not None and world > gpus else []


def _some(problems: list[str], most: int = 20) -> list[str]:
    return problems if len(problems) <= most else [*problems[:most], f"and {len(problems) - most} more"]
