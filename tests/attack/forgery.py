"""Edits of a sealed bundle as an informed forger makes them: another value of the same kind, consistent pairs and triples, sealed again.

A *level* says how far an edit is carried through: 1 the file alone; 2 also the other place that has the same fact (the
history and the writer's own file), or the SHA-256 that the history states of the file; 3 both of these, and the SHA-256
that a rank states of its own file.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.model import codec
from orchestrator.model.trial import Trial
from orchestrator.store import seal
from orchestrator.store.recorded_files import CHUNK_FORMAT
from orchestrator.system import plain_files

Json = Any
KINDS = ("alter", "drop", "double", "reorder", "truncate")
LEVELS = (1, 2, 3)
#: Class of files -> pattern below the bundle. Logs are free text of ranks and are left out.
CLASSES = {
    "trial": "trial.json",
    "plan": "plan.json",
    "fingerprint": "fingerprint.json",
    "bundle": "bundle.json",
    "twin": "twin.json",
    "inputs": "inputs/**/*",
    "history": "history.jsonl",
    "metrics": "metrics.jsonl",
    "agent events": "nodes/*/agent.*.jsonl",
    "rank events": "nodes/*/rank-*.jsonl",
    "keeper events": "keepers/**/*.jsonl",
    "steps": "nodes/*/*/steps-r*.jsonl",
    "chunks": "nodes/*/*/chunks-r*.bin",
    "environments": "nodes/*/*/env-r*.json",
    "systems": "nodes/*/system.json",
}
DOCUMENTS = ("trial", "plan", "fingerprint", "bundle", "twin", "environments", "systems")
_CHUNK = struct.Struct(CHUNK_FORMAT)


class NoSuchEditError(Exception):
    """The file offers nothing for this edit; another one is drawn."""


@dataclass(kw_only=True)
class Edit:
    """What was changed, for the table and for the list of what was not noticed."""

    family: str
    kind: str
    level: int
    what: str = ""


def forge(directory: Path, other: Path, edit: Edit, dice: random.Random) -> None:
    """Make ``edit`` in the bundle and seal it again. ``other``: a bundle of another run. Raises NoSuchEditError."""
    files = sorted(path for path in directory.glob(CLASSES[edit.family]) if path.is_file() and path.stat().st_size)
    if not files:
        raise NoSuchEditError(edit.family)
    path = dice.choice(files)
    before = path.read_bytes()
    forger = Forger(directory=directory, other=other, path=path, edit=edit, dice=dice)
    edit.what = f"{path.relative_to(directory)}: {forger.change()}"
    if path.exists() and path.read_bytes() == before:
        raise NoSuchEditError("nothing changed")
    seal.seal(directory)


@dataclass(kw_only=True)
class Forger:
    """One edit of one file."""

    directory: Path
    other: Path
    path: Path
    edit: Edit
    dice: random.Random

    def change(self) -> str:
        if self.edit.family in DOCUMENTS:
            what = self._document()
        elif self.edit.family == "chunks":
            what = self._records()
        elif self.edit.family in ("inputs", "metrics", "steps"):
            what = self._foreign() or self._lines()
        else:
            what = self._events()
        if self.edit.level > 1:
            self._restate()
        return what

    # --- documents ----------------------------------------------------------------------------------------------------

    def _document(self) -> str:
        if self.edit.kind == "truncate":
            content = self.path.read_bytes()
            self.path.write_bytes(content[: self.dice.randrange(1, len(content))])
            return "cut off"
        if foreign := self._foreign():
            return foreign
        document = json.loads(self.path.read_bytes())
        what = self._edit_document(document)
        self.path.write_text(json.dumps(document, indent=1) + "\n")
        return what

    def _edit_document(self, document: Json) -> str:
        leaves = list(_leaves(document))
        holder, key = self.dice.choice(leaves)
        if self.edit.kind == "alter":
            before = holder[key]
            holder[key] = self._another(before, str(key), document)
            return f"{key}: {_short(before)} -> {_short(holder[key])}"
        if self.edit.kind == "drop":
            del holder[key]
            return f"{key} dropped"
        place, name = self.dice.choice([leaf for leaf in leaves if leaf != (holder, key)])
        if self.edit.kind == "double":
            place[name] = holder[key]
            return f"{name} := {key} ({_short(holder[key])})"
        holder[key], place[name] = place[name], holder[key]
        return f"{key} and {name} exchanged"

    def _foreign(self) -> str:
        """The same file of another run, now and then."""
        if self.edit.kind != "alter" or self.dice.random() > 0.25:
            return ""
        pattern = re.sub(r"\.[0-9a-f]{8}\.", ".*.", str(self.path.relative_to(self.directory)))
        files = sorted(self.other.glob(pattern))
        if not files:
            return ""
        shutil.copyfile(files[0], self.path)
        return "that of another run"

    # --- lines and records --------------------------------------------------------------------------------------------

    def _lines(self) -> str:
        lines = self.path.read_text().splitlines(keepends=True)
        if self.edit.kind == "alter" and self.edit.family != "inputs":
            place = self.dice.randrange(len(lines))
            content = json.loads(lines[place])
            what = self._edit_document(content)
            lines[place] = json.dumps(content) + "\n"
            self.path.write_text("".join(lines))
            return f"line {place + 1}: {what}"
        if self.edit.kind == "alter":
            place = self.dice.choice([n for n, line in enumerate(lines) if re.search(r"\d", line)] or [0])
            lines[place] = re.sub(r"\d+", lambda match: str(int(match[0]) + 1), lines[place])
            what = f"line {place + 1}: a number"
        else:
            what = _structural(lines, self.edit.kind, self.dice)
        self.path.write_text("".join(lines))
        return what

    def _records(self) -> str:
        content = self.path.read_bytes()
        size = _CHUNK.size
        records = [content[at : at + size] for at in range(0, len(content), size)]
        if foreign := self._foreign():
            return foreign
        if self.edit.kind == "alter":
            place = self.dice.randrange(len(records))
            fields = list(_CHUNK.unpack(records[place]))
            column = self.dice.randrange(len(fields))
            fields[column] += 1 if column < 6 else self.dice.uniform(0.001, 0.1)
            records[place] = _CHUNK.pack(*fields)
            what = f"record {place}, field {column}"
        else:
            what = _structural(records, self.edit.kind, self.dice)
        self.path.write_bytes(b"".join(records))
        return what

    # --- events -------------------------------------------------------------------------------------------------------

    def _events(self) -> str:
        if self.edit.family != "history" and (foreign := self._foreign()):
            return foreign
        own = _read(self.path)
        history = own if self.edit.family == "history" else _read(self.directory / "history.jsonl")
        place = self.dice.randrange(len(own))
        line = own[place]
        what = f"line {place + 1} ({line['f']}): "
        what += self._edit_events(own, place)
        self._write(self.path, own)
        if self.edit.level > 1 and self.edit.family != "history":
            self._carry_to_history(history, own, line)
        elif self.edit.level > 1:
            self._carry_to_file(own, line)
        return what

    def _edit_events(self, lines: list[Json], place: int) -> str:
        line = lines[place]
        self._original = json.loads(json.dumps(line))
        if self.edit.kind == "alter":
            return self._alter_event(line)
        writer = _writer(line)
        what = _structural_at(lines, self.edit.kind, place, self.dice, lambda other: _writer(other) == writer)
        if self.edit.level > 1:
            _renumber(lines)
        return what

    def _alter_event(self, line: Json) -> str:
        roll = self.dice.random()
        if roll < 0.3:
            shift = self.dice.choice((-1, 1)) * self.dice.uniform(0.02, 0.5)
            for clock in ("mono", "wall") if self.edit.level > 1 else ("mono",):
                line["at"][clock] += shift
            return f"{shift:+.3f} s"
        leaves = [(h, k) for h, k in _leaves(line["value"])] if roll < 0.8 else []
        leaves = leaves or [(line, key) for key in ("f", "type", "node", "epoch", "key") if key in line]
        holder, key = self.dice.choice(leaves)
        before = holder[key]
        holder[key] = self._another(before, str(key), line)
        return f"{key}: {_short(before)} -> {_short(holder[key])}"

    def _carry_to_history(self, history: list[Json], own: list[Json], line: Json) -> None:
        """The history says the same as the file now does."""
        writers = {_writer(self._original)}
        placed = {(_writer(event), event["source"]["n"]): event for event in history}
        own_events = [event for event in own if _writer(event) in writers]
        result = [event for event in history if _writer(event) not in writers]
        after: dict[int, list[Json]] = {}
        for event in own_events:
            old = placed.get((_writer(event), event["source"]["n"]))
            copy = {**{k: v for k, v in event.items() if k not in ("run", "mac")}, "seq": 0, "t": 0.0}
            after.setdefault(old["seq"] if old else len(history), []).append(copy)
        merged: list[Json] = []
        for event in history:
            if event in result:
                merged.append(event)
            merged += after.pop(event["seq"], [])
        merged += [event for events in after.values() for event in events]
        _place(merged)
        self._write(self.directory / "history.jsonl", merged)

    def _carry_to_file(self, history: list[Json], line: Json) -> None:
        """The writer's own file says the same as the history now does."""
        _place(history)
        self._write(self.path, history)
        writer = _writer(self._original)
        for file in (*self.directory.glob("nodes/*/*.jsonl"), *self.directory.glob("keepers/**/*.jsonl")):
            lines = _read(file)
            own_events = [event for event in history if _writer(event) == writer]
            if any(_writer(other) == writer for other in lines):
                self.touched = file
                rest = [other for other in lines if _writer(other) != writer]
                copies = [{k: v for k, v in event.items() if k not in ("seq", "t")} for event in own_events]
                self._write(file, [*rest, *copies])

    @staticmethod
    def _write(path: Path, lines: list[Json]) -> None:
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))

    # --- what is stated of a file -------------------------------------------------------------------------------------

    def _restate(self) -> None:
        """The SHA-256 in the history fit again: at level 2 of a file that stands alone, at level 3 of all."""
        events = self.edit.family in ("history", "agent events", "rank events", "keeper events")
        if events and self.edit.level < 3:
            return
        file = self.directory / "history.jsonl"
        lines = _read(file)
        begin = lines[0]["value"]
        for name in begin["documents"]:
            if (self.directory / name).exists():
                begin["documents"][name] = plain_files.sha256(self.directory / name)
        begin["plan"] = plain_files.sha256(self.directory / "plan.json")
        begin["inputs"] = {name: plain_files.sha256(self.directory / "inputs" / name) for name in begin["inputs"]}
        if self.edit.family == "trial" and self.edit.kind != "truncate":
            try:
                begin["trial"] = codec.build(Trial, json.loads(self.path.read_bytes())).id
            except (KeyError, TypeError, ValueError, AttributeError):
                raise NoSuchEditError("no trial") from None
        for line in lines:
            self._restate_files(line)
        self._write(file, lines)

    def _restate_files(self, line: Json) -> None:
        value = line["value"]
        if line["f"] == "gather" and line["type"] == "ok":
            value["sums"] = seal.sums(self.directory, "nodes")
            value["keepers"] = _prefixes(self.directory, value.get("keepers", {}))
        elif self.edit.level == 3 and line["f"] in ("rank.start", "rank.finished"):
            for name in value.get("files", {}):
                if self.path.name == name and f"-e{line['epoch']}/" in str(self.path):
                    value["files"][name] = plain_files.sha256(self.path)
        elif self.edit.level == 3 and line["f"] == "gang.start" and self.edit.family == "systems":
            own = "system" in value and self.path.parent.name == line["node"]
            value |= {"system": plain_files.sha256(self.path)} if own else {}

    def _another(self, value: Json, key: str, document: Json) -> Json:
        """Another value of the same kind."""
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return value + self.dice.choice((-1, 1, 2, 10))
        if isinstance(value, float):
            return value + self.dice.choice((-1, 1)) * max(abs(value) * 0.1, 0.01)
        if isinstance(value, str):
            return self._another_text(value, key)
        return 1 if value is None else None

    def _another_text(self, value: str, key: str) -> str:
        if re.fullmatch(r"-?0x[0-9a-f.]+p[+-]\d+", value):
            return (float.fromhex(value) * 1.01).hex()
        if re.fullmatch(r"[0-9a-f]{8,}", value):
            return f"{self.dice.getrandbits(4 * len(value)):0{len(value)}x}"
        if re.fullmatch(r"n\d", value):
            return self.dice.choice([f"n{n}" for n in range(5) if f"n{n}" != value])
        vocabulary = {"type": ("ok", "fail", "info", "note"), "f": ("node.exit", "rank.exit", "progress", "rank.step")}
        choices = [word for word in vocabulary.get(key, ()) if word != value]
        return self.dice.choice(choices) if choices else f"{value}x"


