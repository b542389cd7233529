"""The products beside the test-bed, each in a folder of its own that can be removed: the test-bed knows their names, and imports none.

A product adds plugins in a folder as ``--plugins`` takes it, verbs, and the modules that ``part`` asks for.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

from .model.errors import UsageError
from .model.plugin import PRODUCTS

#: Folder -> what is not there without it.
NAMES = dict(
    zip(PRODUCTS, ("tools for your own jobs", "measurements of collectives", "nights", "beds of Slurm"), strict=True)
)


@functools.cache
def folders() -> dict[str, Path]:
    """The products that are installed, with their folders."""
    package = Path(__file__).parent
    return {name: package / name for name in NAMES if (package / name / "__init__.py").is_file()}


def part(product: str, module: str, what: str = "") -> Any:
    """Import a module of a product. Raises UsageError where the product is not installed. ``what``: needs it."""
    require(product, what)
    return importlib.import_module(f".{product}.{module}", __package__)


def parts(module: str) -> list[Any]:
    """That module of each installed product that has it."""
    names = [name for name, folder in folders().items() if (folder / f"{module}.py").is_file()]
    return [importlib.import_module(f".{name}.{module}", __package__) for name in names]


def require(product: str, what: str = "") -> None:
    """Raises UsageError where the product is not installed. ``what``: needs it."""
    if product not in folders():
        subject = f"{what}: " if what else ""
        raise UsageError(f"{subject}{NAMES[product]} are not installed", hint="pip install --force-reinstall ccbed")
