"""A real browser that opens a page on a phone and a desk, light and dark, and reports what is wrong with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
WIDTHS = (400, 1280)
SCHEMES = ("light", "dark")
SCRIPT = (Path(__file__).parent / "browser.js").read_text()
#: A directory in which the screenshots stay, for people who look at them.
SCREENSHOTS = os.environ.get("CCBED_SCREENSHOTS")


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was seen of a page at one width and scheme. ``problems``: all of them, as texts; ``ground``: colour of the page."""

    problems: tuple[str, ...]
    elements: int
    ground: str
    screenshot: bytes


@dataclass(frozen=True, kw_only=True)
class Browser:
    """``browser``: of playwright."""

    browser: Any

    @contextmanager
    def page(self, file: Path, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
        """An open page of playwright; raises AssertionError at its end if the page wrote an error on the console."""
        problems: list[str] = []
        with self._opened(file, width, scheme, problems) as page:
            yield page
        assert problems == []

    def inspect(self, file: Path, width: int, scheme: str) -> Inspection:
        """Open it with every fold open, and check widths, console, contrast and accessibility."""
        from axe_playwright_python.sync_playwright import Axe

        problems: list[str] = []
        with self._opened(file, width, scheme, problems) as page:
            screenshot = page.screenshot(full_page=True, animations="disabled")
            page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
            problems += page.evaluate(SCRIPT)
            for violation in Axe().run(page).response["violations"]:
                for node in violation["nodes"][:3]:
                    problems.append(f"{violation['id']}: {node['failureSummary']}: {node['html'][:200]}")
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            elements = page.evaluate("document.querySelectorAll('*').length")
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            (Path(SCREENSHOTS) / f"{file.parent.name}-{file.stem}-{width}-{scheme}.png").write_bytes(screenshot)
        return Inspection(problems=tuple(problems), elements=elements, ground=ground, screenshot=screenshot)

    @contextmanager
    def _opened(self, file: Path, width: int, scheme: str, problems: list[str]) -> Iterator[Any]:
        context = self.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        try:
            page = context.new_page()
            page.set_default_timeout(120_000)
            page.on("console", lambda message: problems.append(f"console: {message.type}: {message.text}"))
            page.on("pageerror", lambda error: problems.append(f"script: {error}"))
            page.on("request", lambda request: problems.extend(_foreign(request.url)))
            page.goto(file.resolve().as_uri())
            yield page
        finally:
            context.close()


def _foreign(url: str) -> list[str]:
    return [] if url.startswith(("file:", "data:")) else [f"asks for {url}"]


@contextmanager
def opened() -> Iterator[Browser]:
    """Debian's chromium, driven by playwright; no other browser is downloaded."""
    from playwright import sync_api

    with sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=900_000
        )
        try:
            yield Browser(browser=chromium)
        finally:
            chromium.close()


def check(browser: Browser, file: Path) -> Inspection:
    """Every width and scheme. Raises AssertionError with all problems; returns what the widest dark page has."""
    inspections = {(width, scheme): browser.inspect(file, width, scheme) for width in WIDTHS for scheme in SCHEMES}
    problems = [
        f"{width} {scheme}: {text}"
        for (width, scheme), inspection in inspections.items()
        for text in inspection.problems
    ]
    assert not problems, "\n".join(problems)
    assert len({inspection.ground for inspection in inspections.values()}) == len(SCHEMES), "dark is dark"
    return inspections[WIDTHS[-1], SCHEMES[-1]]
