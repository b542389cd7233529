"""What a shell proposes for the word that is typed: beds, nodes, hosts, runs, trials and plugins, each with a text about it.

``given``: what the line says already, by the names of its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.bed import selection
from ..model.bed import BedSpec
from ..store import beds as store
from ..store import bundle, index, shipped
from .session import Session

#: The newest runs that are proposed.
_RUNS = 50
Given = Mapping[str, Any]
#: Word -> the text about it.
Words = Mapping[str, str]


def beds(session: Session, _given: Given, _word: str) -> Words:
    return dict.fromkeys(store.names(session.state), "")


def beds_and_inventories(session: Session, given: Given, word: str) -> Words:
    return {**beds(session, given, word), **inventories(session, given, word)}


def inventories(_session: Session, _given: Given, _word: str) -> Words:
    return {path.as_posix(): shipped.summary(shipped.find(path)) for path in shipped.inventories()}


def nodes(session: Session, given: Given, _word: str) -> Words:
    return {node.name: "" for bed in _named_beds(session, given) for node in bed.nodes}


def hosts(session: Session, given: Given, word: str) -> Words:
    """Behind a comma the next one."""
    head, comma, _ = word.rpartition(",")
    names = (host for bed in _named_beds(session, given) for host in selection.host_names(bed))
    return {f"{head}{comma}{name}": "" for name in names}


def bed_nodes(session: Session, _given: Given, _word: str) -> Words:
    """``local/n0``, and ``n0`` where one bed is up."""
    known = _named_beds(session, {})
    bare = [node.name for bed in known for node in bed.nodes] if len(known) == 1 else []
    return dict.fromkeys([*bare, *(f"{bed.name}/{node.name}" for bed in known for node in bed.nodes)], "")


def logs(session: Session, given: Given, word: str) -> Words:
    of_nodes = [name for name in bed_nodes(session, given, word) if "/" in name]
    keepers = [f"{bed}/keeper" for bed in store.names(session.state)]
    return {**runs(session, given, word), **dict.fromkeys([*of_nodes, *keepers], "")}


def runs(_session: Session, given: Given, word: str) -> Words:
    """``latest``, and the newest runs by the end of their name; by the whole name once that is begun."""
    entries = index.runs(Path(given.get("runs_dir") or "runs"), nested=True)[-_RUNS:][::-1]
    latest = {bundle.LATEST: "the newest run"} if entries else {}
    is_whole = word.startswith("20")
    return latest | {
        entry.run if is_whole else entry.run.rpartition("-")[2]: f"{entry.trial}, {entry.state}" for entry in entries
    }


def trials(session: Session, _given: Given, _word: str) -> Words:
    known = {name: shipped.summary(Path(path)) for name, path in session.catalogue.trials.items()}
    return known | {f"example:{name}": shipped.summary(path) for name, path in shipped.examples().items()}


def suites(_session: Session, _given: Given, _word: str) -> Words:
    return {name: shipped.summary(path) for name, path in shipped.suites().items()}


def faults(session: Session, _given: Given, word: str) -> Words:
    folder = session.catalogue.faults
    return {name: folder[name].summary for name in folder if name.startswith(word)}


def _named_beds(session: Session, given: Given) -> list[BedSpec]:
    """The bed that the line names, else all beds."""
    names = (given["bed"],) if given.get("bed") else store.names(session.state)
    return [bed for name in names if (bed := store.read(session.state, name))]
