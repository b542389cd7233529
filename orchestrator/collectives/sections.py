"""What the page, the summaries and the terminal show of a run that measured collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..model.run import Run
from ..reports.summary import cell, table_lines
from . import views as collectives
from .page.collective import lines as page_lines
from .page.collective import pairs as page_pairs
from .page.collective import values as page
from .render.collective import document, lines
from .views import table

__all__ = ("document", "lines", "markdown", "page", "pairs_of")


def markdown(run: Run) -> Iterator[str]:
    """The table with single headings, for Markdown has no bands, and the lines below it."""
    measured = collectives.measured(run)
    if measured is None:
        return
    made = table.table(measured)
    bands = [title for title, count in made.bands for _ in range(count)]
    names = zip(bands, made.head, strict=True)
    head = [f"{name} ms" if "," in band else f"{band} {name}".strip() for band, name in names]
    yield from ("## Collectives", "")
    for title, rows in made.groups:
        yield from (f"### {cell(title)}", "")
        yield from table_lines(head, rows)
    yield from (f"- {what}: {cell(text)}" for what, text in page_lines(run, measured))
    yield ""


def pairs_of(run: Run) -> Iterable[tuple[str, str]]:
    """Name and text of each figure, for JUnit."""
    measured = collectives.measured(run)
    return page_pairs(measured) if measured else ()
