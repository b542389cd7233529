"""What every report must do, as laws about its ``render(run)``: each raises AssertionError where the report breaks it."""

from __future__ import annotations

import base64
import copy
import csv
import dataclasses
import functools
import hashlib
import io
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import PurePosixPath
from typing import Any

from orchestrator.model.event import History
from orchestrator.model.run import NodeFiles, Run
from orchestrator.model.verdict import Outcome, Verdict

from ..unit import history
from ..unit.collectives import collective_runs
from ..unit.collectives.collective_runs import Part
from ..unit.simulated import Gang, ring

Render = Callable[[Run], Mapping[str, bytes]]
MIB = 1 << 20
#: Texts that a bundle may hold and that mean something to HTML, Markdown, XML, CSV, a terminal or a label of a gauge.
HOSTILE = (
    "<script>alert(1)</script> | [x](javascript:alert(1)) ]]> 'single' \" onload=\"alert(1) \\ \n=1+1,"
    "\x00\x1b[31m\ud800\u202e & {{ 7 }}"
)
#: Of a rank: besides these a line without a space that no page is wide enough for.
LOG = (HOSTILE, "```", "</pre>", "Traceback (most recent call last):", f"  {HOSTILE}", HOSTILE, "z" * 10_000)
VOID = {"meta", "br", "hr", "img", "link", "input"}
#: Addresses from which a reader's program would fetch something.
EXTERNAL = re.compile(
    r"""(?:src|href|srcset|poster|data|action)\s*=\s*["']?\s*(?:https?:)?//|@import|url\(\s*["']?(?:https?:)?//|\]\(\s*(?:https?:)?//""",
    re.IGNORECASE,
)


def with_verdicts(run: Run, outcome: Outcome = "pass", text: str = "as it should be") -> Run:
    """``finished`` passes, ``bit-exact`` has this outcome; the text is the same for each."""
    verdicts = (
        Verdict(check="finished", outcome="pass", text="4 of 4 ranks left with exit code 0"),
        Verdict(check="bit-exact", outcome=outcome, text=text, evidence={"seqs": [1, 2], "difference": 0.5}),
    )
    return dataclasses.replace(run, verdicts=verdicts)


@functools.cache
def whole() -> Run:
    return with_verdicts(history.reference())


@functools.cache
def collective() -> Run:
    part = Part(operation="all-reduce", algorithm="ring", bytes=MIB, cost=(6, 1.5), gang=Gang(schedules=ring(4, MIB)))
    return with_verdicts(collective_runs.run([part]))


def unfinished(run: Run, *parts: float) -> Iterator[Run]:
    """Prefixes of the history, as of a run that goes on or was cut off; without verdicts."""
    for part in parts:
        yield dataclasses.replace(history.prefix(run, int(part * len(run.history.events))), verdicts=())


def failed(run: Run) -> Run:
    end = {"outcome": "failed", "reason": "n2 could not be started again", "kind": "infrastructure"}
    return with_verdicts(history.changed(run, "run.end", value=end), "fail")


def minimal(run: Run) -> Run:
    """No event, no file, no document, no verdict."""
    return dataclasses.replace(
        run, history=History(), files=history.Files(), twin=None, extras={}, verdicts=(), directory=""
    )


def hostile(run: Run) -> Run:
    """Every text that a user, a node or a plugin can choose is hostile."""
    run = history.changed(run, "run.end", value={"outcome": "failed", "reason": HOSTILE, "kind": "finding"})
    trial = dataclasses.replace(run.trial, name=HOSTILE, params={HOSTILE: HOSTILE})
    findings = [{"text": HOSTILE, "seq": [1, 10**9], HOSTILE: HOSTILE}, {"text": [HOSTILE], "seq": HOSTILE}]
    verdict = Verdict(
        check=HOSTILE, outcome="fail", text=HOSTILE,
        evidence={HOSTILE: [HOSTILE], "text": {"a": HOSTILE}, "findings": findings},
    )  # fmt: skip
    documents = {"bed": HOSTILE, "reason": HOSTILE, "command": ["ccbed", HOSTILE]}
    extras = {
        **run.extras,
        "bundle.json": {**run.extras["bundle.json"], **documents},
        "fingerprint.json": {HOSTILE: HOSTILE},
    }
    run = _with_failed_rank(run)
    return dataclasses.replace(
        run, trial=trial, extras=extras, verdicts=(verdict,), directory=HOSTILE, files=HostileFiles(run.files)
    )


