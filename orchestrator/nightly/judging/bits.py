"""Silent data corruption: the digests of all node probes of a night, compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ...model.events import ProbeDone
from ...store import bundle, paths
from ..gates import digests
from ..gates.finding import Finding
from ..night_judgement import Judged
from ..run_record import RunRecord
from .figures import NODE_PROBE


def judge(runs: Iterable[tuple[str, RunRecord]]) -> Iterator[Judged]:
    """The digests of all node probes tonight. ``runs``: cell and record. Equal bits stay unknown, which is no defect."""
    computed: list[digests.Digest] = []
    names, cell_of = [], ""
    for cell, record in runs:
        if record.workload != NODE_PROBE:
            continue
        directory = Path(record.directory)
        try:
            results = tuple(_digests(directory, record.names))
        except paths.TornBundleError as error:
            text = f"the digests of {directory.name} cannot be read: {'; '.join(error.problems)}"
            finding = Finding(gate=digests.GATE, outcome="unknown", text=text)
            yield Judged(finding=finding, state="unknown", cell=cell, runs=(directory.name,))
            continue
        computed += results
        if results:
            names.append(directory.name)
            cell_of = cell_of or cell
    for finding in digests.judge(computed):
        yield Judged(
            finding=finding, state=finding.outcome, cell=cell_of, runs=tuple(names),
            reference="equal devices and libraries in the same night", is_counted=finding.outcome != "unknown",
        )  # fmt: skip


def _digests(directory: Path, names: Mapping[str, str]) -> Iterator[digests.Digest]:
    for event in bundle.read_history(directory).of(ProbeDone):
        node = names.get(event.node or "", event.node or "")
        for bits in event.data.bits or ():
            yield digests.Digest(
                node=node, device=bits.device, software=bits.software, digest=bits.digest, seconds=bits.seconds
            )  # fmt: skip
