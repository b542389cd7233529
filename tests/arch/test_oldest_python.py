"""Hosts may have an older Python than the controller: what is sent to them imports nothing newer."""

from __future__ import annotations

import ast
import io
import zipfile

import pytest

from orchestrator.providers import archive

OLDEST = (3, 10)
#: Names of the standard library that Python 3.11 to 3.13 added.
NEWER = {
    "typing": {
        "Self", "Never", "LiteralString", "Required", "NotRequired", "TypeVarTuple", "Unpack", "assert_never", "assert_type",
        "reveal_type", "clear_overloads", "get_overloads", "dataclass_transform", "override", "TypeAliasType", "ReadOnly",
        "TypeIs", "NoDefault", "get_protocol_members", "is_protocol",
    },
    "enum": {"StrEnum", "ReprEnum", "EnumCheck", "FlagBoundary", "verify", "member", "nonmember", "global_enum"},
    "datetime": {"UTC"},
    "contextlib": {"chdir"},
    "asyncio": {"TaskGroup", "Runner", "timeout", "timeout_at", "Barrier"},
    "itertools": {"batched"},
    "hashlib": {"file_digest"},
    "math": {"cbrt", "exp2", "sumprod", "fma"},
    "operator": {"call"},
    "inspect": {"getmembers_static", "markcoroutinefunction", "BufferFlags"},
    "copy": {"replace"},
    "warnings": {"deprecated"},
}  # fmt: skip
MODULES = {"tomllib", "wsgiref.types"}
BUILTINS = {"ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError"}


def sources() -> list[tuple[str, str]]:
    with zipfile.ZipFile(io.BytesIO(archive.build())) as files:
        return [(name, files.read(name).decode()) for name in files.namelist() if name.endswith(".py")]


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def statements(tree: ast.AST) -> list[ast.AST]:
    """Every node that runs on a host: bodies of ``if TYPE_CHECKING`` do not."""
    nodes, pending = [], [tree]
    while pending:
        node = pending.pop()
        nodes.append(node)
        pending += node.orelse if is_for_type_checkers(node) else ast.iter_child_nodes(node)  # type: ignore[attr-defined]
    return nodes


def newer_names(text: str) -> list[str]:
    """What the source uses that the oldest Python lacks."""
    names = []
    for node in statements(ast.parse(text, feature_version=OLDEST)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names += [
                f"{node.module}.{item.name}" for item in node.names if item.name in NEWER.get(node.module or "", ())
            ]
            names += [str(node.module)] if node.module in MODULES else []
        elif isinstance(node, ast.Import):
            names += [item.name for item in node.names if item.name in MODULES]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names += [f"{node.value.id}.{node.attr}"] if node.attr in NEWER.get(node.value.id, ()) else []
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            names.append(node.id)
    return names


def test_there_are_sources() -> None:
    assert len(sources()) > 50


@pytest.mark.parametrize(("name", "text"), sources(), ids=[name for name, _ in sources()])
def test_what_is_sent_to_hosts_runs_on_their_oldest_python(name: str, text: str) -> None:
    assert newer_names(text) == []


@pytest.mark.parametrize(
    "text", ["from typing import Self", "import typing\ntyping.Self", "import tomllib", "raise ExceptionGroup('', [])"]
)
def test_a_newer_name_is_noticed(text: str) -> None:
    assert newer_names(text)


def test_a_newer_grammar_is_noticed() -> None:
    with pytest.raises(SyntaxError):
        newer_names("type A = int")


def test_what_only_type_checkers_read_may_be_newer() -> None:
    assert newer_names("if TYPE_CHECKING:\n    from typing import Self") == []
