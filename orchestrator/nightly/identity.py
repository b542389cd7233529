"""Tells which node of one night is which node of another: a node is known by its host.

A bed gives a name to another host when it is brought up anew, and in every Slurm job. Reports then show what is known of a host
under the name that its node has tonight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..app.hosts import node_names
from ..model.frozen import dataclass, replace

if TYPE_CHECKING:
    from .night_judgement import NightJudgement
    from .records import Record
    from .run_record import RunRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Nodes(node_names.Nodes):
    """The nodes of a bed, by which records of other nights are renamed."""

    def records(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Records of earlier nights under the present names."""
        names: dict[int, dict[str, str]] = {}
        renamed = []
        for record in records:
            known = names.get(id(record.hosts))
            if known is None:
                known = names[id(record.hosts)] = self.names(record.hosts)
            renamed.append(replace(record, node=rename(record.node, known), hosts={}) if known else record)
        return tuple(renamed)

    def run(self, record: RunRecord) -> RunRecord:
        """A run of this night: a Slurm job that was replaced during the night has other hosts."""
        from .run_record import hosts_of

        names = self.names(hosts_of(record.suspects))
        if not names:
            return record
        measurements = (replace(item, node=rename(item.node, names)) for item in record.measurements)
        return replace(
            record, names=names, measurements=tuple(measurements), hardware=_renamed(record.hardware, names),
            reference=tuple(names.get(node, node) for node in record.reference), rank_0=rename(record.rank_0, names),
            leaves=_renamed(record.leaves, names), link_hosts=_renamed(record.link_hosts, names),
            suspects=_renamed(record.suspects, names),
        )  # fmt: skip

    def judgement(self, judgement: NightJudgement, hosts: Mapping[str, str]) -> NightJudgement:
        """The findings of an earlier night, whose nodes were on ``hosts``."""
        names = self.names(hosts)
        findings = (
            replace(judged, finding=replace(judged.finding, node=rename(judged.finding.node, names)))
            if judged.finding.node
            else judged
            for judged in judgement.findings
        )
        return replace(judgement, findings=tuple(findings))


def rename(label: str, names: Mapping[str, str]) -> str:
    """``label``: of a measurement, such as ``n2``, ``n2:3`` or ``n0->n1``."""
    if not names or not label:
        return label
    ends = (end.partition(":") for end in label.split("->"))
    return "->".join(f"{names.get(node, node)}{colon}{rank}" for node, colon, rank in ends)


def _renamed(values: Mapping[str, T], names: Mapping[str, str]) -> dict[str, T]:
    return {names.get(node, node): value for node, value in values.items()}
