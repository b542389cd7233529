"""The page of all events beside their classes says what the classes say."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterator

from orchestrator.model import codec
from orchestrator.model.event import Event
from orchestrator.model.events import CommandFailed, commands
from orchestrator.model.payload import REGISTRY, Payload

from .golden import same_as_golden

MODULES = ("run_events", "gang_events", "ranks", "nodes", "fault_events", "checkpoint_events", "collective_events")
HEAD = """# Events of the history

`history.jsonl` has one JSON object per line: `f` (the name), `type`, `at` (boot, `mono`, `wall`: seconds), `source` (writer and its
running number), `seq` and `t` (seconds since the run began, both set by the journal), and, where they apply, `node`, `epoch` (the
attempt), `key` (of a command) and `value`. The tables list the fields of `value`; each row is a class in this folder. A field with
`?` may be absent: then it is not known. A field with `?null` is written as null where it is not known. Names end in their unit.
Further keys are ignored. Workloads add events of their own under other names.

A *command* is an `invoke` and closes with one `ok`, `fail` or `info` (its outcome is not known) that has the same `key`.
An *observation* is a `note`.
"""


def fields(cls: type[Payload]) -> str:
    def shown(field: dataclasses.Field[object]) -> str:
        optional = field.default is not dataclasses.MISSING
        return f"`{field.name}`" + ("?null" if codec.NULL in field.metadata else "?") * optional

    return ", ".join(shown(field) for field in dataclasses.fields(cls)) or "none"  # type: ignore[arg-type]


def text(cls: type) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(str(cls.__doc__).split())).replace("|", "\\|")


def page() -> Iterator[str]:
    yield HEAD
    for name in MODULES:
        module = importlib.import_module(f"{Event.__module__}s.{name}")
        yield f"## {str(module.__doc__).split('. ')[0].rstrip('.')}\n"
        yield "| event | written by | fields | meaning |\n|---|---|---|---|"
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__ and issubclass(cls, Payload):
                yield f"| `{cls.NAME}` | {cls.WRITER} | {fields(cls)} | {text(cls)} |"
        yield ""
    yield "## Commands and their outcomes\n"
    yield "| command | type | written by | fields | meaning |\n|---|---|---|---|---|"
    for cls in vars(commands).values():
        if isinstance(cls, type) and cls.__module__ == commands.__name__ and issubclass(cls, Payload):
            yield f"| `{cls.NAME or 'any'}` | {', '.join(cls.TYPES)} | {cls.WRITER} | {fields(cls)} | {text(cls)} |"
    yield ""


def test_the_page_lists_every_event_as_its_class_is() -> None:
    written = "\n".join(page())
    assert all(f"| `{name}` |" in written for name, _ in REGISTRY)
    assert CommandFailed.__doc__
    same_as_golden("../../orchestrator/model/events/README.md", written)
