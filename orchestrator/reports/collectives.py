"""The figures of a collective run for programs: CSV, JSON as nccl-tests writes it, and the plots as PNG."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.run import Run
from .page import facts


def render(run: Run) -> Mapping[str, bytes]:
    """Nothing for a run that measured no collectives."""
    found = facts.measured(run)
    if found is None:
        return {}
    from .page import nccl, nccl_table, plots, sheet

    return {
        "collective.csv": sheet.cases(found).encode(),
        "outliers.csv": sheet.outliers(found).encode(),
        **({"links.csv": sheet.links(found).encode()} if found.setting.link.pairs else {}),
        "nccl-tests.json": nccl.document(run, found).encode(),
        **{f"nccl-tests/{name}": text.encode() for name, text in nccl_table.texts(found).items()},
        **{f"plots/{one.picture.name}.png": one.png for one in plots.drawn(found)},
    }
