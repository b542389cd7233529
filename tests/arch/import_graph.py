"""The imports of the product as a graph, and its circles: groups of modules that reach each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

#: Module -> the modules that it imports.
Graph = Mapping[str, frozenset[str]]
Import = ast.Import | ast.ImportFrom
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
#: What a statement can lie in; no expression holds one.
BLOCK = (ast.stmt, ast.ExceptHandler, ast.match_case)


def graphs(texts: Mapping[str, str]) -> tuple[Graph, Graph]:
    """Imports when a module is loaded or its types are checked; and those together with the imports in its functions."""
    files = {name_of(file): file for file in texts if "user" not in PurePath(file).parts}
    statements = {name: list(imports(ast.parse(texts[file]))) for name, file in files.items()}
    loaded = {name: [node for node, lazy in nodes if not lazy] for name, nodes in statements.items()}
    every = {name: [node for node, _ in nodes] for name, nodes in statements.items()}
    return _graph(loaded, files), _graph(every, files)


def name_of(file: str) -> str:
    """``orchestrator.model.run`` of its file."""
    parts = PurePath(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(node: ast.AST, lazy: bool = False) -> Iterator[tuple[Import, bool]]:
    """Each import statement, and whether it lies in a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Import):
            yield child, lazy
        elif isinstance(child, BLOCK):
            yield from imports(child, lazy or isinstance(child, FUNCTION))


def _graph(statements: Mapping[str, Sequence[Import]], files: Mapping[str, str]) -> Graph:
    return {
        name: frozenset(target for node in nodes for target in _targets(node, _package(name, files[name]), files))
        - {name}
        for name, nodes in statements.items()
    }


def _package(module: str, file: str) -> str:
    return module if PurePath(file).name == "__init__.py" else module.rpartition(".")[0]


def _targets(node: Import, package: str, known: Mapping[str, str]) -> Iterator[str]:
    """The modules of the product that a statement loads, but for their packages."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
        return
    parents = package.split(".")
    base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
    origin = ".".join(filter(None, [base, node.module or ""]))
    for alias in node.names:
        target = f"{origin}.{alias.name}"
        yield from (name for name in (target if target in known else origin,) if name in known)


def circles(graph: Graph) -> Sequence[Sequence[str]]:
    """The groups of modules that reach each other, the largest first."""
    graph = _pruned(graph)
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph if name in reached[name]
    }
    return sorted((sorted(group) for group in groups), key=lambda group: (-len(group), group))


def _pruned(graph: Graph) -> Graph:
    """Without the modules that import no other or that no other imports, again and again: they lie in no circle."""
    imported = frozenset(target for targets in graph.values() for target in targets)
    inner = frozenset(name for name, targets in graph.items() if targets and name in imported)
    pruned = {name: graph[name] & inner for name in inner}
    return pruned if pruned == graph else _pruned(pruned)


def _reachable(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    pending = list(graph[start])
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(graph[name])
    return reached
