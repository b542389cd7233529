"""Every probe measured on every rank, no figure is better than its ceiling, and the hardware reports no defect."""

from __future__ import annotations

from collections.abc import Iterator

from .. import views
from ..model.events import ProbeDone
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import probes


def check(run: Run, params: Params) -> Verdict:
    """A probe without its hardware is no doubt: what it could not read is listed with the reason."""
    ends, figures = probes.ends(run.history), probes.figures(run.history)
    doubts = [*views.not_ended(run.history), *views.not_started(run.history), *_absent(run)]
    failures = []
    for event in ends:
        label = f"{event.node}: {event.data.probe}"
        failures += [views.finding(f"{event.node}: {problem}", event) for problem in event.data.problems or ()]
        if event.data.error:
            doubts.append(views.finding(f"{label} ended early: {event.data.error}", event))
    doubts += [
        views.finding(
            f"{figure.node}: {figure.name} is {figure.median:.4g} {figure.unit}, better than its ceiling of {figure.ceiling:.4g}"
        )
        for figure in figures
        if figure.exceeds_ceiling
    ]
    if not any(event.data.figures or event.data.facts or event.data.bits for event in ends):
        reasons = sorted({reason for _, reason in probes.missing(run.history)})
        doubts.append(views.finding(f"nothing was measured{': ' * bool(reasons)}{'; '.join(reasons)}"))
    nodes = {event.node for event in ends}
    text = f"{len(figures)} figures on {len(nodes)} nodes; the hardware reports no defect"
    return views.conclude("hardware-probed", text, failures=failures, doubts=doubts)


def _absent(run: Run) -> Iterator[views.Finding]:
    """Probes of the trial that did not end on a rank of the last gang."""
    gangs = views.gangs(run.history)
    wanted = [str(name) for name in run.trial.params.get("probes") or ()]
    ended = {(event.data.rank, event.data.probe) for event in run.history.of(ProbeDone)}
    for rank in gangs[-1].ranks if gangs else ():
        for name in wanted:
            if (rank, name) not in ended:
                yield views.finding(f"rank {rank} did not end probe {name}")
