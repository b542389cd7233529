"""What there is: plugins, trials, suites, examples, runs, beds, inventories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from ..model.errors import CcbedError
from ..model.frozen import dataclass
from ..model.plugin import Plugin
from ..plugins import KINDS
from ..store import beds as store
from ..store import index, shipped
from ..store.shipped import summary
from . import beds
from .places import short_path
from .requests import argument, runs_directory
from .session import Session

WHAT = (*sorted(KINDS), "trials", "suites", "examples", "runs", "beds", "inventories")
#: Column -> its value.
Row = Mapping[str, str | int | Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """The request of `ccbed list`. ``what``: None for all that ccbed and its plugins have."""

    what: str | None = argument(None, metavar="[KIND]", choices=WHAT)
    runs_dir: Path = runs_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The rows of each kind; ``only``: the kind that was asked for."""

    rows: Mapping[str, Sequence[Row]]
    only: str | None

    @property
    def document(self) -> Mapping[str, Sequence[Row]] | Sequence[Row]:
        return self.rows[self.only] if self.only else self.rows


def run(session: Session, request: ListRequest) -> Listed:
    """Return the rows of each kind that is asked for."""
    everything = (kind for kind in WHAT if kind not in ("runs", "beds", "inventories"))
    kinds = (request.what,) if request.what else everything
    return Listed(rows={kind: _rows(session, kind, request.runs_dir) for kind in kinds}, only=request.what)


def _rows(session: Session, kind: str, runs_dir: Path) -> Sequence[Row]:
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
        return [{"name": name, "summary": summary(path)} for name, path in shipped.suites().items()]
    if kind == "examples":
        return [{"name": f"example:{name}", "summary": summary(path)} for name, path in shipped.examples().items()]
    folder: Mapping[str, Plugin] = getattr(session.catalogue, kind)
    return [_plugin(folder, name) for name in folder]


def _inventory(session: Session, path: Path) -> Row:
    """An inventory of this directory, or one that ccbed ships; ``state``: whether its bed is up."""
    file = shipped.find(path)
    beds_up = [bed for name in store.names(session.state) if (bed := beds.read(session, name))]
    is_up = any(bed.inventory and Path(bed.inventory).resolve() == file.resolve() for bed in beds_up)
    origin = "here" if path.exists() else "shipped"
    return {"inventory": path.as_posix(), "state": "up" if is_up else "-", "from": origin, "about": summary(file)}


def _bed(session: Session, name: str) -> Row:
    bed = beds.read(session, name)
    nodes = len(bed.nodes) if bed else 0
    return {"name": name, "nodes": nodes, "inventory": short_path(bed.inventory) if bed else ""}


def _plugin(folder: Mapping[str, Plugin], name: str) -> Row:
    try:
        plugin = folder[name]
    except CcbedError as error:
        return {"name": name, "summary": f"broken: {error}", "settings": [], "distribution": ""}
    params = getattr(plugin.module, "Params", None)
    settings = [field.name for field in fields(params)] if params else []
    return {"name": name, "summary": plugin.summary, "settings": settings, "distribution": plugin.distribution}
