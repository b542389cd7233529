"""Names of variables, functions and classes say what a value is: placeholders that could stand for anything are rejected."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_layout import ROOT, sources

#: Name them by their kind: ``matches``, ``message``, ``node``, ``request``, ``status``, ``prefetch``, ``duplicate``.
PLACEHOLDERS = {
    "found", "told", "tell", "tells", "telling", "said",
    "one", "ones", "each", "mine", "whoever", "nobody", "somebody",
    "asked", "asking", "ahead", "here", "there", "around", "surroundings",
    "look", "looking", "looks", "seen", "handed", "brought", "carrying",
    "door", "lining_up", "blame", "alike", "placing", "wording", "habits", "allot",
}  # fmt: skip

#: The fields of payloads are keys of the history, and stay as they are.
KEYS_OF_FILES = "orchestrator/model/events/"


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that a module gives a name to. Keys of files and keywords of a call are none of these."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def placeholders(text: str) -> list[tuple[int, str]]:
    return [(line, name) for line, name in bound_names(ast.parse(text)) if name.strip("_").lower() in PLACEHOLDERS]


def test_no_name_is_a_placeholder() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources()
        if not str(path.relative_to(ROOT)).startswith(KEYS_OF_FILES)
        for line, name in placeholders(path.read_text())
    ]
    assert wrong == []


def test_no_module_is_named_by_a_placeholder() -> None:
    assert [str(path) for path in sources() if Path(path).stem in PLACEHOLDERS] == []


def test_placeholders_are_noticed() -> None:
    text = "def told(one):\n    for each in one:\n        found = each\n    self.seen = [mine for mine in found]\n"
    names = ["each", "found", "mine", "one", "seen", "told"]
    assert sorted(name for _, name in placeholders(text)) == names
    assert placeholders("import json as codec\nrow = {'one': 1}\nprint(end='')\nstart(found=row)\n") == []


#: A docstring that begins with one of these leaves its subject to the reader.
OPENINGS = {
    "about", "above", "after", "against", "along", "among", "as", "at", "because", "before", "behind", "below", "beside", "between",
    "beyond", "by", "despite", "during", "except", "for", "from", "how", "if", "in", "inside", "into", "like", "of", "on", "once", "over",
    "per", "since", "than", "through", "till", "to", "toward", "towards", "under", "unless", "unlike", "until", "upon", "via", "what",
    "when", "where", "whether", "which", "while", "who", "whom", "whose", "why", "with", "within", "without",
}  # fmt: skip


@pytest.mark.slow
def test_no_docstring_begins_with_a_preposition_or_a_question_word() -> None:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    wrong = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in sources()
        if path.is_relative_to(ROOT / "orchestrator")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented) and (text := ast.get_docstring(node))
        if text.split()[0].rstrip(",:.").lower() in OPENINGS
    ]
    assert wrong == []
