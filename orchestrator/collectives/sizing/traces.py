"""Read trace files as items to replay: detect the format, match the ranks' collectives, keep computing time as gaps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ...model.frozen import dataclass
from . import chakra_trace, param_trace, replay_items, trace_matching
from .replay_items import Item
from .trace_recording import MAX_RANKS, Recording, TraceError

_RANK = re.compile(r"(\d+)(?!.*\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """``form``: the trace's format; ``timed``: whether it has times; ``notes``: differences from the trace."""

    form: str
    ranks: int
    collectives: int
    timed: bool
    items: tuple[Item, ...]
    notes: tuple[str, ...]


def replay(files: Mapping[str, bytes], algorithms: trace_matching.Algorithms, gpus: int | None = None) -> Replay:
    """``files``: name -> content; several files: one per rank. ``algorithms``: (operation, ranks) -> name.

    Raises TraceError.
    """
    if not files:
        raise TraceError("no trace: that folder has no *.json, *.json.gz, *.et or *.et.gz")
    recordings: list[Recording] = []
    forms: list[str] = []
    problems: list[str] = []
    for file, content in files.items():
        try:
            form, recording = _read(file, content, _rank(file) if len(files) > 1 or _named(file) else None)
            forms.append(form)
            recordings.append(recording)
        except TraceError as error:
            problems += str(error).splitlines()
    problems += (_more(recordings, gpus) or _missing(recordings)) if not problems else []
    if problems:
        raise TraceError("\n".join(_some(problems)))
    if len(recordings) == 1:
        matched = trace_matching.match_single_trace(recordings[0], gpus)
    else:
        matched = trace_matching.match_traces(recordings, gpus)
    if not matched.steps:
        raise TraceError(f"{', '.join(files)}: has no collective")
    made = replay_items.merge(trace_matching.replay_item(step, matched.ranks, algorithms) for step in matched.steps)
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
        if param_trace.is_param_trace(document):
            return "PARAM comms trace", param_trace.read(document, file, rank)
        if chakra_trace.is_chakra_trace(document):
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
        return chakra_trace.read_protobuf(content)
    except TraceError as error:
        raise TraceError(f"{file}: neither JSON nor a Chakra trace in protobuf form (*.et): {error}") from None


def _document(text: str, file: str) -> Any:
    """A JSON value, or a list of consecutive values as chakra_jsonizer writes them."""
    decoder, values, at = json.JSONDecoder(), [], 0
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
        values.append(value)
    return values[0] if len(values) == 1 else values


def _rank(file: str) -> int | None:
    match = _RANK.search(file.removesuffix(".gz").removesuffix(".json").removesuffix(".et"))
    return int(match[1]) if match else None


def _named(file: str) -> bool:
    """Return whether the name of a single file has a rank: rank-0.json, rank0.json, chakra.0.et."""
    return re.search(r"(?:rank|\.)[-_.]?\d+\.(?:json|et)", file) is not None


def _missing(recordings: list[Recording]) -> list[str]:
    """Problems of several files: ranks without a file, files without a rank, and files of the same rank."""
    if len(recordings) < 2:
        return []
    problems = [
        f"{recording.file}: its rank is not known: the name has no number of a rank"
        for recording in recordings
        if recording.rank is None
    ]
    ranks = {recording.rank for recording in recordings if recording.rank is not None}
    if len(ranks) + len(problems) < len(recordings):
        problems.append("two files have the same rank")
    world = max(max((recording.world or 0 for recording in recordings), default=0), max(ranks, default=-1) + 1)
    lacking = sorted(set(range(world)) - ranks)
    return problems + [f"the trace of rank {rank} of {world} is missing: a missing peer" for rank in lacking]


def _more(recordings: list[Recording], gpus: int | None) -> list[str]:
    world = max((recording.world or 0 for recording in recordings), default=0)
    if world > MAX_RANKS:
        return [f"the trace has {world:,} ranks: must be <= {MAX_RANKS:,}"]
    return [f"--gpus {gpus}: the trace has {world} ranks"] if gpus is not None and world > gpus else []


def _some(problems: list[str], most: int = 20) -> list[str]:
    return problems if len(problems) <= most else [*problems[:most], f"and {len(problems) - most} more"]
