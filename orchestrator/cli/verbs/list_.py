"""List plugins, trials, runs and beds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from ...app import beds
from ...app.places import short_path
from ...model.errors import CcbedError
from ...model.plugin import Plugin
from ...plugins import KINDS
from ...store import beds as store
from ...store import index, shipped
from ...store.shipped import examples, suites, summary
from ..inputs import options
from ..inputs.session import Session

_WHAT = (*sorted(KINDS), "trials", "suites", "examples", "runs", "beds", "inventories")


@options.command()
@click.argument("what", required=False, type=click.Choice(_WHAT), metavar="[KIND]")
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, what: str | None, runs_dir: Path, as_json: bool) -> int:
    """List faults, checkers, algorithms, workloads, reports, trials, suites, examples, runs, beds or inventories (default: plugins)."""
    kinds = (what,) if what else tuple(kind for kind in _WHAT if kind not in ("runs", "beds", "inventories"))
    rows_by_kind = {kind: _rows(session, kind, runs_dir) for kind in kinds}
    if as_json:
        session.terminal.json(rows_by_kind[what] if what else rows_by_kind)
        return 0
    for kind, rows in rows_by_kind.items():
        _show(session, kind, rows, titled=what is None)
    return 0


def _rows(session: Session, kind: str, runs_dir: Path) -> list[dict[str, Any]]:
    if kind == "runs":
        entries = index.runs(runs_dir, nested=True)
        return [{"run": e.run, "trial": e.trial, "state": e.state, "directory": str(e.directory)} for e in entries]
    if kind == "beds":
        return [_bed(session, name) for name in store.names(session.state)]
    if kind == "inventories":
        return [_inventory(session, path) for path in shipped.inventories()]
    if kind == "trials":
        return [{"name": name, "summary": summary(Path(path))} for name, path in session.catalogue.trials.items()]
    if kind == "suites":
        return [{"name": name, "summary": summary(path)} for name, path in suites().items()]
    if kind == "examples":
        return [{"name": f"example:{name}", "summary": summary(path)} for name, path in examples().items()]
    folder: Mapping[str, Plugin] = getattr(session.catalogue, kind)
    return [_plugin(folder, name) for name in folder]


def _inventory(session: Session, path: Path) -> dict[str, Any]:
    """An inventory of this directory, or one that ccbed ships; ``state``: whether its bed is up."""
    file = shipped.find(path)
    beds_up = [bed for name in store.names(session.state) if (bed := beds.read(session, name))]
    is_up = any(bed.inventory and Path(bed.inventory).resolve() == file.resolve() for bed in beds_up)
    origin = "here" if path.exists() else "shipped"
    return {"inventory": path.as_posix(), "state": "up" if is_up else "-", "from": origin, "about": summary(file)}


def _bed(session: Session, name: str) -> dict[str, Any]:
    bed = beds.read(session, name)
    nodes = len(bed.nodes) if bed else 0
    return {"name": name, "nodes": nodes, "inventory": short_path(bed.inventory) if bed else ""}


def _plugin(folder: Mapping[str, Plugin], name: str) -> dict[str, Any]:
    try:
        plugin = folder[name]
    except CcbedError as error:
        return {"name": name, "summary": f"broken: {error}", "settings": [], "distribution": ""}
    params = getattr(plugin.module, "Params", None)
    return {
        "name": name,
        "summary": plugin.summary,
        "settings": [field.name for field in fields(params)] if params else [],
        "distribution": plugin.distribution,
    }


def _show(session: Session, kind: str, rows: list[dict[str, Any]], *, titled: bool) -> None:
    terminal = session.terminal
    if titled:
        terminal.line(terminal.style(kind, "head"))
    if not rows:
        terminal.line(f"  no {kind}")
        return
    columns = [name for name in rows[0] if name not in ("settings", "distribution", "directory")]
    if columns == ["name", "summary"]:
        width = max(len(row["name"]) for row in rows)
        for row in rows:
            settings = f" [{', '.join(row['settings'])}]" if row.get("settings") else ""
            origin = f" (of {row['distribution']})" if row.get("distribution") else ""
            terminal.line(f"  {row['name']:<{width}}  {row['summary']}{settings}{origin}")
    else:
        terminal.table([name.upper() for name in columns], [[row[name] for name in columns] for row in rows])
