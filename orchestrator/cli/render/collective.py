"""What a collective run is told to have measured: the table, the winner, the straggler, what the percentiles are of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.run import Run
from ...views import collectives
from ...views.collectives import phrases, table
from ..inputs import beds

#: So many cases are shown at the end of a run.
CASES = 24
#: So many slow trials are listed with the whole table.
SLOW = 20


def lines(run: Run, directory: Path, *, whole: bool = False) -> Iterator[str]:
    """Nothing for a run that measured no collectives."""
    found = collectives.measured(run)
    if found is None:
        return
    if not found.trials:
        yield "measured  nothing: no trial was gathered from all of its ranks"
        return
    yield f"link      {phrases.link(found.setting)}"
    shown = found if whole else table.largest(found, CASES)
    yield from table.lines(shown)
    if len(shown.rows) < len(found.rows):
        hidden = len(found.rows) - len(shown.rows)
        yield f"          … {hidden} more of smaller sizes: ccbed report {beds.run_shown(directory)} --table"
    for number, text in enumerate(phrases.autos(found.setting)):
        yield f"{'' if number else 'auto':<10}{text}"
    for text in phrases.winners(found.fastest):
        yield f"fastest   {text}"
    yield f"straggler {phrases.straggler(found)}"
    yield from _slow(found) if whole else ()
    yield f"verified  {_verified(run, found)}"
    yield f"note      {phrases.percentiles(found)}"


def _slow(found: collectives.Measured) -> Iterator[str]:
    """The slow trials, but for the one that the line of the straggler is about."""
    slowest = phrases.slowest(found)
    rest = slowest[1:] if slowest and slowest[0].blame else slowest
    for one in rest[:SLOW]:
        yield f"          {phrases.slow(one, found.setting)}"
    left = found.outliers - (len(slowest) - len(rest)) - len(rest[:SLOW])
    if left:
        yield f"          … {left:,} more slow trial{'s' * (left > 1)}: report/outliers.csv"


def document(run: Run) -> dict[str, Any] | None:
    """The same for programs."""
    found = collectives.measured(run)
    if found is None:
        return None
    return {
        "rows": codec.plain(found.rows),
        "link": codec.plain(found.setting.link),
        "auto": codec.plain(found.setting.autos),
        "fastest": codec.plain(found.fastest),
        "slow": codec.plain(found.slow),
        "latest": codec.plain(found.latest),
        "slow_links": codec.plain(found.links),
        "straggler": phrases.straggler(found),
        "percentiles": collectives.DEFINITION,
    }


def _verified(run: Run, found: collectives.Measured) -> str:
    return f"{phrases.verified(run.history, found)} · {phrases.outliers(found)}"
