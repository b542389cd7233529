"""Matches the nodes of a bed with those of an earlier one: a node is known by its host.

A bed gives a name to another host when it is brought up anew, and in every Slurm job.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...model.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a bed. ``hosts``: node -> its host, empty where it is not known."""

    hosts: Mapping[str, str]

    def name(self, node: str, host: str, *, is_alone: bool) -> str:
        """The name of the node that was ``node`` on ``host``; ``n1@h1`` if no node is there, and n1 is on another host.

        ``is_alone``: it was the only node of its host, and is known by that alone. Without a known host it keeps its name.
        """
        known = self.hosts.get(node)
        if not host or known in ("", host):
            return node
        present = [name for name, other in self.hosts.items() if other == host]
        if is_alone and len(present) == 1:
            return present[0]
        return node if known is None else f"{node}@{host}"

    def names(self, hosts: Mapping[str, str]) -> dict[str, str]:
        """The names of nodes that were on ``hosts``, of those whose name is another one."""
        counted = list(hosts.values())
        names = {node: self.name(node, host, is_alone=counted.count(host) == 1) for node, host in hosts.items()}
        return {node: name for node, name in names.items() if name != node}
