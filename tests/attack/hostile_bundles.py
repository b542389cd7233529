"""Bundles that somebody prepared: values of every type, sizes, depths, names and files that no run leaves. All are sealed again."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.store import seal

DEEP = b"[" * 10_000 + b"]" * 10_000
HUGE = 10**400
#: A bundle of this version; the other bases are of format 1.
FORMAT_2 = "format-2"
MIB = 1024**2
GIB = 1024**3
#: Contents that are no document, by name.
CONTENTS: Mapping[str, bytes] = {
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "a text": b'"x"',
    "a number": b"7",
    "NaN": b"NaN",
    "depth 10,000": DEEP,
    "bytes that are no UTF-8": b'{"name": "\xff\xfe"}',
    "an unpaired surrogate": b'{"name": "\\ud800"}',
    "NUL bytes": bytes(4096),
    "half a document": b'{"name": "x", "params": {',
}
#: Values of a wrong type or beyond every range.
VALUES: Mapping[str, Any] = {
    "null": None, "a list": [[]], "an object": {"x": {}}, "a text": "x", "10**400": HUGE, "10**17": 10**17, "minus": -1, "1e300": 1e300,
    "true": True, "NaN": float("nan"), "Infinity": float("inf"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """``spoil`` changes the bundle, which is sealed afterwards; ``codes``: exit codes of `check` that are right."""

    name: str
    spoil: Callable[[Path], object]
    base: str = "failover"
    codes: tuple[int, ...] = (2,)
    sealed: bool = True


def all_of_them() -> list[Hostile]:
    """Every hostile bundle, each with a name of its own."""
    old = [*_documents(), *_fields(), *_events(), *_cases(), *_files(), *_seals(), *_trees()]
    made = [*old, *(_of_format_2(hostile) for hostile in old if hostile.base == "failover"), *_added_by_format_2()]
    assert len({hostile.name for hostile in made}) == len(made)
    return made


def _of_format_2(hostile: Hostile) -> Hostile:
    """The same in a bundle of format 2, whose contents are compared: what passed may fail."""
    return replace(hostile, name=f"format 2: {hostile.name}", base=FORMAT_2, codes=(*hostile.codes, 1, 2))


def _added_by_format_2() -> Iterator[Hostile]:
    """What format 1 does not have."""
    for key in ("checks", "workload", "inputs", "inputs_left_out", "inputs_redacted", "secret_names", "umask"):
        for what, value in VALUES.items():
            yield Hostile(
                name=f"format 2: plan.json {key}: {what}", base=FORMAT_2, codes=(0, 1, 2),
                spoil=_edited("plan.json", lambda document, k=key, v=value: document.update({k: v})),  # type: ignore[misc]
            )  # fmt: skip
    for path in ("../../x", "/etc/passwd", "inputs/x", "\x1b[2J", "\u202e"):
        for what, entry in {
            "inputs": {path: "0" * 64},
            "checks": [{"name": path, "params": {}, "sha256": "0" * 64, "source": path}],
            "workload": {"name": path, "sha256": "0" * 64, "source": path},
            "inputs_left_out": [{"path": path, "reason": path, "sha256": path}],
        }.items():
            yield Hostile(
                name=f"format 2: plan.json {what} {path!r}", base=FORMAT_2, codes=(1, 2),
                spoil=_edited("plan.json", lambda document, k=what, v=entry: document.update({k: v})),  # type: ignore[misc]
            )  # fmt: skip


def prepare(hostile: Hostile, directory: Path) -> None:
    """Spoil the bundle in ``directory`` and seal it, as far as that can be done."""
    hostile.spoil(directory)
    if hostile.sealed:
        try:
            seal.seal(directory)
        except Exception:  # noqa: BLE001 what cannot be sealed keeps its old seal
            return


def _edited(file: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], object]:
    def spoil(directory: Path) -> None:
        document = json.loads((directory / file).read_bytes())
        change(document)
        (directory / file).write_text(json.dumps(document))

    return spoil


def _set(document: Any, where: tuple[str | int, ...], value: Any) -> None:
    for key in where[:-1]:
        document = document[key]
    document[where[-1]] = value


def _set_all(events: list[dict[str, Any]], where: tuple[str | int, ...], value: Any) -> None:
    for event in events:
        _set(event, where, value)


def _written(file: str, content: bytes) -> Callable[[Path], object]:
    return lambda directory: (directory / file).write_bytes(content)


def _documents() -> Iterator[Hostile]:
    for file in ("trial.json", "plan.json", "bundle.json", "fingerprint.json", "twin.json"):
        for what, content in CONTENTS.items():
            yield Hostile(name=f"{file}: {what}", spoil=_written(file, content))
    for what, content in CONTENTS.items():
        yield Hostile(name=f"verdicts.json: {what}", spoil=_written("verdicts.json", content), codes=(0, 2))
    yield Hostile(
        name="trial.json: a key twice",
        spoil=lambda d: (d / "trial.json").write_text((d / "trial.json").read_text().replace("{", '{"name": "x", ', 1)),
    )


def _fields() -> Iterator[Hostile]:
    places: dict[str, list[tuple[str | int, ...]]] = {
        "trial.json": [("world", "nodes"), ("world",), ("params",), ("faults",), ("faults", 0, "at", "step"), ("seed",),
                       ("recovery", "policy"), ("liveness", "lost_s"), ("checks",), ("name",), ("world", "ranks_per_node")],
        "plan.json": [("slots",), ("nodes",), ("last_step",), ("acts",), ("clocks",), ("link",), ("bed",), ("run",)],
        "bundle.json": [("format",), ("twin",), ("command",)],
        "fingerprint.json": [("mixed",), ("untold",)],
        "twin.json": [("losses",), ("digests",), ("steps",), ("key",)],
    }  # fmt: skip
    for file, wheres in places.items():
        for where in wheres:
            for what, value in VALUES.items():
                yield Hostile(
                    name=f"{file} {'.'.join(map(str, where))}: {what}",
                    spoil=_edited(file, lambda document, where=where, value=value: _set(document, where, value)),  # type: ignore[misc]
                    codes=(0, 1, 2),
                )
    for nodes, ranks in ((10**9, 1), (1, 10**9), (0, 1), (65_536, 256)):
        yield Hostile(
            name=f"a world of {nodes} x {ranks}",
            spoil=_edited("trial.json", lambda t, n=nodes, e=ranks: t.update(world={"nodes": n, "ranks_per_node": e})),  # type: ignore[misc]
        )
    for path in ("../../x", "/etc/passwd", "a/b", ".."):
        yield Hostile(name=f"plan.json: bed {path}", spoil=_edited("plan.json", lambda p, b=path: p.update(bed=b)))  # type: ignore[misc]


def _lines(change: Callable[[list[dict[str, Any]]], object], file: str = "history.jsonl") -> Callable[[Path], object]:
    def spoil(directory: Path) -> None:
        events = [json.loads(line) for line in (directory / file).read_text().splitlines()]
        change(events)
        (directory / file).write_text("".join(json.dumps(event) + "\n" for event in events))

    return spoil


def _events() -> Iterator[Hostile]:
    for what, content in CONTENTS.items():
        text = content.replace(b"\n", b" ") + b"\n"
        yield Hostile(
            name=f"history.jsonl: a line: {what}",
            spoil=lambda d, text=text: (d / "history.jsonl").write_bytes(  # type: ignore[misc]
                text + (d / "history.jsonl").read_bytes()
            ),
        )  # fmt: skip
        yield Hostile(name=f"history.jsonl: all of it: {what}", spoil=_written("history.jsonl", content), codes=(2, 4))
    fields: list[tuple[str | int, ...]] = [("t",), ("seq",), ("epoch",), ("value",), ("at",), ("at", "mono"), ("source",), ("source", "n"),
              ("node",), ("key",), ("f",), ("type",)]  # fmt: skip
    for where in fields:
        for what, value in VALUES.items():
            yield Hostile(
                name=f"every event's {'.'.join(map(str, where))}: {what}",
                spoil=_lines(lambda events, w=where, v=value: _set_all(events, w, v)),  # type: ignore[misc]
                codes=(0, 1, 2, 4),
            )
    names = ("run.begin", "gang.start", "rank.exit", "rank.finished", "fault.act", "node.exit", "recovery.decided", "progress",
             "checkpoint.commit", "gather", "rank.step", "resume.chosen", "fault.planned", "run.end", "store.open")  # fmt: skip
    for name in names:
        for what, value in VALUES.items():
            yield Hostile(
                name=f"every field of {name}: {what}",
                spoil=_lines(lambda events, n=name, v=value: _all_fields(events, n, v)),  # type: ignore[misc]
                codes=(0, 1, 2),
            )


def _all_fields(events: list[dict[str, Any]], name: str, value: Any) -> None:
    for event in events:
        if event["f"] == name:
            event["value"] = dict.fromkeys(event.get("value", {}), value)


def _cases() -> Iterator[Hostile]:
    """The plan of the collectives says how much is read."""
    keys = (
        "first_step",
        "iterations",
        "stride",
        "groups",
        "bytes",
        "count",
        "cost",
        "root",
        "case",
        "algorithm",
        "dtype",
        "shares",
    )
    for key in keys:
        for what, value in {**VALUES, "10**9": 10**9, "10**6": 10**6}.items():
            yield Hostile(
                name=f"collective.plan: every case's {key}: {what}",
                base="collective",
                spoil=_lines(lambda events, k=key, v=value: _change_cases(events, k, v)),  # type: ignore[misc]
                codes=(0, 1, 2),
            )
    record = struct.Struct("<IHHHHQdd")
    records = {
        "steps of 2**32": record.pack(2**32 - 1, 0, 0, 1, 0, 8, 1.0, 2.0),
        "NaN times": record.pack(1, 0, 0, 1, 0, 8, float("nan"), 2.0),
        "infinite times": record.pack(1, 0, 0, 1, 0, 8, 1.0, float("inf")),
        "sizes of 2**64": record.pack(1, 0, 0, 1, 0, 2**64 - 1, 1.0, 2.0),
        "garbage": bytes(range(256)) * 128,
        "half a record": b"xx",
        "peers of 65535": record.pack(1, 65535, 65535, 65535, 65535, 8, 1.0, 2.0),
    }
    for base in ("collective", "failover"):
        for what, content in records.items():
            yield Hostile(
                name=f"chunks of a {base}: {what}",
                base=base,
                spoil=_over("chunks-r*.bin", content * 9),
                codes=(0, 1, 2),
            )


def _change_cases(events: list[dict[str, Any]], key: str, value: Any) -> None:
    for event in events:
        for case in event.get("value", {}).get("cases", ()):
            case[key] = value


def _over(pattern: str, content: bytes) -> Callable[[Path], object]:
    def spoil(directory: Path) -> None:
        for file in sorted((directory / "nodes").rglob(pattern))[:2]:
            file.write_bytes(content)

    return spoil


def _files() -> Iterator[Hostile]:
    steps = {
        "a step of 10**9": b'{"step":1000000000,"loss":"0x1p+0","start":1.0,"end":2.0}\n',
        "a step of 10**400": b'{"step":1' + b"0" * 400 + b',"loss":"0x1p+0","start":1.0,"end":2.0}\n',
        "losses that are no figures": b'{"step":1,"loss":"0x1p+99999","start":1.0,"end":2.0}\n{"step":2,"loss":"<b>","start":1,"end":2}\n',
        "times of NaN": b'{"step":1,"loss":"0x1p+0","start":NaN,"end":2.0}\n',
        "digests of a wrong type": b'{"step":1,"loss":"0x1p+0","start":1,"end":2.0,"digest":[1]}\n',
    }
    for what, content in {**{k: v + b"\n" for k, v in CONTENTS.items()}, **steps}.items():
        yield Hostile(name=f"steps: {what}", spoil=_over("steps-r*.jsonl", content), codes=(1, 2))
        yield Hostile(name=f"events of a node: {what}", spoil=_over("agent.*.jsonl", content), codes=(1, 2))
        yield Hostile(name=f"a rank's log: {what}", spoil=_over("rank-*.log", content), codes=(0, 1, 2))
        yield Hostile(name=f"system.json: {what}", spoil=_over("system.json", content), codes=(0, 1, 2))
        yield Hostile(name=f"an environment: {what}", spoil=_over("env-r*.json", content), codes=(0, 1, 2))
    for size, what in ((300 * MIB, "300 MB of garbage"), (3 * GIB, "a sparse file of 3 GB")):
        for file in ("trial.json", "plan.json", "history.jsonl", "twin.json", "manifest-sha256.txt", "metrics.jsonl", "verdicts.json",
                     "nodes/n0/system.json", "nodes/n0/i1-e0/chunks-r0.bin", "nodes/n0/i1-e0/steps-r0.jsonl",
                     "nodes/n0/i1-e0/rank-0.log", "inputs/x.py"):  # fmt: skip
            yield Hostile(
                codes=(0, 2) if file == "verdicts.json" else (2,),
                name=f"{file}: {what}", sealed=False,
                spoil=lambda d, f=file, s=size: _large(d / f, s)  # type: ignore[misc]
            )  # fmt: skip


def _large(file: Path, size: int) -> None:
    """Garbage, or, beyond 1 GiB, a hole."""
    with file.open("wb") as target:
        if size > GIB:
            target.truncate(size)
        else:
            block = os.urandom(MIB)
            for _ in range(size // MIB):
                target.write(block)


def _seals() -> Iterator[Hostile]:
    manifests = {
        "lines that are no sums": b"x\n" * 1000,
        "a path out of the bundle": b"0" * 64 + b"  ../../../etc/passwd\n",
        "an absolute path": b"0" * 64 + b"  /etc/passwd\n",
        "a million lines": b"".join(b"0" * 64 + b"  f%d\n" % n for n in range(200_000)),
        "bytes that are no UTF-8": b"0" * 64 + b"  \xff\xfe\n",
        "control characters": b"0" * 64 + b"  \x1b]0;x\x07\x1b[2J\n",
        "empty": b"",
    }
    for what, content in manifests.items():
        yield Hostile(name=f"the seal: {what}", spoil=_written("manifest-sha256.txt", content), sealed=False)


def _replaced(file: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def spoil(directory: Path) -> None:
        path = directory / file
        if path.exists():
            path.unlink()
        make(path)

    return spoil


def _trees() -> Iterator[Hostile]:
    targets = (
        "plan.json",
        "history.jsonl",
        "twin.json",
        "nodes/n0/system.json",
        "nodes/n0/i1-e0/rank-0.log",
        "verdicts.json",
    )
    kinds: dict[str, Callable[[Path], object]] = {
        "a link out of the bundle": lambda path: path.symlink_to("/etc/passwd"),
        "a link to itself": lambda path: path.symlink_to(path.name),
        "a link to a device": lambda path: path.symlink_to("/dev/zero"),
        "a pipe": os.mkfifo,
        "a directory": lambda path: path.mkdir(),
    }
    for file in targets:
        for what, make in kinds.items():
            yield Hostile(name=f"{file}: {what}", spoil=_replaced(file, make), sealed=False)
    names = {"a new line": b"a\nb", "an escape": b"a\x1b[31mb", "no UTF-8": b"a\xffb"}
    for what, name in names.items():
        yield Hostile(
            name=f"a file's name with {what}", sealed=False,
            spoil=lambda d, n=name: Path(os.fsdecode(os.fsencode(d / "nodes/n0") + b"/" + n)).write_bytes(b"x"),  # type: ignore[misc]
        )  # fmt: skip
    yield Hostile(name="directories 500 deep", spoil=_nested, sealed=False)
    for rank in (10**8, 70_000, 99):
        yield Hostile(
            name=f"the steps of rank {rank}",
            spoil=lambda d, r=rank: (d / f"nodes/n0/i1-e0/steps-r{r}.jsonl").write_bytes(b""),  # type: ignore[misc]
            codes=(1, 2),
        )


def _nested(directory: Path) -> None:
    (directory / "nodes" / "/".join(["d"] * 500)).mkdir(parents=True)