def _with_failed_rank(run: Run) -> Run:
    exits = run.history.of("rank.exit")
    return (
        history.changed(run, "rank.exit", value={**exits[0].value, "code": 1, "error": "z" * 5_000}) if exits else run
    )


class HostileFiles:
    """The files of a run, and in each log a traceback, the end of a code block of Markdown, and hostile text; or these lines."""

    def __init__(self, files: NodeFiles, lines: Sequence[str] = LOG) -> None:
        self._files, self._lines = files, lines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def log(self, node: str, rank: int, epoch: int) -> str:
        return "\n".join(self._lines)

    def paths(self) -> tuple[str, ...]:
        return (*self._files.paths(), f"nodes/{HOSTILE}/i1-e0/rank-0.log", "nodes/n0/i1-e0/rank-0.log")


# --- laws ---------------------------------------------------------------------------------------------------------------


def it_names_its_files_below_one_directory(render: Render) -> None:
    for path in {**render(whole()), **render(collective())}:
        parts = path.split("/")
        assert all(parts) and not {".", ".."} & set(parts), f"{path!r} leaves the directory"
        assert re.fullmatch(r"[\w.+ /-]+", path, re.ASCII), f"{path!r} is no plain path"
        assert PurePosixPath(path).suffix, f"{path!r} does not say what it is"


def it_returns_bytes_and_writes_nothing_itself(render: Render) -> None:
    for run in (whole(), collective()):
        with effects() as recorded:
            files = render(run)
        assert all(type(content) is bytes and content for content in files.values())
        assert recorded == []


def it_is_the_same_twice(render: Render) -> None:
    for run in (whole(), collective()):
        assert render(run) == render(copy.deepcopy(run))


def it_needs_nothing_from_outside(render: Render) -> None:
    for run in (whole(), collective(), hostile(whole())):
        for path, content in render(run).items():
            text = content.decode(errors="replace")
            assert not EXTERNAL.search(text), f"{path}: {EXTERNAL.search(text)}"


def it_survives_a_run_that_has_not_ended(render: Render) -> None:
    for run in (*unfinished(whole(), 0.0, 0.1, 0.4, 0.6, 0.9), *unfinished(collective(), 0.1, 0.9)):
        check_forms(render(run))


def it_survives_a_failed_run(render: Render) -> None:
    check_forms(render(failed(whole())))
    check_forms(render(failed(collective())))


def it_survives_a_minimal_run(render: Render) -> None:
    check_forms(render(minimal(whole())))
    odd: dict[str, Any] = {"plan.json": [], "bundle.json": "x", "fingerprint.json": None}
    check_forms(render(dataclasses.replace(minimal(whole()), extras=odd)))


def it_survives_hostile_text(render: Render) -> None:
    check_forms(render(hostile(whole())))
    check_forms(render(hostile(collective())))


def it_shows_the_verdict_of_the_bundle(render: Render) -> None:
    """Where it names a check at all: each outcome, and no verdict, give another file."""
    runs = [with_verdicts(whole(), outcome) for outcome in ("pass", "fail", "unknown")]
    rendered = [render(run) for run in (*runs, dataclasses.replace(whole(), verdicts=()))]
    named = [path for path, content in rendered[0].items() if b"bit-exact" in content]
    for path in named:
        versions = [files.get(path) for files in rendered]
        assert len(set(versions)) == len(versions), f"{path} names a check, but not its outcome"


