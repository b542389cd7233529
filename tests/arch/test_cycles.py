"""No module imports itself by way of others, also where only a type is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from .test_layout import ROOT

PACKAGE = ROOT / "orchestrator"
Graph = Mapping[str, frozenset[str]]


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def graph() -> Graph:
    """Module -> the modules that it imports when it is loaded or when its types are checked; not inside of functions."""
    files = {name_of(file): file for file in PACKAGE.rglob("*.py") if "user" not in file.parts}
    return {name: frozenset(_imports(name, file, files)) - {name} for name, file in files.items()}


def _imports(module: str, file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in _outside_of_functions(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, [base, node.module or ""]))
            for alias in node.names:
                target = f"{origin}.{alias.name}"
                yield from (name for name in (target if target in known else origin,) if name in known)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _outside_of_functions(child)


def cycles(graph: Graph) -> list[list[str]]:
    """The groups of modules that reach each other."""
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph if name in reached[name]
    }
    return sorted(sorted(group) for group in groups)


def _reachable(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    pending = list(graph[start])
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(graph.get(name, ()))
    return reached


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycles(graph()) == []


def test_the_search_for_cycles_can_fail() -> None:
    assert cycles({"a": frozenset("b"), "b": frozenset("a"), "c": frozenset("a")}) == [["a", "b"]]
