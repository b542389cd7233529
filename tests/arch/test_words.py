"""People read one word for each thing: texts of the product and its documentation are held against a table of words."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from .test_layout import ROOT, tracked

TABLE = tomllib.loads(Path(__file__).with_name("words.toml").read_text())
WORDS = TABLE["word"]
#: Files with prose as a whole, but for code in it.
PROSE = (".md", ".j2", ".1", ".yml")
#: Modules whose docstrings people read, by `ccbed list` and `--help`.
LISTED = re.compile(r"orchestrator/(\w+/)*(verbs|checkers|faults|workloads|algorithms)/\w+\.py")
#: Code within prose: fences that are no session, spans, links, tags, and fields of a template.
_CODE = re.compile(
    r"```(?!console).*?```|`[^`\n]*`|\]\([^)]*\)|\{[{%].*?[%}]\}|<[^>]*>|\\f[BI]|^(?: {4}|\t)[^\n]*$",
    re.DOTALL | re.MULTILINE,
)
_MENTION = re.compile(r"`[^`\n]*`|\{[\w.]+\}")


def _is_held(file: Path) -> bool:
    name = str(file.relative_to(ROOT))
    is_text = file.suffix == ".py" and name.startswith("orchestrator/")
    is_prose = file.suffix in PROSE and not name.startswith(("tests/", ".github/"))
    return (is_text or is_prose) and name != "CHANGELOG.md" and not _matches(name, TABLE["exempt"]["files"])


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _docstrings(tree: ast.Module, is_listed: bool) -> set[int]:
    """The docstrings that only readers of the code see."""
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    hidden = [node for node in nodes if not is_listed or not isinstance(node, ast.Module)]
    return {id(node.body[0].value) for node in hidden if node.body and isinstance(node.body[0], ast.Expr)}


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """(line, text) for each text of a file that people may read: prose, or literals with more than one word."""
    source = file.read_text()
    if file.suffix != ".py":
        blank = _CODE.sub(lambda match: "\n" * match[0].count("\n"), source)
        yield from enumerate(blank.splitlines(), 1)
        return
    tree = ast.parse(source)
    hidden = _docstrings(tree, bool(LISTED.fullmatch(str(file.relative_to(ROOT)))))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in hidden
            and " " in node.value.strip()
        ):
            yield node.lineno, _MENTION.sub("", node.value)


@functools.cache
def held() -> list[tuple[str, int, str]]:
    """(file, line, text) for each text that people may read."""
    files = [file for file in tracked() if _is_held(file)]
    return [(str(file.relative_to(ROOT)), line, text) for file in files for line, text in texts(file)]


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS, ids=lambda word: word["not"][0])
def test_people_read_one_word_for_each_thing(word: dict[str, list[str]]) -> None:
    unwanted = re.compile(rf"(?<![\w/-])({'|'.join(word['not'])})(?![\w/-]|\.\w)", re.IGNORECASE)
    allowed = re.compile("|".join(map(re.escape, word.get("phrases", ["\0"]))), re.IGNORECASE)
    lines = [
        f"{file}:{line}: {text.strip()[:160]}"
        for file, line, text in held()
        if unwanted.search(text)
        and unwanted.search(allowed.sub("", text))
        and not _matches(file, word.get("where", []))
    ]
    assert not lines, f"say {word['say']}:\n" + "\n".join(lines)


def test_the_table_exempts_files_that_exist() -> None:
    names = [str(file.relative_to(ROOT)) for file in tracked()]
    patterns = [*TABLE["exempt"]["files"], *(pattern for word in WORDS for pattern in word.get("where", []))]
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in names)] == []
