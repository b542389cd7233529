"""Hosts and users' environments may have an older Python than the controller: what is imported there needs nothing newer."""

from __future__ import annotations

import ast
import io
import zipfile
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.model.requirements import HOST_PYTHON
from orchestrator.providers import archive
from orchestrator.store import rank_payload

PACKAGE = Path(plugins.__file__).parent
#: The watcher is imported in any Python that a training runs in.
WATCHER, WATCHER_PYTHON = "orchestrator/rank/watcher/", (3, 9)
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
    """The code of keeper and agent, and that of ranks."""
    with zipfile.ZipFile(io.BytesIO(archive.build())) as files:
        sent = {name: files.read(name) for name in files.namelist()}
    sent |= rank_payload.collect(PACKAGE, plugins.discover())
    return [(name, content.decode()) for name, content in sorted(sent.items()) if name.endswith(".py")]


def oldest(name: str) -> tuple[int, int]:
    return WATCHER_PYTHON if name.startswith(WATCHER) else HOST_PYTHON


#: Names and arguments that Python 3.10 added, for what must run on Python 3.9.
NEWER_THAN_3_9 = {
    "typing": {
        "ParamSpec",
        "TypeAlias",
        "TypeGuard",
        "Concatenate",
        "is_typeddict",
        "ParamSpecArgs",
        "ParamSpecKwargs",
    },
    "types": {"NoneType", "EllipsisType", "NotImplementedType", "UnionType"},
    "itertools": {"pairwise"},
    "contextlib": {"aclosing"},
    "inspect": {"get_annotations"},
    "dataclasses": {"KW_ONLY"},
    "sys": {"stdlib_module_names", "orig_argv"},
}
ARGUMENTS_3_9 = {"zip": {"strict"}, "dataclass": {"slots", "kw_only"}, "field": {"kw_only"}}
BUILTINS_3_9 = {"aiter", "anext", "EncodingWarning"}


def newer_than_3_9(text: str) -> list[str]:
    """What needs Python 3.10, beside its grammar; unions of types in calls as well, for they are evaluated."""
    names = []
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names += [item.name for item in node.names if item.name in NEWER_THAN_3_9.get(node.module or "", ())]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names += [node.attr] if node.attr in NEWER_THAN_3_9.get(node.value.id, ()) else []
        elif isinstance(node, ast.Name) and node.id in BUILTINS_3_9:
            names.append(node.id)
        elif isinstance(node, ast.Call):
            names += _newer_arguments(node)
    return names


def _newer_arguments(call: ast.Call) -> list[str]:
    name = ast.unparse(call.func).rpartition(".")[2]
    unions = [item for item in call.args[1:] if isinstance(item, ast.BinOp) and isinstance(item.op, ast.BitOr)]
    return [
        *(str(word.arg) for word in call.keywords if word.arg in ARGUMENTS_3_9.get(name, ())),
        *(ast.unparse(item) for item in unions if name in ("isinstance", "issubclass")),
    ]


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


def newer_names(text: str, version: tuple[int, int] = HOST_PYTHON) -> list[str]:
    """What the source uses that this Python lacks."""
    names = []
    for node in statements(ast.parse(text, feature_version=version)):
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
    names = {name for name, _ in sources()}
    assert {"orchestrator/node/agent/agent.py", "orchestrator/model/bed.py"} <= names
    assert {
        f"orchestrator/{path}" for path in ("rank/runtime/rank_main.py", "workloads/script.py", "algorithms/ring.py")
    } <= names


@pytest.mark.parametrize(("name", "text"), sources(), ids=[name for name, _ in sources()])
def test_what_is_sent_to_hosts_runs_on_their_oldest_python(name: str, text: str) -> None:
    assert newer_names(text, oldest(name)) == []


@pytest.mark.parametrize(
    "text", ["from typing import Self", "import typing\ntyping.Self", "import tomllib", "raise ExceptionGroup('', [])"]
)
def test_a_newer_name_is_noticed(text: str) -> None:
    assert newer_names(text)


def test_the_watcher_runs_on_python_3_9() -> None:
    newer = {name: newer_than_3_9(text) for name, text in sources() if name.startswith(WATCHER)}
    assert not any(newer.values()), newer


@pytest.mark.parametrize(
    "text",
    ["zip(a, b, strict=True)", "@dataclass(slots=True)\nclass A: pass", "isinstance(a, int | str)", "from types import NoneType",
     "itertools.pairwise(a)"],
)  # fmt: skip
def test_what_python_3_9_lacks_is_noticed(text: str) -> None:
    assert newer_than_3_9(text)
    assert not newer_names(text)


def test_the_grammar_of_python_3_10_is_noticed() -> None:
    with pytest.raises(SyntaxError):
        newer_names("match a:\n    case 1: pass", WATCHER_PYTHON)


def test_a_newer_grammar_is_noticed() -> None:
    with pytest.raises(SyntaxError):
        newer_names("type A = int")


def test_what_only_type_checkers_read_may_be_newer() -> None:
    assert newer_names("if TYPE_CHECKING:\n    from typing import Self") == []
