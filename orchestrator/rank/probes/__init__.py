"""The probes of a node's hardware. The folder is the registry: a file is a probe, and its docstring says what it measures.

A probe has ``measure(node)``, which yields what node_probe/probe_results.py defines. ``COLLECTIVE``: all ranks measure
together. ``PER_RANK``: every rank of a node measures, because each has a GPU or threads of its own; else the first one does.
"""

from __future__ import annotations

import pkgutil


def names() -> tuple[str, ...]:
    """Return the names of all probes without importing them."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))
