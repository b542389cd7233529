"""CONTRIBUTING.md: its plan of the house is the tree, and its examples are the files that other tests run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
_LINE = re.compile(r"^ {4}(  )?([a-z0-9_]+)/(?: +(.*))?$", re.MULTILINE)
_EXAMPLE = re.compile(r"Save as\s+`([\w/]+\.py)`:\n\n```python\n(.*?)```\n", re.DOTALL)
_BELOW = re.compile(r"\b([a-z0-9_]+)/")


def plan() -> dict[str, set[str]]:
    """Folder -> the names that its line gives to what is below it."""
    text = TEXT.split("## The plan of the house")[1].split("\n## ")[0]
    lines = _LINE.findall(text.split("What is above")[0])
    return {("orchestrator/" if indent else "") + name: set(_BELOW.findall(rest)) for indent, name, rest in lines}


def tree() -> dict[str, set[str]]:
    """The same, by the tracked files: packages at every depth, and the folders of tests."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    folders: dict[str, set[str]] = {}
    for name in filter(None, listed.split("\0")):
        parts = Path(name).parts[:-1]
        if not parts or parts[0].startswith("."):
            continue
        depth = 2 if parts[0] == "orchestrator" and len(parts) > 1 else 1
        below = folders.setdefault("/".join(parts[:depth]), set())
        if parts[0] == "orchestrator" and name.endswith(".py"):
            below.update(parts[depth:])
        elif parts[0] == "tests":
            below.update(parts[1:2])
    return folders


def test_the_plan_of_the_house_names_every_package_and_nothing_that_does_not_exist() -> None:
    assert plan().keys() == tree().keys() | {"orchestrator"}
    for folder, below in tree().items():
        named = plan()[folder]
        assert below - named == set(), f"{folder} has packages that the plan does not name"
        assert {name for name in named if not list((ROOT / folder).rglob(name))} == set(), f"{folder}: not in the tree"


def test_the_text_shows_the_files_as_they_are() -> None:
    """``CCBED_GOLDEN=write`` renews the text."""
    files = {file.name: file.read_text() for file in (ROOT / "tests" / "examples").rglob("*.py")}
    shown = {Path(path).name: text for path, text in _EXAMPLE.findall(TEXT)}
    assert shown.keys() == files.keys()
    if os.environ.get("CCBED_GOLDEN") == "write":
        renewed = _EXAMPLE.sub(lambda match: match[0].replace(match[2], files[Path(match[1]).name]), TEXT)
        (ROOT / "CONTRIBUTING.md").write_text(renewed)
    assert shown == files


def test_the_functions_that_decide_are_where_the_table_says() -> None:
    section = TEXT.split("### Where is it decided?")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ") and ".py" in line]
    missing = [word for row in rows for word in missing_words(row)]
    assert len(rows) >= 20 and not missing, f"not in the tree, or not in the file before it: {missing}"


def missing_words(row: str) -> Iterator[str]:
    """The files, and the functions of the file before each, that are not there."""
    content = ""
    for word in re.findall(r"`([^`]+)`", row):
        file = ROOT / "orchestrator" / word
        if word.endswith(".py"):
            content = file.read_text() if file.is_file() else ""
        if not (content if word.endswith(".py") else re.search(rf"\b(def|class) {word}\b", content)):
            yield word
