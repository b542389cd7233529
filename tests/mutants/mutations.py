"""The list of mutations, the lines that each one changes, and the tests that run these lines. No effects but reading files."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST, SURVIVORS = Path(__file__).with_name("mutations.toml"), Path(__file__).with_name("survivors.txt")
#: CPU seconds of tests, as recorded, that are run for a mutation at most.
TESTS_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """``text`` in ``file`` becomes ``replacement``; see the head of mutations.toml."""

    id: str
    file: str
    text: str
    replacement: str
    breaks: str
    tests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveringTest:
    """A test function, its recorded CPU seconds, and the lines that it runs: file -> line numbers."""

    name: str
    seconds: float
    lines: Mapping[str, frozenset[int]]


def read(file: Path = LIST) -> tuple[Mutation, ...]:
    items = tomllib.loads(file.read_text())["mutation"]
    return tuple(Mutation(**{**item, "tests": tuple(item.get("tests", ()))}) for item in items)


def survivors(file: Path = SURVIVORS) -> Mapping[str, str]:
    """Mutation -> how it survives. Each line of the file is an id, a tab and the result."""
    text = file.read_text() if file.exists() else ""
    lines = (line.partition("\t") for line in text.splitlines() if not line.startswith("#"))
    return {id: result for id, _, result in lines}


def apply(mutation: Mutation, source: str) -> str:
    """Raises ValueError unless the text occurs once and the result is Python."""
    if (count := source.count(mutation.text)) != 1:
        raise ValueError(f"{mutation.id}: its text occurs {count} times in {mutation.file}, must be once")
    mutated = source.replace(mutation.text, mutation.replacement)
    ast.parse(mutated)
    return mutated


def changed_lines(source: str, text: str) -> range:
    """The lines of the innermost statement that holds the text, without the statements in its body."""
    first = source[: source.index(text)].count("\n") + 1
    last = first + text.count("\n")
    spans = (_own_lines(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt))
    holding = [span for span in spans if first in span]
    innermost = min(holding, key=len, default=range(first, first + 1))
    return range(innermost.start, max(innermost.stop, last + 1))


def is_run_at_import(source: str, line: int) -> bool:
    """Whether the line lies in no function's body, so that the first test that imports the module seems to run it."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return not any(node.body[0].lineno <= line <= (node.end_lineno or 0) for node in functions)


def read_map(folder: Path) -> tuple[CoveringTest, ...]:
    return tuple(
        CoveringTest(name=name, seconds=entry["seconds"], lines={f: frozenset(n) for f, n in entry["lines"].items()})
        for file in sorted(folder.glob("*.json"))
        for name, entry in json.loads(file.read_text()).items()
    )


def covering(mutation: Mutation, source: str, known: Iterable[CoveringTest]) -> tuple[str, ...]:
    """The tests to run, the cheapest first: those that the list names, else those that run the changed lines.

    Of a line that is run at import these are all tests that run any line of its file.
    """
    if mutation.tests:
        return mutation.tests
    lines = frozenset(changed_lines(source, mutation.text))
    is_global = is_run_at_import(source, min(lines))
    touching = [test for test in known if is_global or not lines.isdisjoint(test.lines.get(mutation.file, ()))]
    return tuple(_affordable(test for test in touching if test.lines.get(mutation.file)))


def _affordable(tests: Iterable[CoveringTest]) -> Iterator[str]:
    spent_s = 0.0
    for test in sorted(tests, key=lambda test: (test.seconds, test.name)):
        if spent_s and spent_s + test.seconds > TESTS_S:
            return
        spent_s += test.seconds
        yield test.name


def _own_lines(node: ast.stmt) -> range:
    body = getattr(node, "body", None)
    end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return range(node.lineno, max(end, node.lineno) + 1)
