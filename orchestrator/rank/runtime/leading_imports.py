"""The imports of libraries with which a script begins, and the statement that ends them: nothing before it can change what they read.

Modules of the user count as part of the script: their own imports come in their place, and they must be as harmless.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from ...model.frozen import dataclass

#: Decorators that do nothing but make another function or class.
DECORATORS = (
    "staticmethod", "classmethod", "property", "dataclass", "dataclasses.dataclass", "contextmanager", "contextlib.contextmanager",
    "cache", "functools.cache", "torch.no_grad", "torch.inference_mode",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """``imports``: statements, each with one name; ``files``: the user's files that were read; ``end``: what ends them, and where."""

    imports: tuple[str, ...]
    files: tuple[str, ...]
    end: str


def find(script: str, search_path: Iterable[str]) -> Leading:
    """Read a script. ``search_path``: directories of the user's modules. Raises OSError, SyntaxError and ValueError."""
    reader = _Reader(list(search_path))
    end = reader.read(script)
    return Leading(imports=tuple(reader.imports), files=tuple(reader.files), end=end)


class _Reader:
    def __init__(self, search_path: list[str]) -> None:
        self._search_path = search_path
        self.imports: list[str] = []
        self.files: list[str] = []

    def read(self, file: str) -> str:
        """Add the imports of a file; what ends them, empty if nothing does."""
        if file in self.files:
            return ""
        self.files.append(file)
        for node in ast.parse(Path(file).read_bytes(), file).body:
            end = self._import(node) if isinstance(node, ast.Import | ast.ImportFrom) else not _is_harmless(node)
            if end:
                return end if isinstance(end, str) else f"{Path(file).name}:{node.lineno}: {_short(node)}"
        return ""

    def _import(self, node: ast.Import | ast.ImportFrom) -> str | bool:
        if isinstance(node, ast.ImportFrom) and (node.level or node.module is None):
            return True
        for single in _one_by_one(node):
            name = (single.module or "") if isinstance(single, ast.ImportFrom) else single.names[0].name
            spec = PathFinder.find_spec(name.partition(".")[0], self._search_path)
            if spec is None:
                self.imports.append(ast.unparse(single))
            elif spec.origin is None or not spec.origin.endswith(".py") or spec.submodule_search_locations is not None:
                return True
            elif end := self.read(spec.origin):
                return end
        return False


def _one_by_one(node: ast.Import | ast.ImportFrom) -> Iterator[ast.Import | ast.ImportFrom]:
    if isinstance(node, ast.Import):
        yield from (ast.Import(names=[name]) for name in node.names)
    elif node.module != "__future__":
        yield node


def _is_harmless(node: ast.AST) -> bool:
    """Does a statement only define something, without a call?"""
    match node:
        case ast.Expr():
            return isinstance(node.value, ast.Constant)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _are_known(node.decorator_list) and not _calls(node.args, node.returns)
        case ast.ClassDef():
            bases = (*node.bases, *node.keywords)
            return _are_known(node.decorator_list) and not _calls(*bases) and all(map(_is_harmless, node.body))
        case ast.Assign():
            return all(isinstance(target, ast.Name) for target in node.targets) and not _calls(node.value)
        case ast.AnnAssign():
            return isinstance(node.target, ast.Name) and not _calls(node.value, node.annotation)
    return isinstance(node, ast.Pass)


def _are_known(decorators: Iterable[ast.expr]) -> bool:
    names = [decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in decorators]
    arguments = (part for call in decorators if isinstance(call, ast.Call) for part in (*call.args, *call.keywords))
    return all(ast.unparse(name) in DECORATORS for name in names) and not _calls(*arguments)


def _calls(*nodes: ast.AST | None) -> bool:
    """May an expression change anything? Operators do so only for objects that a call has made."""
    return any(isinstance(part, ast.Call) for node in nodes if node is not None for part in ast.walk(node))


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= 60 else f"{text[:59]}…"
