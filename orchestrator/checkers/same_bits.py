"""The same computation gave the same bits on equal devices with equal libraries: a mismatch fails, and nothing else is proved."""

from __future__ import annotations

from collections.abc import Iterator

from .. import views
from ..model.events import ComputedBits
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import probes

#: Equal bits are no proof of health: without a mismatch nothing is judged.
SKIPS = True


def check(run: Run, params: Params) -> Verdict:
    """Never a pass: skipped without a mismatch."""
    groups: dict[tuple[str, str], list[tuple[str, ComputedBits]]] = {}
    for event in probes.ends(run.history):
        for bits in event.data.bits or ():
            groups.setdefault((bits.device, bits.software), []).append((event.node or "", bits))
    doubts = views.not_ended(run.history)
    failures = [finding for what, results in groups.items() for finding in _mismatches(what, results)]
    if failures or doubts:
        return views.conclude("same-bits", "", failures=failures, doubts=doubts)
    return Verdict(check="same-bits", outcome="skipped", text=_statement(groups))


def _mismatches(what: tuple[str, str], results: list[tuple[str, ComputedBits]]) -> Iterator[views.Finding]:
    nodes: dict[str, set[str]] = {}
    for node, bits in results:
        nodes.setdefault(bits.digest, set()).add(node)
    if len(nodes) > 1:
        parts = [f"{', '.join(sorted(names))}: {digest[:8]}" for digest, names in nodes.items()]
        yield views.finding(f"{', '.join(what)}: results differ ({'; '.join(sorted(parts))})")


def _statement(groups: dict[tuple[str, str], list[tuple[str, ComputedBits]]]) -> str:
    results = [result for group in groups.values() for result in group]
    if not results:
        return "no probe compared bits"
    alone = [", ".join(what) for what, group in groups.items() if len({node for node, _ in group}) == 1]
    seconds, nodes = sum(bits.seconds for _, bits in results), len({node for node, _ in results})
    single = f"; one node only: {'; '.join(alone)}" if alone else ""
    return f"no mismatch in {seconds:.3g} device-seconds on {nodes} nodes, which proves no health{single}"
