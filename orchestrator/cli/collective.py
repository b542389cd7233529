"""What a collective run is told to have measured: the table, the winner, the straggler, what the percentiles are of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..model import codec
from ..model.run import Run
from ..views import collectives
from ..views.collectives import table, wording
from . import beds

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
    yield f"link      {wording.link(found.setting)}"
    yield from table.lines(found, 0 if whole else CASES)
    if not whole and len(found.rows) > CASES:
        yield f"          … {len(found.rows) - CASES} more: ccbed report {beds.run_shown(directory)} --table"
    for number, text in enumerate(wording.autos(found.setting)):
        yield f"{'' if number else 'auto':<10}{text}"
    for text in wording.winners(found.fastest):
        yield f"fastest   {text}"
    yield f"straggler {wording.straggler(found)}"
    for one in sorted(found.slow, key=lambda one: -one.seconds)[1:SLOW] if whole else ():
        yield f"          {wording.slow(one, found.setting)}"
    yield f"verified  {_verified(run, found)}"
    yield f"note      {wording.percentiles(found)}"


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
        "straggler": wording.straggler(found),
        "percentiles": collectives.DEFINITION,
    }


def _verified(run: Run, found: collectives.Measured) -> str:
    return f"{wording.verified(run.history, found)} · {wording.outliers(found)}"