LAWS: tuple[Callable[[Render], None], ...] = (
    it_names_its_files_below_one_directory, it_returns_bytes_and_writes_nothing_itself, it_is_the_same_twice,
    it_needs_nothing_from_outside, it_survives_a_run_that_has_not_ended, it_survives_a_failed_run,
    it_survives_a_minimal_run, it_survives_hostile_text, it_shows_the_verdict_of_the_bundle,
)  # fmt: skip


# --- forms of files -------------------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    """Fails on a tag that is closed out of order, and on anything that runs, except scripts that the page's own policy names."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.policy = ""
        self.kind = ""

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "script":
            return
        if self.kind == "application/json":
            json.loads(data)
            return
        digest = base64.b64encode(hashlib.sha256(data.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in self.policy, f"<script> that the policy does not name: {data[:60]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given.get("content") or ""
            assert self.policy.startswith("default-src 'none'"), self.policy
        self.kind = given.get("type") or ""
        assert tag not in ("iframe", "object", "embed"), f"<{tag}>"
        assert not [name for name, _ in attrs if name.startswith("on")], f"<{tag}> with a handler"
        assert not [value for _, value in attrs if (value or "").strip().lower().startswith("javascript:")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert [self.open.pop() if self.open else ""] == [tag], f"</{tag}> closes another element"


def check_forms(files: Mapping[str, bytes]) -> None:
    """Every file is what the end of its name says."""
    for path, content in files.items():
        check = FORMS.get(PurePosixPath(path).suffix)
        if check:
            check(content.decode())


def _html(text: str) -> None:
    page = _Page()
    page.feed(text)
    assert page.open == []


def _csv(text: str) -> None:
    rows = list(csv.reader(io.StringIO(text)))
    assert rows and len({len(row) for row in rows}) == 1, "rows of different lengths"


def _markdown(text: str) -> None:
    text = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)  # code is shown as it is
    text = re.sub(r"`[^`\n]*`", "", text)
    assert "<script" not in text
    assert not re.search(r"(?<!\\)\]\(\s*javascript:", text)
    assert not re.search(r"[\x00-\x08\x1b\u202e]", text), "control characters"


def _prometheus(text: str) -> None:
    sample = re.compile(r'[a-z_]+\{([a-z_]+="([^"\\\n]|\\.)*",?)*\} [0-9.e+-]+')
    wrong = [line for line in text.split("\n") if line and not line.startswith("# ") and not sample.fullmatch(line)]
    assert wrong == []


FORMS: Mapping[str, Callable[[str], Any]] = {
    ".html": _html, ".xml": ET.fromstring, ".json": json.loads, ".csv": _csv, ".md": _markdown, ".prom": _prometheus,
}  # fmt: skip


# --- effects --------------------------------------------------------------------------------------------------------------

_RECORDED: list[list[str]] = []
_NETWORK = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "urllib.Request")
#: Libraries keep caches of their own.
_CACHES = ("matplotlib", "fontconfig", "__pycache__")


@contextmanager
def effects() -> Iterator[list[str]]:
    """Files that are written, and programs and connections that are started, in the meantime."""
    _install()
    recorded: list[str] = []
    _RECORDED.append(recorded)
    try:
        yield recorded
    finally:
        _RECORDED.remove(recorded)


@functools.cache
def _install() -> None:
    """An audit hook cannot be removed; outside of ``effects`` it does nothing."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _RECORDED or not (event in _NETWORK or (event == "open" and _writes(arguments))):
        return
    for recorded in _RECORDED:
        recorded.append(f"{event} {arguments[0]}")


def _writes(arguments: tuple[Any, ...]) -> bool:
    path, mode = str(arguments[0]), arguments[1]
    return isinstance(mode, str) and bool(set(mode) & set("wax+")) and not any(name in path for name in _CACHES)
