"""States every fact of an edited bundle again, wherever somebody without a key can: checksums, numbers, times, copies, metrics."""

from __future__ import annotations

import contextlib
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.core.verdict import run_metrics
from orchestrator.core.verdict.twin import twin_key
from orchestrator.model import codec
from orchestrator.model.trial import Trial
from orchestrator.store import bundle, seal
from orchestrator.system import plain_files

from . import forgery

Json = Any


def restate(directory: Path, dice: random.Random) -> None:
    """Make the bundle consistent after an edit, and seal it again."""
    history = directory / "history.jsonl"
    lines = forgery._read(history)
    before = [json.dumps(line["value"]) for line in lines]
    _restate_documents(directory)
    _restate_begin(directory, lines[0]["value"])
    for line in lines:
        _restate_event(directory, line, codec.digest(lines[0]["value"]))
    forgery._place(lines)
    changed = {
        _identity(line): line for line, value in zip(lines, before, strict=True) if json.dumps(line["value"]) != value
    }
    for file in _event_files(directory):
        _restate_copies(file, changed, dice)
    for line in lines:
        if (line["f"], line["type"]) == ("gather", "ok"):
            sums = seal.sums(directory, "nodes")
            line["value"] |= {"sums": sums, "files": len(sums)}
            line["value"]["keepers"] = forgery._prefixes(directory, line["value"].get("keepers", {}))
    _write(history, lines)
    with contextlib.suppress(Exception):  # a bundle that cannot be read any more keeps its metrics
        computed = run_metrics.lines(bundle.load(directory, judged=False))
        (directory / "metrics.jsonl").write_text("".join(f"{line}\n" for line in computed))
    seal.seal(directory)


def chained(lines: list[Json]) -> str:
    """The watcher's lines with the sums that it would have written."""
    total, texts = 0, []
    for line in lines:
        text = json.dumps({name: value for name, value in line.items() if name != "sum"}, separators=(",", ":"))
        total = zlib.crc32(text.encode(), total)
        texts.append(f'{text[:-1]},"sum":"{total:08x}"}}\n')
    return "".join(texts)


def _restate_documents(directory: Path) -> None:
    """The checksums of the inputs in the plan, and the key of the reference run."""
    plan = json.loads((directory / "plan.json").read_bytes())
    inputs = {path: plain_files.sha256(directory / "inputs" / path) for path in _inputs(directory)}
    if isinstance(plan, dict) and isinstance(plan.get("inputs"), dict) and plan["inputs"] != inputs:
        _write_json(directory / "plan.json", plan | {"inputs": inputs})
    with contextlib.suppress(Exception):
        twin = json.loads((directory / "twin.json").read_bytes())
        fingerprint = json.loads((directory / "fingerprint.json").read_bytes())
        key = twin_key(_trial(directory), fingerprint)
        if twin["key"] != key:
            _write_json(directory / "twin.json", twin | {"key": key})


def _restate_begin(directory: Path, begin: Json) -> None:
    begin["documents"] = {
        name: plain_files.sha256(directory / name) for name in begin["documents"] if (directory / name).exists()
    }
    begin["plan"] = plain_files.sha256(directory / "plan.json")
    begin["inputs"] = {path: plain_files.sha256(directory / "inputs" / path) for path in _inputs(directory)}
    with contextlib.suppress(Exception):
        begin["trial"] = _trial(directory).id
    about = json.loads((directory / "bundle.json").read_bytes())
    with contextlib.suppress(Exception):
        is_after = about.get("twin_after") is True
        twin = None if is_after else json.loads((directory / "twin.json").read_bytes())["key"]
        begin["twin"] = twin if begin.get("twin") or not is_after else begin.get("twin")
    if not (directory / "twin.json").exists():
        begin["twin"] = None


def _restate_event(directory: Path, line: Json, begin: str) -> None:
    value, node = line["value"], line.get("node")
    if line["f"] == "gang.start" and line["type"] in ("invoke", "ok"):
        system = directory / f"nodes/{node}/system.json"
        value |= {name: text for name, text in (("begin", begin),) if name in value}
        value |= {"system": plain_files.sha256(system)} if value.get("system") and system.is_file() else {}
    if line["f"] in ("rank.start", "rank.finished"):
        for name in value.get("files") or {}:
            for file in directory.glob(f"nodes/{node}/*-e{line['epoch']}/{name}"):
                value["files"][name] = plain_files.sha256(file)
        for name in value.get("records") or {}:
            for file in directory.glob(f"nodes/{node}/*-e{line['epoch']}/{name}"):
                value["records"][name] = {"bytes": file.stat().st_size, "sha256": plain_files.sha256(file)}


def _restate_copies(file: Path, changed: dict[tuple[Any, ...], Json], dice: random.Random) -> None:
    """The writer's own copies of what changed; a keeper's line without a signature gets one that looks like one."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        lines = forgery._read(file)
        for line in lines:
            if same := changed.get(_identity(line)):
                line["value"] = same["value"]
            if "keepers" in file.parts and "mac" not in line:
                line["mac"] = f"{dice.getrandbits(256):064x}"
        _write(file, lines)


def _event_files(directory: Path) -> Iterator[Path]:
    yield from (*directory.glob("nodes/*/*.jsonl"), *directory.glob("keepers/**/*.jsonl"))


def _identity(line: Json) -> tuple[Any, ...]:
    source = line["source"]
    return source.get("node"), source.get("incarnation"), source["writer"], source["n"]


def _inputs(directory: Path) -> list[str]:
    root = directory / "inputs"
    return [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()] if root.is_dir() else []


def _trial(directory: Path) -> Trial:
    return codec.build(Trial, json.loads((directory / "trial.json").read_bytes()))


def _write(path: Path, lines: list[Json]) -> None:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def _write_json(path: Path, document: Json) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n")
