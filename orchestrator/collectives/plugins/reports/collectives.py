"""The figures of a collective run for programs: CSV, and JSON as nccl-tests writes it."""

from __future__ import annotations

from collections.abc import Mapping

from .... import views
from ....model.run import Run


def render(run: Run) -> Mapping[str, bytes]:
    """Nothing for a run that measured no collectives."""
    if not views.is_collective(run.history):
        return {}
    from ... import views as collectives

    measured = collectives.measured(run)
    if measured is None:
        return {}
    from ...page import nccl, sheet

    gaps = collectives.replay_gaps(run, measured.setting)

    return {
        "collective.csv": sheet.cases(measured).encode(),
        "outliers.csv": sheet.outliers(measured).encode(),
        **({"links.csv": sheet.links(measured).encode()} if measured.setting.link.directions else {}),
        **({"gaps.csv": sheet.gaps(gaps).encode()} if gaps else {}),
        "nccl-tests.json": nccl.document(run, measured).encode(),
        **{f"nccl-tests/{name}": text.encode() for name, text in nccl.texts(measured).items()},
    }
