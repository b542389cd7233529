"""Pages beside the code: what they link and name exists, and they fit a screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.cli.main import VERBS
from orchestrator.core.spec import parse_trial

from .test_layout import ROOT, tracked

PAGES = [file for file in tracked() if file.suffix == ".md"]
#: Pages that a newcomer reads in one go, with their limit in lines.
ONE_SCREEN = dict.fromkeys(("run", "faults", "store", "trials"), 70)
#: Made by make bench.
MADE = ("tests/bench/out/",)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
_PATH = re.compile(r"`((?:orchestrator|tests|inventories|playbooks|images)/[\w./-]*\w/?|\w+\.py)`")


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = [path for path, _ in _LINK.findall(page.read_text()) if path]
    assert [path for path in links if not (page.parent / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_anchor_is_a_heading(page: Path) -> None:
    for path, anchor in _LINK.findall(page.read_text()):
        if anchor:
            target = (page.parent / path) if path else page
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor.removeprefix("#") in slugs, f"{path}{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_path_in_the_text_exists(page: Path) -> None:
    """But for files that CONTRIBUTING.md asks its reader to save, and what is made."""
    text = page.read_text()
    saved = {*re.findall(r"Save as\s+`([\w/.]+)`", text), *MADE}
    for name in set(_PATH.findall(text)) - saved:
        is_below = "/" not in name and any(ROOT.glob(f"*/**/{name}"))
        assert is_below or (ROOT / name).exists(), name


@pytest.mark.parametrize(("folder", "limit"), ONE_SCREEN.items())
def test_a_page_fits_a_screen(folder: str, limit: int) -> None:
    page = ROOT / "orchestrator" / folder / "README.md"
    assert len(page.read_text().splitlines()) <= limit


def test_the_page_of_the_command_line_lists_every_verb_once() -> None:
    table = (ROOT / "orchestrator/cli/README.md").read_text().split("\n\n")[1]
    listed = [verb for row in table.splitlines()[2:] for verb in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(VERBS)


def test_the_first_line_of_an_inventory_is_a_sentence_because_the_list_shows_it() -> None:
    lines = [file.read_text().splitlines()[0] for file in sorted((ROOT / "inventories").glob("*.yml"))]
    assert [line for line in lines if not re.fullmatch(r"# [A-Z0-9].*\.", line)] == []


def test_the_trial_of_the_page_is_a_trial() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "orchestrator/trials/README.md").read_text(), re.DOTALL)
    trial = parse_trial.parse(text, "page.yml", plugins.discover())
    assert [fault.fault for fault in trial.faults] == ["crash-node", "slow-node"]
