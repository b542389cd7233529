"""The inventories, playbooks and images that ccbed ships: beside the package in a checkout, inside an installed package."""

from __future__ import annotations

import functools
from pathlib import Path

from .. import products

_PACKAGE = Path(__file__).parents[1]
_INVENTORY_SUFFIXES = (".yml", ".yaml", ".ini", ".cfg")


def folder(name: str) -> Path:
    """``inventories``, ``playbooks`` or ``images``."""
    inside = _PACKAGE / "_shipped" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def program() -> Path:
    """The file that starts this very ccbed, whatever package ``orchestrator`` PYTHONPATH has."""
    beside = _PACKAGE.parent / "ccbed" / "__main__.py"
    return beside if beside.is_file() else _PACKAGE / "packages" / "ccbed" / "__main__.py"


def find(path: Path) -> Path:
    """``path`` if it exists, else the shipped file of that name (``inventories/local.yml``), else ``path``."""
    if path.exists() or path.is_absolute() or not path.parts:
        return path
    shipped = folder(path.parts[0]).joinpath(*path.parts[1:])
    known = path.parts[0] in ("inventories", "playbooks", "images") and ".." not in path.parts
    return shipped if known and shipped.is_file() else path


def inventory_files(directory: Path) -> list[Path]:
    """The YAML and INI files of a folder that hold hosts, by name; those of other tools, and hidden ones, are left out."""
    if not directory.is_dir():
        return []
    return sorted(
        path
        for path in directory.iterdir()
        if path.suffix in _INVENTORY_SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def inventories() -> list[Path]:
    """The inventories of the folder ``inventories`` here, and those that ccbed ships, by paths that every verb accepts."""
    own = inventory_files(Path("inventories"))
    names = {path.name for path in own}
    more = [
        Path("inventories") / path.name for path in inventory_files(folder("inventories")) if path.name not in names
    ]
    return [*own, *more]


@functools.cache
def examples() -> dict[str, Path]:
    """Name -> script of the shipped examples: the files of their folder that run by themselves, not their modules."""
    scripts = sorted(file for root in _roots() for file in (root / "examples").glob("*.py"))
    return {path.stem.replace("_", "-"): path for path in scripts if 'if __name__ == "__main__"' in path.read_text()}


def suites() -> dict[str, Path]:
    return {path.stem: path for path in sorted(file for root in _roots() for file in (root / "suites").glob("*.yml"))}


def _roots() -> tuple[Path, ...]:
    return (_PACKAGE, *products.folders().values())


def summary(file: Path) -> str:
    """Return the first line of a file's docstring, or of its leading comment, without running the file."""
    try:
        with file.open() as lines:
            first = lines.readline().strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return first.lstrip("#").strip('"').strip().rstrip(".")
