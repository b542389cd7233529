"""The imports of libraries with which a script begins, and the statement that ends them: nothing before it can change what they read.

Modules of the user count as part of the script: their own imports come in their place, and they must be as harmless.
"""

from __future__ import annotations

import ast
from importlib.machinery import PathFinder
from pathlib import Path

#: Decorators that do nothing but make another function or class.
DECORATORS = ("staticmethod", "classmethod", "property", "dataclass", "contextmanager", "torch.no_grad")


class Leading:
    """``imports``: statements; ``files``: the user's files that were read; ``end``: what ends them, and where; empty: nothing does."""

    def __init__(self, script: str, search_path: list[str]) -> None:
        """``search_path``: directories of the user's modules. Raises OSError, SyntaxError and ValueError."""
        self._search_path = search_path
        self.imports: list[str] = []
        self.files: list[str] = []
        self.end = ""
        self._read(script)

    def _read(self, file: str) -> None:
        if file in self.files:
            return
        self.files.append(file)
        for node in ast.parse(Path(file).read_bytes(), file).body:
            is_harmless = self._import(node) if isinstance(node, ast.Import | ast.ImportFrom) else _is_harmless(node)
            if not is_harmless:
                self.end = self.end or f"{Path(file).name}:{node.lineno}: {_shown(node)}".partition("\n")[0][:80]
            if self.end:
                return

    def _import(self, node: ast.Import | ast.ImportFrom) -> bool:
        """Note the imports of a statement; False if it imports what cannot be read here."""
        is_plain = isinstance(node, ast.Import)
        for single in [ast.Import(names=[name]) for name in node.names] if is_plain else [node]:
            name = single.names[0].name if isinstance(single, ast.Import) else single.module
            if name is None or (isinstance(single, ast.ImportFrom) and single.level):
                return False
            spec = PathFinder.find_spec(name.partition(".")[0], self._search_path)
            if spec is None:
                self.imports += [ast.unparse(single)] if name != "__future__" else []
                continue
            if not (spec.origin or "").endswith(".py") or spec.submodule_search_locations is not None:
                return False
            self._read(str(spec.origin))
            if self.end:
                return True
        return True


def _shown(node: ast.AST) -> str:
    """The text of a statement; strings in it may be secret."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
            part.value = "…"
    return ast.unparse(node)


def _is_harmless(node: ast.AST) -> bool:
    """Does a statement only define something, without a call?"""
    match node:
        case ast.Expr():
            return isinstance(node.value, ast.Constant)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _makes_no_call(node.args, node.returns) and _are_known(node.decorator_list)
        case ast.ClassDef():
            is_harmless = _makes_no_call(*node.bases, *node.keywords) and _are_known(node.decorator_list)
            return is_harmless and all(map(_is_harmless, node.body))
        case ast.Assign():
            return _makes_no_call(node.value) and all(isinstance(target, ast.Name) for target in node.targets)
        case ast.AnnAssign():
            return _makes_no_call(node.value, node.annotation) and isinstance(node.target, ast.Name)
    return isinstance(node, ast.Pass)


def _are_known(decorators: list[ast.expr]) -> bool:
    names = [node.func if isinstance(node, ast.Call) else node for node in decorators]
    arguments = [part for node in decorators if isinstance(node, ast.Call) for part in (*node.args, *node.keywords)]
    return all(ast.unparse(name) in DECORATORS for name in names) and _makes_no_call(*arguments)


def _makes_no_call(*nodes: ast.AST | None) -> bool:
    """Operators change something only for objects that a call has made."""
    return not any(isinstance(part, ast.Call) for node in nodes if node for part in ast.walk(node))
