"""Text of ranks, hosts and bundles: no control character reaches the terminal, no markup the reports."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.model.verdict import Verdict
from orchestrator.reports import html, junit, summary
from orchestrator.store import unpack

from ..unit import run_builder

pytestmark = pytest.mark.attack

BUNDLE = Path(__file__).parents[1] / "golden" / "bundles" / "format-1-failover.tar.gz"
ESCAPES = "\x1b[2J\x1b]0;title\x07\x1b[32mPASS\x1b[0m\x08\r\x9b31m\u202e\ud800\x7f\x00"
MARKUP = "<script>alert(1)</script>'\" onload=x <img src=x> [a](javascript:x) ![b](http://x) `c` **d** | e & {{ 7*7 }}"


def printed(colour: bool) -> tuple[terminal.Terminal, io.StringIO]:
    out = io.StringIO()
    return terminal.Terminal(out=out, err=out, colour=colour), out


def controls(text: str) -> set[str]:
    return {
        character
        for character in text
        if (ord(character) < 32 and character != "\n")
        or 126 < ord(character) < 160
        or 0x202A <= ord(character) < 0x202F
    }


@pytest.mark.parametrize("colour", [False, True])
def test_no_way_of_printing_passes_a_control_character_on(colour: bool) -> None:
    to, out = printed(colour)
    to.line(f"a {ESCAPES}")
    to.lines([ESCAPES, f"b {ESCAPES}"])
    to.block(f"log {ESCAPES}\n")
    to.table(("head", ESCAPES), [(ESCAPES, "c"), ("1", "2")])
    to.error([f"d {ESCAPES}"], f"hint {ESCAPES}")
    to.warn(ESCAPES)
    to.json({"x": ESCAPES})
    text = out.getvalue()
    text.encode()
    assert controls(text) <= ({"\x1b"} if colour else set())
    assert "\\x1b[2J" in text and "\x1b[2J" not in text and "\x1b]0;" not in text


def test_the_colours_of_a_text_are_not_those_of_ccbed() -> None:
    to, out = printed(colour=True)
    to.line(f"{to.style('FAIL', 'FAIL')} because {ESCAPES}")
    assert out.getvalue().startswith("\x1b[31m\x1b[1mFAIL\x1b[0m because \\x1b[2J")
    assert out.getvalue().count("\x1b[32m") == 0


def test_a_status_line_stays_on_its_line() -> None:
    out = io.StringIO()
    terminal.Terminal(out=out, err=out, live=True).status(f"{ESCAPES}\nforged")
    assert out.getvalue().startswith("\r\x1b[2K")
    assert controls(out.getvalue().removeprefix("\r\x1b[2K")) == set() and "\n" not in out.getvalue()


def test_logs_of_a_bundle_are_printed_without_control_characters() -> None:
    with unpack.unpacked(BUNDLE) as directory:
        next((directory / "nodes/n0").rglob("rank-0.log")).write_bytes(ESCAPES.encode(errors="replace") + b"\xff\n")
        out = io.StringIO()
        own_session = terminal_session.Session(state=directory.parent, terminal=terminal.Terminal(out=out, err=out))
        assert main.run(["logs", str(directory), "--rank", "0"], own_session) == 0
        assert controls(out.getvalue()) == set() and "\\x1b[2J" in out.getvalue()


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_no_report_takes_text_for_markup() -> None:
    clean, text = run_builder.run(), MARKUP + ESCAPES
    verdicts = (Verdict(check=text, outcome="fail", text=text, evidence={text: [text], "b": {text: text}}),)
    events = [
        replace(event, node=event.node and text, value={**event.value, "message": text, "reason": text})
        for event in clean.history.events
    ]
    extras = {
        **clean.extras,
        "bundle.json": {"command": text, "reason": text, "format": 2},
        "fingerprint.json": {text: text, "torch": text},
    }
    run = replace(
        clean, verdicts=verdicts, extras=extras, trial=replace(clean.trial, name=text, params={text: text}),
        history=replace(clean.history, events=tuple(events)), directory=f"runs/{text}",
    )  # fmt: skip
    rendered, before = Page(), Page()
    rendered.feed(html.render(run)["index.html"].decode())
    before.feed(html.render(clean)["index.html"].decode())
    assert (
        rendered.tags.count("script") == before.tags.count("script")
        and not rendered.handlers
        and "img" not in rendered.tags
    )
    ET.fromstring(junit.render(run)["junit.xml"])
    page = summary.render(run)["summary.md"].decode()
    page = re.sub(r"`[^`]*`", "", page.replace("\\`", ""))  # what stands in backticks is no markup
    assert "<script" not in page and not re.search(r"(?<!\\)\]\(", page) and not re.search(r"!\[", page)
    assert controls(page) == set()


def test_check_judges_on_a_medium_that_is_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with unpack.unpacked(BUNDLE) as directory:
        mount = f"mount --bind {directory} {directory}; mount -o remount,ro,bind {directory}"
        script = f"{mount}; exec '{sys.executable}' -m orchestrator.cli check {directory}"
        before = (directory / "verdicts.json").read_bytes()
        done = subprocess.run(
            ["unshare", "--mount", "--map-root-user", "sh", "-ec", script],
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "UNKNOWN" in done.stdout, "a bundle of format 1"
        assert "not saved" in done.stdout and "Read-only file system" in done.stdout
        assert (directory / "verdicts.json").read_bytes() == before
