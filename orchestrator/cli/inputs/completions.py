"""Holds the shell's completions. Each is click's ``shell_complete`` of a parameter; ``app/listing.py`` is loaded when the shell asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]


def _of(name: str, paths: Callable[[str], str] = lambda _: "") -> Completer:
    """The proposals of that name. ``paths``: for a word, ``file`` or ``dir`` where the shell completes these as well."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from ...app import listing

        line = listing.Line(word=incomplete, bed=ctx.params.get("bed"), runs_dir=ctx.params.get("runs_dir"))
        words = getattr(listing, name)(ctx.obj, line)
        items = [CompletionItem(word, help=text or None) for word, text in words.items() if word.startswith(incomplete)]
        kind = paths(incomplete)
        return [*items, CompletionItem(incomplete, type=kind)] if kind else items

    return complete


def _files(_word: str) -> str:
    return "file"


def _directories(word: str) -> str:
    return "dir" if "/" in word else ""


beds, nodes, hosts, bed_nodes, faults = map(_of, ("bed_names", "nodes", "hosts", "bed_nodes", "faults"))
runs, logs = (_of(name, _directories) for name in ("runs", "logs"))
inventories, beds_and_inventories, trials, suites = (
    _of(name, _files) for name in ("inventories", "beds_and_inventories", "trials", "suites")
)
