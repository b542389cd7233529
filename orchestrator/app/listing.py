"""Lists plugins, trials, suites, examples, runs, beds and inventories; as rows, and as words that a shell proposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from ..core.bed import selection
from ..model.bed import BedSpec
from ..model.errors import CcbedError
from ..model.frozen import dataclass
from ..model.plugin import Plugin
from ..plugins import KINDS
from ..store import bed_files as store
from ..store import bundle, index, shipped
from ..store.shipped import summary
from . import beds
from .places import short_path
from .requests import argument, runs_directory
from .session import Session

WHAT = (*sorted(KINDS), "trials", "suites", "examples", "runs", "beds", "inventories")
#: Column -> its value.
Row = Mapping[str, str | int | Sequence[str]]
#: Word -> the text about it.
Words = Mapping[str, str]
#: The newest runs that are proposed.
_RUNS = 50


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
    if kind in ("trials", "suites", "examples"):
        return [{"name": name, "summary": text} for name, text in _summaries(session, kind).items()]
    folder: Mapping[str, Plugin] = getattr(session.catalogue, kind)
    return [_plugin(folder, name) for name in folder]


def _summaries(session: Session, kind: str) -> Words:
    """Trial, suite or example -> the first line of its file."""
    trials: Mapping[str, str | Path] = session.catalogue.trials
    files = {"trials": trials, "suites": shipped.suites(), "examples": shipped.examples()}[kind]
    head = "example:" if kind == "examples" else ""
    return {f"{head}{name}": summary(Path(path)) for name, path in files.items()}


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


# --- words that a shell proposes ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The words that stand on a line already, and the ``word`` that is begun."""

    word: str
    bed: str | None = None
    runs_dir: Path | None = None


def bed_names(session: Session, _line: Line) -> Words:
    return dict.fromkeys(store.names(session.state), "")


def beds_and_inventories(session: Session, line: Line) -> Words:
    return {**bed_names(session, line), **inventories(session, line)}


def inventories(_session: Session, _line: Line) -> Words:
    return {path.as_posix(): summary(shipped.find(path)) for path in shipped.inventories()}


def nodes(session: Session, line: Line) -> Words:
    return {node.name: "" for bed in _named_beds(session, line.bed) for node in bed.nodes}


def hosts(session: Session, line: Line) -> Words:
    """The hosts of the named bed, or of all; the next one behind a comma."""
    head, comma, _ = line.word.rpartition(",")
    names = (host for bed in _named_beds(session, line.bed) for host in selection.host_names(bed))
    return {f"{head}{comma}{name}": "" for name in names}


def bed_nodes(session: Session, _line: Line) -> Words:
    """``local/n0``, and ``n0`` where one bed is up."""
    known = _named_beds(session, None)
    bare = [node.name for bed in known for node in bed.nodes] if len(known) == 1 else []
    return dict.fromkeys([*bare, *(f"{bed.name}/{node.name}" for bed in known for node in bed.nodes)], "")


def logs(session: Session, line: Line) -> Words:
    of_nodes = [name for name in bed_nodes(session, line) if "/" in name]
    keepers = [f"{bed}/keeper" for bed in store.names(session.state)]
    return {**runs(session, line), **dict.fromkeys([*of_nodes, *keepers], "")}


def runs(_session: Session, line: Line) -> Words:
    """``latest``, and the newest runs by the end of their name; by the whole name once that is begun."""
    entries = index.runs(Path(line.runs_dir or "runs"), nested=True)[-_RUNS:][::-1]
    latest = {bundle.LATEST: "the newest run"} if entries else {}
    is_whole = line.word.startswith("20")
    return latest | {
        entry.run if is_whole else entry.run.rpartition("-")[2]: f"{entry.trial}, {entry.state}" for entry in entries
    }


def trials(session: Session, _line: Line) -> Words:
    return {**_summaries(session, "trials"), **_summaries(session, "examples")}


def suites(session: Session, _line: Line) -> Words:
    return _summaries(session, "suites")


def faults(session: Session, line: Line) -> Words:
    folder = session.catalogue.faults
    return {name: folder[name].summary for name in folder if name.startswith(line.word)}


def _named_beds(session: Session, bed: str | None) -> list[BedSpec]:
    """The bed that the line names, else all beds."""
    names = (bed,) if bed else store.names(session.state)
    return [spec for name in names if (spec := store.read(session.state, name))]
