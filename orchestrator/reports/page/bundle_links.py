"""Addresses of the files of a bundle, and of other runs, as a page in ``report/`` links them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from urllib.parse import quote

from markupsafe import Markup

from ...model.run import Run

#: Nodes with a row of their own, and files in it.
NODES, FILES = 64, 24
#: Documents at the top of a bundle, in the order of reading.
TOP = (
    "history.jsonl", "metrics.jsonl", "trial.json", "plan.json", "bundle.json", "fingerprint.json", "inputs/twin.json",
    "manifest-sha256.txt",
)  # fmt: skip
_RUN = re.compile(r"[\w.+-]+", re.ASCII)


def address(path: str) -> str:
    """Return the address of a file of the bundle, beside ``report/``; whatever its name holds stays within the path."""
    return "../" + quote(path, errors="replace")


def anchor(node: str) -> str:
    """Return the anchor of a node's row in the list of files."""
    return "node-" + quote(node, errors="replace")


def link(path: str, text: str = "") -> Markup:
    return Markup('<a href="{}">{}</a>').format(address(path), text or path)


def other_run(run: str, text: str = "") -> Markup | str:
    """A link to the page of a run in the same directory of runs; the name alone where it is no name of a run."""
    if not _RUN.fullmatch(run) or not run.strip("."):
        return text or run
    return Markup('<a href="../../{}/report/index.html">{}</a>').format(quote(run), text or run)


def documents(run: Run) -> list[Markup]:
    known = set(run.files.paths())
    return [link(path) for path in TOP if path in known]


def of_nodes(run: Run) -> list[tuple[str, list[Markup], int]]:
    """Return for each node (its name, links to its files with the logs first, how many more it has)."""
    nodes: dict[str, list[str]] = {}
    for path in run.files.paths():
        parts = PurePosixPath(path).parts
        if len(parts) > 2 and parts[0] == "nodes":
            nodes.setdefault(parts[1], []).append(path)
    return [(node, *_shown(node, paths)) for node, paths in list(nodes.items())[:NODES]]


def _shown(node: str, paths: Iterable[str]) -> tuple[list[Markup], int]:
    ranked = sorted(paths, key=lambda path: (not path.endswith(".log"), path))
    return [link(path, path.removeprefix(f"nodes/{node}/")) for path in ranked[:FILES]], max(0, len(ranked) - FILES)
