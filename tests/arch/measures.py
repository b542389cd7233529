"""What the walls measure in the files of the repository: lines, files, import circles, untyped mappings, words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import import_graph
from .walls import Measured

#: Path below the root of the repository -> text, of every Python file.
Texts = Mapping[str, str]
UNTYPED = re.compile(r"(?:Mapping|dict)\[str, (?:Any|object)\]")
PARTS = {"product": "orchestrator", "tests": "tests"}
#: How many places a message names.
PLACES = 5


def of_files(texts: Texts, readme: str, own_wall: Sequence[str]) -> Mapping[str, Measured]:
    """All measures of files by the name of their wall. ``own_wall``: folders with a limit of their own."""
    product = _below("orchestrator", texts)
    return {
        **{f"lines of the {name}": lines(_below(folder, texts)) for name, folder in PARTS.items()},
        **{f"files of the {name}": files(_below(folder, texts)) for name, folder in PARTS.items()},
        **folders(texts, own_wall),
        "lines of a file": longest(texts),
        "dict[str, Any] in the product": untyped(product),
        "words of README.md": Measured(value=len(readme.split())),
        **circles(product),
    }


def lines(texts: Texts) -> Measured:
    """All lines; the folders with most of them."""
    return _sum(texts, lambda text: text.count("\n"), _folder)


def files(texts: Texts) -> Measured:
    return _sum(texts, lambda _: 1, _folder)


def untyped(texts: Texts) -> Measured:
    """Mappings of anything, as ``dict[str, Any]``; the files with most of them."""
    return _sum(texts, lambda text: len(UNTYPED.findall(text)), str)


def longest(texts: Texts) -> Measured:
    """The lines of the longest file."""
    sizes = {name: text.count("\n") for name, text in texts.items()}
    return _largest(sizes)


def folders(texts: Texts, own_wall: Sequence[str]) -> Mapping[str, Measured]:
    """The files of each folder that has a wall of its own, and of the largest other folder."""
    counts = Counter(_folder(name) for name in texts)
    own = {f"files of {name}": Measured(value=counts[name]) for name in own_wall}
    return {"files of a folder": _largest({name: n for name, n in counts.items() if name not in own_wall}), **own}


def circles(texts: Texts) -> Mapping[str, Measured]:
    """Import circles: of what is loaded or type-checked with a module, and of that with what functions import."""
    loaded, every = map(import_graph.circles, import_graph.graphs(texts))
    return {
        "import circles without imports in functions": Measured(value=len(loaded), where=_listed(loaded)),
        "import circles": Measured(value=len(every), where=_listed(every)),
        "modules of the largest import circle": Measured(value=max(map(len, every), default=0), where=_listed(every)),
    }


def _listed(groups: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"  {', '.join(group)}" for group in groups)


def _below(folder: str, texts: Texts) -> Texts:
    return {name: text for name, text in texts.items() if name.startswith(f"{folder}/")}


def _folder(name: str) -> str:
    return str(Path(name).parent)


def _sum(texts: Texts, count: Callable[[str], int], place: Callable[[str], str]) -> Measured:
    counts: Counter[str] = Counter()
    for name, text in texts.items():
        counts[place(name)] += count(text)
    most = ", ".join(f"{name} {n}" for name, n in counts.most_common(PLACES))
    return Measured(value=counts.total(), where=f"most: {most}")


def _largest(sizes: Mapping[str, int]) -> Measured:
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:PLACES]
    where = ", ".join(f"{name} {sizes[name]}" for name in largest)
    return Measured(value=max(sizes.values(), default=0), where=f"largest: {where}")