def _prefixes(directory: Path, stated: Json) -> Json:
    import hashlib

    return {
        path: {
            "bytes": entry["bytes"],
            "sha256": hashlib.sha256((directory / path).read_bytes()[: entry["bytes"]]).hexdigest(),
        }
        for path, entry in stated.items()
    }


def _leaves(value: Json) -> Iterator[tuple[Any, Any]]:
    """(container, key or index) of every scalar."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        if isinstance(item, dict | list) and item:
            yield from _leaves(item)
        elif not isinstance(item, dict | list):
            yield value, key


def _structural(lines: list[Any], kind: str, dice: random.Random) -> str:
    return _structural_at(lines, kind, dice.randrange(len(lines)), dice, lambda line: True)


def _structural_at(
    lines: list[Any], kind: str, place: int, dice: random.Random, is_equal: Callable[[Any], bool]
) -> str:
    """Drop, double, exchange with another one, or cut off from there on."""
    if kind == "drop":
        del lines[place]
        return f"line {place + 1} dropped"
    if kind == "double":
        lines.insert(place, json.loads(json.dumps(lines[place])) if isinstance(lines[place], dict) else lines[place])
        return f"line {place + 1} doubled"
    if kind == "truncate":
        del lines[place:]
        return f"cut off from line {place + 1} on"
    others = [n for n, line in enumerate(lines) if n != place and is_equal(line) and line != lines[place]]
    if not others:
        raise NoSuchEditError("nothing to exchange with")
    other = dice.choice(others)
    lines[place], lines[other] = lines[other], lines[place]
    return f"lines {place + 1} and {other + 1} exchanged"


def _writer(line: Json) -> tuple[Any, ...]:
    source = line["source"]
    by_bed = source["writer"] in ("ctl", "keeper", "outside")
    return (source["writer"],) if by_bed else (source["writer"], source.get("node"), source.get("incarnation"))


def _renumber(lines: list[Json]) -> None:
    """Every writer counts without a gap again, from its first number."""
    numbers: dict[tuple[Any, ...], int] = {}
    for line in lines:
        writer = _writer(line)
        first = line["source"]["n"] if writer[0] in ("keeper", "outside") else 1
        numbers[writer] = numbers.get(writer, first - 1) + 1
        line["source"]["n"] = numbers[writer]


def _place(lines: list[Json]) -> None:
    """Places and times as the journal gives them."""
    before = 0.0
    for seq, line in enumerate(lines, start=1):
        same = line["at"]["boot"] == lines[0]["at"]["boot"]
        before = round(line["at"]["mono"] - lines[0]["at"]["mono"], 6) if same else before
        line["seq"], line["t"] = seq, before


def _read(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _short(value: Json) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:21]}…"
