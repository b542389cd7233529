"""What the shell completes: beds, nodes, runs, trials and plugins.

Each function is click's ``shell_complete`` of a parameter. What they need is imported when the shell asks: every verb has some.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...store import shipped

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: The newest runs that are completed.
_RUNS = 50


def beds(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _matching(_beds(ctx), incomplete)


def beds_and_inventories(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [*beds(ctx, param, incomplete), *inventories(ctx, param, incomplete)]


def inventories(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    known = [
        item for path in shipped.inventories() for item in _items(path.as_posix(), shipped.summary(shipped.find(path)))
    ]
    return [*(item for item in known if item.value.startswith(incomplete)), *_files(incomplete)]


def nodes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The nodes of the bed that the line names, or of all beds."""
    named = ctx.params.get("bed")
    names = (named,) if named else _beds(ctx)
    return _matching(dict.fromkeys(node for bed in names for node in _node_names(ctx, bed)), incomplete)


def hosts(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The hosts of the bed that the line names, or of all beds; behind a comma the next one."""
    from ...core.bed import selection
    from ...store import beds as store

    named = ctx.params.get("bed")
    specs = [store.read(ctx.obj.state, bed) for bed in ((named,) if named else _beds(ctx))]
    head, comma, _ = incomplete.rpartition(",")
    names = dict.fromkeys(host for spec in specs if spec for host in selection.host_names(spec))
    return _matching((f"{head}{comma}{name}" for name in names), incomplete)


def bed_nodes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """``local/n0``, and ``n0`` where one bed is up."""
    names = _beds(ctx)
    qualified = [f"{bed}/{node}" for bed in names for node in _node_names(ctx, bed)]
    bare = _node_names(ctx, names[0]) if len(names) == 1 else ()
    return _matching([*bare, *qualified], incomplete)


def logs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    keepers = [f"{bed}/keeper" for bed in _beds(ctx)]
    of_nodes = [item for item in bed_nodes(ctx, param, incomplete) if "/" in item.value]
    return [*runs(ctx, param, incomplete), *of_nodes, *_matching(keepers, incomplete)]


def runs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """``latest``, and the newest runs by the end of their name; by the whole name once that is begun."""
    from ...store import bundle, index

    directory = Path(ctx.params.get("runs_dir") or "runs")
    entries = index.runs(directory, nested=True)[-_RUNS:][::-1]
    items = _items(bundle.LATEST, "the newest run") if entries else []
    for entry in entries:
        text = f"{entry.trial}, {entry.state}"
        items += _items(entry.run, text) if incomplete.startswith("20") else _items(entry.run.rpartition("-")[2], text)
    return [*(item for item in items if item.value.startswith(incomplete)), *_directories(incomplete)]


def trials(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    known = {name: shipped.summary(Path(path)) for name, path in ctx.obj.catalogue.trials.items()}
    known |= {f"example:{name}": shipped.summary(path) for name, path in shipped.examples().items()}
    items = [item for name, text in known.items() for item in _items(name, text)]
    return [*(item for item in items if item.value.startswith(incomplete)), *_files(incomplete)]


def suites(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    items = [item for name, path in shipped.suites().items() for item in _items(name, shipped.summary(path))]
    return [*(item for item in items if item.value.startswith(incomplete)), *_files(incomplete)]


def faults(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    folder = ctx.obj.catalogue.faults
    return [item for name in folder if name.startswith(incomplete) for item in _items(name, folder[name].summary)]


def _beds(ctx: click.Context) -> tuple[str, ...]:
    from ...store import beds as store

    return tuple(store.names(ctx.obj.state))


def _node_names(ctx: click.Context, bed: str) -> tuple[str, ...]:
    from ...store import beds as store

    spec = store.read(ctx.obj.state, bed)
    return tuple(node.name for node in spec.nodes) if spec else ()


def _matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [item for name in names if name.startswith(incomplete) for item in _items(name, "")]


def _items(value: str, text: str, *, kind: str = "plain") -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(value, type=kind, help=text or None)]


def _files(incomplete: str) -> list[CompletionItem]:
    return _items(incomplete, "", kind="file")


def _directories(incomplete: str) -> list[CompletionItem]:
    return _items(incomplete, "", kind="dir") if "/" in incomplete else []
